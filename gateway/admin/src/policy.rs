//! `/v1/policy…`: shows, applies, rolls back and freezes the running policy.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::AdminQuery;
use super::signed::AdminCaller;
use super::words::{policy_change_kind, policy_environment};
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{
    ApplyRequest, EffectivePolicy, FreezeRequest, PolicyChange, PolicyHistory, PolicyInfo, PolicyText,
    PolicyVersionInfo, RollbackRequest,
};
use mlgw_common::Timestamp;
use mlgw_common::limits::{POLICY_BYTES_MAX, POLICY_FILES_MAX, POLICY_TEXT_BYTES_MAX, POLICY_VERSIONS_MAX};
use mlgw_formats::schema::{PolicyFile, PolicyKind, PolicyVersion};
use mlgw_policy_runtime::{AppliedPolicyChange as Done, ChangeAuthor, PolicyError, PolicyFilesUpdate};
use mlgw_wire::error::S3Error;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;

/// Number of versions listed by default.
const VERSIONS_SHOWN: usize = 100;

/// Query parameters: maximum number of versions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    /// Maximum number of results.
    #[schemars(range(min = 1, max = POLICY_VERSIONS_MAX), extend("default" = VERSIONS_SHOWN))]
    limit: Option<usize>,
}

/// Converts a version of the policy to its API type.
fn version_info(version: &PolicyVersion) -> PolicyVersionInfo {
    let kind = PolicyKind::try_from(version.kind).unwrap_or(PolicyKind::Apply);
    PolicyVersionInfo {
        version: version.number,
        time: Timestamp(version.at_ms).to_string(),
        who: version.who.clone(),
        kind: policy_change_kind(kind),
        message: version.message.clone(),
        changes: version.changes.clone(),
        files: version.files,
        back_to: (kind == PolicyKind::Rollback).then_some(version.back_to),
        frozen: version.is_frozen,
    }
}

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Json<PolicyInfo> {
    let running = admin.policies.running();
    let texts = |files: &[PolicyFile]| {
        let text = |file: &PolicyFile| PolicyText { name: file.name.clone(), text: file.text.clone() };
        files.iter().map(text).collect()
    };
    let [(_, rules_act), (_, rules_observe)] = admin.policies.rules_by_stance();
    Json(PolicyInfo {
        version: running.version.as_deref().map(version_info),
        learning: *admin.policies.learning().borrow(),
        environment: admin.policies.server().environment.map(policy_environment),
        files: texts(&running.files.custom),
        frameworks: texts(&running.files.frameworks),
        rules_act,
        rules_observe,
        fault: running.fault.clone(),
        refused: admin.policies.refused().map(|refused| refused.why),
    })
}

pub(super) async fn effective(State(admin): State<Arc<Admin>>) -> Json<EffectivePolicy> {
    let running = admin.policies.running();
    let mut shown = running.program.to_json();
    Json(EffectivePolicy {
        version: running.number(),
        yaml: running.program.to_yaml(),
        policy: shown["policy"].take(),
        from: shown["from"].take(),
    })
}

pub(super) async fn history(
    State(admin): State<Arc<Admin>>,
    AdminQuery(query): AdminQuery<HistoryQuery>,
) -> Result<Json<PolicyHistory>, ApiError> {
    let limit = query.limit.unwrap_or(VERSIONS_SHOWN);
    if !(1..=POLICY_VERSIONS_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}; expected 1 to {POLICY_VERSIONS_MAX}.")));
    }
    let versions = admin.stored.catalogue.policies();
    let newest = versions.iter().rev().take(limit);
    Ok(Json(PolicyHistory { versions: newest.map(|version| version_info(version)).collect() }))
}

pub(super) async fn apply(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: ApplyRequest = parse(&body)?;
    let by = change_author(&caller, request.if_version, request.message)?;
    let files = checked_files(request.files, request.frameworks)?;
    let policies = Arc::clone(&admin.policies);
    let work = async move {
        let done = policies.apply(files, by).await;
        if matches!(done, Err(PolicyError::Wrong(_))) {
            policies.count_refusal();
        }
        policy_change(&done.map_err(policy_refusal)?)
    };
    admin.change(caller, policy_action("policy.apply"), work).await
}

pub(super) async fn roll_back(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: RollbackRequest = parse(&body)?;
    let by = change_author(&caller, request.if_version, request.message)?;
    let policies = Arc::clone(&admin.policies);
    let work =
        async move { policy_change(&policies.roll_back(request.version, by).await.map_err(policy_refusal)?) };
    admin.change(caller, policy_action("policy.rollback"), work).await
}

pub(super) async fn freeze(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    set_frozen(&admin, caller, &body, true).await
}

pub(super) async fn unfreeze(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    set_frozen(&admin, caller, &body, false).await
}

