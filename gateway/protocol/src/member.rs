//! The part of a node in its cluster, as far as requests depend on it.
//!
//! A member answers requests for the keys of the groups that it has, from its own rows and segments. Requests
//! that read or write a remote-backed bucket are answered by the duty node while it has a lease. The rows of
//! this node name the remote-backed buckets. A bucket that they do not have may be new, so the request waits
//! until they are current. A node whose clock deviates refuses changes, which it would store with a wrong
//! time. A node whose directory for new segments is not used leaves changes of local buckets to other nodes.
//! Nothing is stored here.

use crate::Gateway;
use arc_swap::ArcSwap;
use http::header::{HeaderName, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use mlgw_common::time::{Instant, sleep};
use mlgw_common::{BucketId, CheckedClock, NodeId, ObjectKey};
use mlgw_formats::schema::Bucket;
use mlgw_metadata::{BarrierError, BarrierScope, Catalogue};
use mlgw_remote::origin::OriginFence;
use mlgw_wire::copy_source::CopySource;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::target::RequestTarget;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Response header with the id of the node that answered.
pub const NODE_HEADER: HeaderName = HeaderName::from_static("x-mlgw-node");

/// Response header of a read that no majority has confirmed.
pub const STALE_HEADER: HeaderName = HeaderName::from_static("x-mlgw-stale");

/// Time for which a barrier is waited for while most voters of one of its groups do not answer: they may have
/// returned since the last call.
const LOST_WAIT: Duration = Duration::from_millis(500);

/// Request header with the source of a copy.
const COPY_SOURCE: &str = "x-amz-copy-source";

/// Pause before the owner of remote-backed buckets is looked up again while this node takes them over.
const TAKE_OVER_PAUSE: Duration = Duration::from_millis(20);

/// State of a node that depends on the other nodes, and what it does without them.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// Its clock, compared with those of the other nodes.
    pub clock: CheckedClock,
    /// The groups on this node that have lost their majority: most of their voters do not answer it.
    pub lost_groups: watch::Receiver<BTreeSet<u32>>,
    /// True if reads are answered from its own rows while no majority confirms them.
    pub reads_stale: bool,
}

/// Part of a node in its cluster.
#[derive(Clone, Debug)]
pub struct MemberPart {
    /// Its id, as the value of [`NODE_HEADER`].
    pub(crate) header: HeaderValue,
    own: NodeId,
    /// Its permission to serve remote-backed buckets, if this gateway has them.
    remote_backed: Option<OriginFence>,
    /// Its state that depends on the other nodes.
    view: MemberView,
}

impl MemberPart {
    /// Returns the part of the node `own`. With `remote_backed` it answers requests for remote-backed buckets
    /// itself while it has a lease.
    #[must_use]
    pub fn new(own: NodeId, remote_backed: Option<OriginFence>, view: MemberView) -> Self {
        Self { header: HeaderValue::from(own.get()), own, remote_backed, view }
    }

    fn serves_remote_backed(&self) -> bool {
        self.remote_backed.as_ref().is_some_and(OriginFence::holds)
    }

    /// True if reads are answered from the rows of this node while no majority confirms them.
    pub(crate) const fn reads_stale(&self) -> bool {
        self.view.reads_stale
    }

    /// True while a group that a request needs has lost its majority: `is_needed` is given the lost groups.
    fn lacks_any(&self, is_needed: impl FnOnce(&BTreeSet<u32>) -> bool) -> bool {
        let lost = self.view.lost_groups.borrow();
        !lost.is_empty() && is_needed(&lost)
    }

    /// Waits for a barrier; `has_any_in` is true if lost groups include one of its groups. Then the wait is
    /// cut short.
    ///
    /// # Errors
    /// The error of the barrier; [`BarrierError::NoQuorum`] if it was not passed in time.
    pub(crate) async fn unless_lost<T>(
        &self,
        has_any_in: impl Fn(&BTreeSet<u32>) -> bool,
        barrier: impl Future<Output = Result<T, BarrierError>>,
    ) -> Result<T, BarrierError> {
        // Polled only if the barrier has to wait.
        let lost = async {
            let mut lost_groups = self.view.lost_groups.clone();
            while lost_groups.wait_for(&has_any_in).await.is_ok() {
                sleep(LOST_WAIT).await;
                if self.lacks_any(&has_any_in) {
                    return;
                }
            }
            // Without a sender nothing is known any more, and the barrier decides.
            std::future::pending().await
        };
        tokio::select! {
            biased;
            passed = barrier => passed,
            () = lost => Err(BarrierError::NoQuorum),
        }
    }
}

