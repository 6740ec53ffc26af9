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
use mlgw_metadata::BarrierScope;
use mlgw_wire::copy_source::CopySource;
use mlgw_wire::target::RequestTarget;

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

/// Returns the node that answers a request instead of this one: that of remote-backed buckets, if the request
/// names such a bucket, also as the source of a copy. A target that is not well-formed is refused by any
/// node.
pub(crate) async fn other_owner(gateway: &Gateway, head: &Parts) -> Option<NodeId> {
    let owner = gateway.member.as_ref()?.remote_backed_at?;
    let target = RequestTarget::parse(head, &gateway.config.domains).ok()?;
    let source = source_bucket(head);
    let names = target.bucket.into_iter().chain(source);
    let mut has_waited = false;
    for name in names {
        if !has_waited && gateway.objects.catalogue.bucket(&name).is_none() {
            // If a majority does not answer, the request itself fails with that reason.
            let _ = gateway.objects.catalogue.barrier(BarrierScope::System).await;
            has_waited = true;
        }
        let bucket = gateway.objects.catalogue.bucket(&name);
        if bucket.is_some_and(|bucket| bucket.binding.is_some()) {
            return Some(owner);
        }
    }
    None
}

/// Returns the bucket of the source of a copy.
pub(crate) fn source_bucket(head: &Parts) -> Option<String> {
    let source = head.headers.get(COPY_SOURCE)?.to_str().ok()?;
    CopySource::parse(source).ok().map(|source| source.bucket)
}