async fn set_frozen(
    admin: &Arc<Admin>,
    caller: AdminCaller,
    body: &Bytes,
    is_frozen: bool,
) -> Result<Response, ApiError> {
    let request: FreezeRequest = parse(body)?;
    let by = change_author(&caller, request.if_version, request.message)?;
    let policies = Arc::clone(&admin.policies);
    let action = if is_frozen { "policy.freeze" } else { "policy.unfreeze" };
    let work = async move {
        let changed = if is_frozen { policies.freeze(by).await } else { policies.unfreeze(by).await };
        policy_change(&changed.map_err(policy_refusal)?)
    };
    admin.change(caller, policy_action(action), work).await
}

fn policy_action(action: &'static str) -> AuditedAction {
    AuditedAction { action, resource: "policy".to_owned(), status: StatusCode::OK }
}

fn change_author(
    caller: &AdminCaller,
    if_version: Option<u64>,
    message: String,
) -> Result<ChangeAuthor, ApiError> {
    if message.len() > POLICY_TEXT_BYTES_MAX {
        let why =
            format!("The message has {} bytes; at most {POLICY_TEXT_BYTES_MAX} are allowed.", message.len());
        return Err(ApiError::invalid(why));
    }
    Ok(ChangeAuthor { who: caller.access_key.clone(), message, if_version })
}

/// Converts the files of a request and checks their limits.
pub(super) fn checked_files(
    custom: Option<Vec<PolicyText>>,
    frameworks: Option<Vec<PolicyText>>,
) -> Result<PolicyFilesUpdate, ApiError> {
    let too =
        |what: String, most: usize| Err(ApiError::invalid(format!("{what}; at most {most} are allowed.")));
    for (what, files) in [("policies", &custom), ("plugins", &frameworks)] {
        let count = files.as_ref().map_or(0, Vec::len);
        if count > POLICY_FILES_MAX {
            return too(format!("There are {count} {what}"), POLICY_FILES_MAX);
        }
    }
    let all = || custom.iter().chain(&frameworks).flatten();
    let bytes: usize = all().map(|file| file.text.len()).sum();
    if bytes > POLICY_BYTES_MAX {
        return too(format!("The files have {bytes} bytes"), POLICY_BYTES_MAX);
    }
    if let Some(long) = all().map(|file| file.name.len()).find(|length| *length > POLICY_TEXT_BYTES_MAX) {
        return too(format!("A file's name has {long} bytes"), POLICY_TEXT_BYTES_MAX);
    }
    let texts = |files: Vec<PolicyText>| {
        files.into_iter().map(|PolicyText { name, text }| PolicyFile { name, text }).collect()
    };
    Ok(PolicyFilesUpdate { custom: custom.map(texts), frameworks: frameworks.map(texts) })
}

fn policy_change(done: &Done) -> Result<AuditedChange, ApiError> {
    let info = |version: &Option<Arc<PolicyVersion>>| version.as_deref().map(version_info);
    let number = |version: &Option<Arc<PolicyVersion>>| version.as_ref().map(|version| version.number);
    let (before, after) = (info(&done.before), info(&done.after));
    let answer =
        PolicyChange { changed: number(&done.before) != number(&done.after), version: after.clone() };
    Ok(AuditedChange {
        resource: "policy".to_owned(),
        before: json(&before)?,
        after: json(&after)?,
        answer: Some(json(&answer)?),
    })
}

/// Converts a policy error to an API error.
pub(super) fn policy_refusal(error: PolicyError) -> ApiError {
    let message = error.to_string();
    let error_with = |status, code| ApiError::new(status, code, message.clone());
    match error {
        PolicyError::Wrong(_) => error_with(StatusCode::UNPROCESSABLE_ENTITY, "InvalidPolicy"),
        PolicyError::Changed { newest } => ApiError::new(
            StatusCode::CONFLICT,
            "PolicyChanged",
            format!(
                "The policy was changed concurrently: its version is {newest}. Check it, then try again."
            ),
        ),
        PolicyError::NothingBefore => ApiError::new(
            StatusCode::CONFLICT,
            "NothingBefore",
            "The built-in policy runs, and no earlier version exists.",
        ),
        PolicyError::NoSuchVersion(number) => ApiError::new(
            StatusCode::NOT_FOUND,
            "NoSuchVersion",
            format!("No such version of the policy: {number}; old versions are removed."),
        ),
        PolicyError::FilesGone(number) => ApiError::new(
            StatusCode::CONFLICT,
            "FilesGone",
            format!("The files of version {number} were removed; apply them again."),
        ),
        PolicyError::DeletesInCluster(_) => error_with(StatusCode::CONFLICT, "DeletesInCluster"),
        PolicyError::Propose(error) => S3Error::from(error).into(),
        PolicyError::Read(error) => S3Error::from(error).into(),
        PolicyError::Internal(_) => error_with(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
    }
}
