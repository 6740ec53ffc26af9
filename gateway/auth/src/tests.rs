//! Signatures made by others are verified here: AWS's published examples, and `aws-sigv4`.

mod examples;
mod forms;
mod refusals;
pub(crate) mod signer;
mod sigv2;

use super::{AuthRules, Authenticated, KeySource};
use crate::key::Key;
use crate::principal::Principal;
use mlgw_common::Secret;
use mlgw_wire::query::Query;
use mlgw_wire::error::S3Error;
use http::Request;
use http::request::Parts;
use mlgw_api::Role;
use mlgw_common::Timestamp;
use std::sync::Arc;

/// The credentials of AWS's examples.
pub(crate) const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
pub(crate) const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

/// The time of AWS's examples: 24 May 2013, 0:00 UTC.
pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_369_353_600);

/// A source with one key.
pub(crate) struct OneKey(Arc<Key>);

impl OneKey {
    pub(crate) fn with_secret(secret: &str) -> Self {
        let principal = Arc::new(Principal::everywhere(ACCESS_KEY, "owner", Role::Admin));
        Self(Arc::new(Key { principal, secret: Secret::new(secret) }))
    }
}

impl KeySource for OneKey {
    fn find(&self, access_key: &str) -> Option<Arc<Key>> {
        (access_key == ACCESS_KEY).then(|| Arc::clone(&self.0))
    }
}

/// The head of a request with these headers.
pub(crate) fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let request = Request::builder().method(method).uri(target);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

/// Finds out who sent the request with this head and its query.
pub(crate) fn authenticate(
    head: &Parts,
    keys: &OneKey,
    now: Timestamp,
    rules: &AuthRules,
) -> Result<Authenticated, S3Error> {
    super::authenticate(head, &Query::parse(head.uri.query().unwrap_or_default()), keys, now, rules)
}

/// Verifies at the time of the examples.
pub(crate) fn verify(head: &Parts) -> Result<Authenticated, S3Error> {
    authenticate(head, &OneKey::with_secret(SECRET), NOW, &AuthRules::new("s3"))
}

fn is_verified(head: &Parts) -> bool {
    match verify(head) {
        Ok(authenticated) => authenticated.principal.is_some_and(|p| p.access_key == ACCESS_KEY),
        Err(error) => panic!("{error}\n{}", error.get("CanonicalRequest").unwrap_or_default()),
    }
}
