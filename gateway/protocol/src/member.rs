//! The part of a node in its cluster, as far as requests depend on it.
//!
//! A member answers requests for all buckets from its own rows and segments, except those that read or write
//! a remote-backed bucket, which one node answers. Which buckets are remote-backed follows from the rows of
//! this node. A bucket that they do not have may be new, so the request waits until they are current. Nothing
//! is stored here.

use crate::Gateway;
use http::HeaderValue;
use http::header::HeaderName;
use http::request::Parts;
use mlgw_common::NodeId;
use mlgw_metadata::{BarrierError, BarrierScope};
use mlgw_wire::copy_source::CopySource;
use mlgw_wire::target::RequestTarget;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// Response header with the id of the node that answered.
pub const NODE_HEADER: HeaderName = HeaderName::from_static("x-mlgw-node");

/// Request header with the source of a copy.
const COPY_SOURCE: &str = "x-amz-copy-source";

/// Part of a node in its cluster.
#[derive(Clone, Debug)]
pub struct MemberPart {
    /// Its id, as the value of [`NODE_HEADER`].
    pub(crate) header: HeaderValue,
    /// The node that answers requests for remote-backed buckets, if it is another one.
    pub(crate) remote_backed_at: Option<NodeId>,
}

impl MemberPart {
    /// Returns the part of the node `own`. Requests for remote-backed buckets are answered by
    /// `remote_backed_at`.
    #[must_use]
    pub fn new(own: NodeId, remote_backed_at: NodeId) -> Self {
        Self {
            header: HeaderValue::from(own.get()),
            remote_backed_at: (remote_backed_at != own).then_some(remote_backed_at),
        }
    }
}

/// Returns the node that answers a request for `target` instead of this one: that of remote-backed buckets,
/// if the request names such a bucket, also as the source of a copy.
///
/// # Errors
/// If the rows of buckets may be old, and no leader confirms them.
pub(crate) async fn other_owner(
    gateway: &Gateway,
    head: &Parts,
    target: &RequestTarget,
) -> Result<Option<NodeId>, BarrierError> {
    let Some(owner) = gateway.member.as_ref().and_then(|member| member.remote_backed_at) else {
        return Ok(None);
    };
    let source = source_bucket(head);
    let names = || target.bucket.as_deref().into_iter().chain(source.as_deref());
    let catalogue = &gateway.objects.catalogue;
    if names().any(|name| catalogue.bucket(name).is_none()) {
        catalogue.barrier(BarrierScope::System).await?;
    }
    let is_bound = |name: &str| catalogue.bucket(name).is_some_and(|bucket| bucket.binding.is_some());
    Ok(names().any(is_bound).then_some(owner))
}

/// Returns the bucket of the source of a copy, which a header names, or a parameter of a presigned URL.
pub(crate) fn source_bucket(head: &Parts) -> Option<String> {
    let source = match head.headers.get(COPY_SOURCE) {
        Some(source) => Cow::Borrowed(source.to_str().ok()?),
        None => source_parameter(head.uri.query()?)?,
    };
    CopySource::parse(&source).ok().map(|source| source.bucket)
}

/// Returns the source of a copy in a query.
fn source_parameter(query: &str) -> Option<Cow<'_, str>> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(COPY_SOURCE))?;
    percent_decode_str(value).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::source_bucket;
    use mlgw_testing::signer::head;

    #[test]
    fn the_source_of_a_copy_is_in_a_header_or_in_a_presigned_url() {
        let of = |target: &str, headers: &[(&str, &str)]| source_bucket(&head("PUT", target, headers));
        assert_eq!(of("/b/k", &[("x-amz-copy-source", "/from/key")]).as_deref(), Some("from"));
        let presigned = "/b/k?X-Amz-Expires=9&X-Amz-Copy-Source=from%2Fa%252Fb&X-Amz-Signature=0";
        assert_eq!(of(presigned, &[]).as_deref(), Some("from"));
        for none in ["/b/k", "/b/k?tagging", "/b/k?x-amz-copy-source"] {
            assert_eq!(of(none, &[]), None, "{none}");
        }
    }
}
