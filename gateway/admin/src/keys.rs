//! `/v1/access/keys`: access keys with their roles and scopes.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{CreatedKey, KeyChange, KeyInfo, KeyList, NewKey};
use mlgw_credentials::ChangeKeyError;
use serde_json::Value;
use std::sync::Arc;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Json<KeyList>, ApiError> {
    Ok(Json(KeyList { keys: admin.keyring.list()? }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(access_key): AdminPath<String>,
) -> Result<Json<KeyInfo>, ApiError> {
    let found = admin.keyring.show(&access_key)?;
    found.map(Json).ok_or_else(|| ChangeKeyError::NoSuchKey(access_key).into())
}

pub(super) async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let new: NewKey = parse(&body)?;
    let resource = new.access_key.clone().unwrap_or_default();
    let action = AuditedAction { action: "access.key.create", resource, status: StatusCode::CREATED };
    let keyring = admin.keyring.clone();
    let work = async move {
        let (key, secret) = keyring.create(new).await?;
        let after = json(&key)?;
        let resource = key.access_key.clone();
        let answer = json(&CreatedKey { secret_access_key: secret.expose().to_owned(), key })?;
        Ok(AuditedChange { resource, before: Value::Null, after, answer: Some(answer) })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn update(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(access_key): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let change: KeyChange = parse(&body)?;
    let action =
        AuditedAction { action: "access.key.update", resource: access_key.clone(), status: StatusCode::OK };
    let keyring = admin.keyring.clone();
    let work = async move {
        let (before, after) = keyring.update(&access_key, change).await?;
        Ok(AuditedChange { resource: access_key, before: json(&before)?, after: json(&after)?, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn delete(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(access_key): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action =
        AuditedAction { action: "access.key.delete", resource: access_key.clone(), status: StatusCode::OK };
    let keyring = admin.keyring.clone();
    let work = async move {
        let before = keyring.delete(&access_key).await?;
        Ok(AuditedChange { resource: access_key, before: json(&before)?, after: Value::Null, answer: None })
    };
    admin.change(caller, action, work).await
}
