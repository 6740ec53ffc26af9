//! Verification of signatures of other implementations: AWS's published examples, and `aws-sigv4`.

mod examples;
mod forms;
mod refusals;
mod signer;
mod sigv2;

use super::{AuthRules, Authenticated, KeySource};
use crate::key::SigningAccessKey;
use crate::principal::Principal;
use http::request::Parts;
use mlgw_api::AccessKeyRole;
use mlgw_common::Secret;
use mlgw_common::Timestamp;
use mlgw_testing::signer::{ACCESS_KEY, NOW, SECRET};
use mlgw_wire::error::S3Error;
use mlgw_wire::query::Query;
use std::sync::Arc;

/// A key source with one key.
pub(crate) struct OneKey(Arc<SigningAccessKey>);

impl OneKey {
    pub(crate) fn with_secret(secret: &str) -> Self {
        let principal = Arc::new(Principal::unrestricted(ACCESS_KEY, "owner", AccessKeyRole::Admin));
        Self(Arc::new(SigningAccessKey { principal, secret: Secret::new(secret) }))
    }
}

impl KeySource for OneKey {
    fn find(&self, access_key: &str) -> Option<Arc<SigningAccessKey>> {
        (access_key == ACCESS_KEY).then(|| Arc::clone(&self.0))
    }
}

/// Authenticates the request with this head and its query.
pub(crate) fn authenticate(
    head: &Parts,
    keys: &OneKey,
    now: Timestamp,
    rules: &AuthRules,
) -> Result<Authenticated, S3Error> {
    super::authenticate(head, &Query::parse(head.uri.query().unwrap_or_default()), keys, now, rules)
}

/// Authenticates at the time of the examples.
pub(crate) fn verify(head: &Parts) -> Result<Authenticated, S3Error> {
    authenticate(head, &OneKey::with_secret(SECRET), NOW, &AuthRules::new("s3"))
}

fn is_verified(head: &Parts) -> bool {
    match verify(head) {
        Ok(authenticated) => authenticated.principal.is_some_and(|p| p.access_key == ACCESS_KEY),
        Err(error) => panic!("{error}\n{}", error.get("CanonicalRequest").unwrap_or_default()),
    }
}
