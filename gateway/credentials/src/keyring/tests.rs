//! Tests of the keyring over a real catalogue.

use super::{ChangeKeyError, Keyring, RootCredentials};
use crate::Sealer;
use mlgw_api::{AccessKeyRole, KeyChange, NewKey};
use mlgw_auth::KeySource;
use mlgw_common::Secret;
use mlgw_common::SystemClock;
use mlgw_metadata::{Catalogue, CatalogueOptions};
use mlgw_wire::access::RequiredPermission;
use std::path::Path;
use std::sync::Arc;

async fn catalogue(dir: &Path) -> Catalogue {
    Catalogue::open(CatalogueOptions::new(dir.join("catalogue"), Arc::new(SystemClock))).await.unwrap()
}

async fn open(dir: &Path, catalogue: &Catalogue, given: Option<RootCredentials>) -> Keyring {
    let sealer = Sealer::open_or_create(dir).unwrap();
    Keyring::open(catalogue.clone(), sealer, Arc::new(SystemClock), given).await.unwrap()
}

fn given(access_key: &str, secret: &str) -> Option<RootCredentials> {
    Some(RootCredentials { access_key: access_key.to_owned(), secret: Secret::new(secret) })
}

#[tokio::test]
async fn the_root_is_generated_once_kept_over_restarts_and_replaced_by_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = catalogue(dir.path()).await;
    let made = open(dir.path(), &catalogue, None).await;
    let (made_id, made_secret) =
        (made.root().principal.access_key.clone(), made.root().secret.expose().to_owned());
    let again = open(dir.path(), &catalogue, None).await;
    assert_eq!(again.root().principal.access_key, made_id);
    assert_eq!(again.root().secret.expose(), made_secret);
    assert_ne!(again.local().principal.access_key, made.local().principal.access_key);
    let replaced = open(dir.path(), &catalogue, given("admin", "password")).await;
    assert!(replaced.find(&made_id).is_none() && replaced.find("admin").is_some());
    let kept = open(dir.path(), &catalogue, None).await;
    assert_eq!(kept.root().secret.expose(), "password");
    assert_eq!(kept.list().unwrap().len(), 1);
    catalogue.shutdown().await;
}

#[tokio::test]
async fn a_key_is_created_found_changed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = catalogue(dir.path()).await;
    let keyring = open(dir.path(), &catalogue, None).await;
    let new = NewKey { role: Some(AccessKeyRole::Write), buckets: vec!["a*".into()], ..NewKey::default() };
    let (info, secret) = keyring.create(new).await.unwrap();
    let found = keyring.find(&info.access_key).unwrap();
    assert_eq!(found.secret.expose(), secret.expose());
    assert!(found.principal.allows(RequiredPermission::Write, Some("abc"), None));
    assert!(!found.principal.allows(RequiredPermission::Write, Some("xyz"), None));
    assert!(Arc::ptr_eq(&found, &keyring.find(&info.access_key).unwrap()), "the opened key is cached");

    let change = KeyChange { buckets: Some(vec!["x*".into()]), ..KeyChange::default() };
    let (before, after) = keyring.update(&info.access_key, change).await.unwrap();
    assert_eq!((before.buckets, after.buckets), (vec!["a*".to_owned()], vec!["x*".to_owned()]));
    let found = keyring.find(&info.access_key).unwrap();
    assert!(
        found.principal.allows(RequiredPermission::Write, Some("xyz"), None),
        "a change takes effect immediately"
    );
    let disable = KeyChange { disabled: Some(true), ..KeyChange::default() };
    keyring.update(&info.access_key, disable).await.unwrap();
    assert!(keyring.find(&info.access_key).is_none());

    keyring.delete(&info.access_key).await.unwrap();
    assert!(keyring.show(&info.access_key).unwrap().is_none());
    assert!(matches!(keyring.delete(&info.access_key).await, Err(ChangeKeyError::NoSuchKey(_))));
    catalogue.shutdown().await;
}

#[tokio::test]
async fn invalid_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = catalogue(dir.path()).await;
    let keyring = open(dir.path(), &catalogue, given("admin", "password")).await;
    let named = |name: &str| NewKey { access_key: Some(name.into()), ..NewKey::default() };
    for bad in ["@root", "a/b", "ab", "a b c", ""] {
        assert!(matches!(keyring.create(named(bad)).await, Err(ChangeKeyError::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(keyring.create(named("admin")).await, Err(ChangeKeyError::Exists(_))));
    assert!(matches!(keyring.delete("admin").await, Err(ChangeKeyError::Fixed(_))));
    assert!(matches!(keyring.delete("@root").await, Err(ChangeKeyError::NoSuchKey(_))));
    assert!(keyring.find("@root").is_none());
    let short = NewKey { secret_access_key: Some("short".into()), ..NewKey::default() };
    assert!(matches!(keyring.create(short).await, Err(ChangeKeyError::Invalid(_))));
    let glob = NewKey { prefixes: vec!["[".into()], ..NewKey::default() };
    assert!(matches!(keyring.create(glob).await, Err(ChangeKeyError::Invalid(_))));
    catalogue.shutdown().await;
}
