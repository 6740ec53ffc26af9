//! Headers of a request that are passed to an origin.

use crate::request::AuthenticatedRequest;
use http::{HeaderMap, HeaderName};

/// Copies the named headers unchanged.
pub(super) fn pass_headers(request: &AuthenticatedRequest<'_>, names: &[&'static str], to: &mut HeaderMap) {
    for name in names {
        for value in request.head.headers.get_all(*name) {
            to.append(HeaderName::from_static(name), value.clone());
        }
    }
}