/// True if requests with this method change something.
pub(crate) const fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Refuses a change on a node whose clock deviates too much.
///
/// # Errors
/// 503 with the reason `ClockSkew`.
pub(crate) fn check_clock(gateway: &Gateway) -> Result<(), S3Error> {
    let Some(skew_ms) = gateway.member.as_ref().and_then(|member| member.view.clock.refused_skew_ms()) else {
        return Ok(());
    };
    Err(S3Error::new(Code::ServiceUnavailable)
        .field("Reason", "ClockSkew")
        .header(RETRY_AFTER, HeaderValue::from_static(S3Error::RETRY_AFTER_SECS))
        .caused_by(format!("the clock of this node deviates by {skew_ms} ms"))
        .message("The clock of this node deviates from those of the other nodes. Use another node."))
}

/// True for a direct change of a key whose bytes the nodes of a set store without this node. It has the rows,
/// and would append the bytes to segments of the first set. Copies are served here: another node may not
/// have the rows of the source.
pub(crate) fn is_stored_elsewhere(gateway: &Gateway, head: &Parts, target: &RequestTarget) -> bool {
    let catalogue = &gateway.objects.catalogue;
    let of_key = || {
        let bucket = catalogue.bucket(target.bucket.as_deref()?).filter(|bucket| bucket.binding.is_none())?;
        Some(catalogue.is_stored_elsewhere(bucket.bucket_id(), target.key.as_ref()?))
    };
    is_change(&head.method) && catalogue.has_sets() && of_key() == Some(true) && copy_source(head).is_none()
}

/// True for a change of a local bucket while the directory for new segments is not used: another node stores
/// what belongs to it.
pub(crate) fn lacks_disk(gateway: &Gateway, head: &Parts, target: &RequestTarget) -> bool {
    is_change(&head.method) && !gateway.objects.tiers.hot.can_append() && !names_bound(gateway, head, target)
}

/// True if a request names a remote-backed bucket, also as the source of a copy.
fn names_bound(gateway: &Gateway, head: &Parts, target: &RequestTarget) -> bool {
    let catalogue = &gateway.objects.catalogue;
    let is_bound = |name: &str| catalogue.bucket(name).is_some_and(|bucket| bucket.binding.is_some());
    let source = source_bucket(head);
    target.bucket.as_deref().into_iter().chain(source.as_deref()).any(is_bound)
}

/// The gateway of a member. It is replaced when the node takes remote-backed buckets over, or hands them
/// over.
pub type MemberGateway = ArcSwap<Gateway>;

/// The gateway that answers a request, or the other node that does.
pub(crate) enum RequestOwner {
    Here(Arc<Gateway>),
    Elsewhere(NodeId),
    /// This node is about to take the bucket over.
    TakingOver,
}

/// Returns the owner of a request for `target`: the duty node, if the request names a remote-backed bucket,
/// also as the source of a copy; else this node, or another one if this one does not have the rows. Waits
/// while this node is about to take such buckets over, and not longer than `until`. The wait for current rows
/// has its own limit.
///
/// # Errors
/// If the rows of buckets may be old, and no leader confirms them.
pub(crate) async fn owner_of(
    gateways: &MemberGateway,
    head: &Parts,
    target: &RequestTarget,
    until: Instant,
) -> Result<RequestOwner, BarrierError> {
    loop {
        let gateway = gateways.load_full();
        match duty_node_of(&gateway, head, target).await? {
            None => {
                return Ok(match node_with_rows(&gateway, head, target) {
                    Some(other) => RequestOwner::Elsewhere(other),
                    None => RequestOwner::Here(gateway),
                });
            }
            Some(owner) if gateway.member.as_ref().is_none_or(|member| member.own != owner) => {
                return Ok(RequestOwner::Elsewhere(owner));
            }
            Some(_) if Instant::now() >= until => return Ok(RequestOwner::TakingOver),
            Some(_) => sleep(TAKE_OVER_PAUSE).await,
        }
    }
}

/// Returns the duty node if it answers a request for `target`, and this gateway does not.
async fn duty_node_of(
    gateway: &Gateway,
    head: &Parts,
    target: &RequestTarget,
) -> Result<Option<NodeId>, BarrierError> {
    let Some(member) = gateway.member.as_ref().filter(|member| !member.serves_remote_backed()) else {
        return Ok(None);
    };
    let source = source_bucket(head);
    let names = || target.bucket.as_deref().into_iter().chain(source.as_deref());
    let catalogue = &gateway.objects.catalogue;
    if names().any(|name| catalogue.bucket(name).is_none()) {
        let is_system = |lost: &BTreeSet<u32>| catalogue.has_any_in(BarrierScope::System, lost);
        member.unless_lost(is_system, catalogue.barrier(BarrierScope::System)).await?;
    }
    Ok(names_bound(gateway, head, target).then(|| catalogue.duty().node_id()))
}

/// Returns another node that has the rows of a request for `target`, if this one does not have them. For a
/// copy that is one with all groups.
fn node_with_rows(gateway: &Gateway, head: &Parts, target: &RequestTarget) -> Option<NodeId> {
    let catalogue = &gateway.objects.catalogue;
    if !catalogue.has_sets() {
        return None;
    }
    let other = |scope: BarrierScope<'_>| catalogue.other_node_with(scope);
    let of_target = target_scope(catalogue, target).and_then(other);
    let Some(source) = copy_source(head) else { return of_target };
    let of_source =
        || catalogue.bucket(&source.bucket).and_then(|bucket| other(key_scope(&bucket, &source.key)));
    of_target.or_else(of_source)?;
    other(BarrierScope::AllGroups)
}

/// The group of a key of a bucket.
const fn key_scope<'a>(bucket: &Bucket, key: &'a ObjectKey) -> BarrierScope<'a> {
    BarrierScope::Key(BucketId(bucket.id), key)
}

/// The groups of the bucket or key that a request names; `None` without a bucket that exists here.
fn target_scope<'a>(catalogue: &Catalogue, target: &'a RequestTarget) -> Option<BarrierScope<'a>> {
    let bucket = catalogue.bucket(target.bucket.as_deref()?)?;
    Some(match &target.key {
        Some(key) => key_scope(&bucket, key),
        None => BarrierScope::Bucket(bucket.bucket_id()),
    })
}

/// True if most voters of a group that a request waits for do not answer this node. Those of the system group
/// are needed for changes, and for what depends on the rows of buckets.
pub(crate) fn is_lost(gateway: &Gateway, head: &Parts, target: &RequestTarget) -> bool {
    let catalogue = &gateway.objects.catalogue;
    let is_needed = |lost: &BTreeSet<u32>| {
        let has_any = |scope: BarrierScope<'_>| catalogue.has_any_in(scope, lost);
        let of_target = target_scope(catalogue, target);
        let needs_system = is_change(&head.method) || target.key.is_none() || of_target.is_none();
        let of_source = || {
            let source = copy_source(head)?;
            let bucket = catalogue.bucket(&source.bucket)?;
            Some(has_any(key_scope(&bucket, &source.key)))
        };
        needs_system && has_any(BarrierScope::System)
            || of_target.is_some_and(has_any)
            || of_source() == Some(true)
    };
    gateway.member.as_ref().is_some_and(|member| member.lacks_any(is_needed))
}

/// Returns the bucket of the source of a copy.
pub(crate) fn source_bucket(head: &Parts) -> Option<String> {
    copy_source(head).map(|source| source.bucket)
}

/// Returns the source of a copy, which a header names, or a parameter of a presigned URL.
pub(crate) fn copy_source(head: &Parts) -> Option<CopySource> {
    match head.headers.contains_key(COPY_SOURCE) {
        true => source_in_header(&head.headers),
        false => CopySource::parse(&source_parameter(head.uri.query()?)?).ok(),
    }
}

/// Returns the source of a copy that a header names.
pub(crate) fn source_in_header(headers: &HeaderMap) -> Option<CopySource> {
    CopySource::parse(std::str::from_utf8(headers.get(COPY_SOURCE)?.as_bytes()).ok()?).ok()
}

/// Returns the source of a copy in a query.
fn source_parameter(query: &str) -> Option<Cow<'_, str>> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(COPY_SOURCE))?;
    percent_decode_str(value).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::{LOST_WAIT, MemberPart, MemberView, source_bucket};
    use mlgw_common::clock::ManualClock;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_common::{CheckedClock, NodeId};
    use mlgw_metadata::BarrierError;
    use mlgw_testing::signer::head;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;

    #[tokio::test(start_paused = true)]
    async fn a_barrier_is_not_waited_for_while_most_voters_do_not_answer() {
        const LONG: Duration = Duration::from_secs(2);
        let lost = watch::Sender::new(BTreeSet::new());
        let clock = CheckedClock::alone(Arc::new(ManualClock::default()));
        let view = MemberView { clock, lost_groups: lost.subscribe(), reads_stale: false };
        let member = MemberPart::new(NodeId(2), None, view);
        let barrier = |after| async move {
            sleep(after).await;
            Ok(())
        };
        // A barrier of group 1 that takes this long.
        let pass = |after| member.unless_lost(|lost: &BTreeSet<u32>| lost.contains(&1), barrier(after));
        assert_eq!(pass(LONG).await, Ok(()), "a slow one");
        lost.send_replace([2].into());
        assert_eq!(pass(LONG).await, Ok(()), "another group is lost");
        lost.send_replace([1, 2].into());
        let begun = Instant::now();
        assert_eq!(pass(LONG).await, Err(BarrierError::NoQuorum));
        assert_eq!(begun.elapsed(), LOST_WAIT);
        assert_eq!(pass(LOST_WAIT / 2).await, Ok(()), "they have just returned");
        let returning = async {
            sleep(LOST_WAIT / 2).await;
            lost.send_replace([2].into());
        };
        let (passed, ()) = tokio::join!(pass(LONG), returning);
        assert_eq!(passed, Ok(()), "they return meanwhile");
        lost.send_replace([1].into());
        drop(lost);
        assert_eq!(pass(LONG).await, Err(BarrierError::NoQuorum));
    }

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
