//! Reports accesses to the policy engine: the caller, the object and the range of each request that is
//! going to succeed.
//!
//! A caller is identified by access key, address, user agent and the workload header. Claims that a client
//! makes about itself affect only the retention of blocks that it reads itself. Reads of remote-backed
//! buckets are reported block by block at the place where they are read.

use super::Gateway;
use super::request::AuthenticatedRequest;
use http::HeaderName;
use http::header::{CONTENT_LENGTH, USER_AGENT};
use mlgw_cache::policy_driver::{self, PolicyRequestContext};
use mlgw_common::Tier;
use mlgw_common::limits::INLINE_READ_BYTES_MAX;
use mlgw_common::{BucketId, ObjectKey, Timestamp};
use mlgw_formats::schema::{Bucket, ObjectVersion, Pair};
use mlgw_objects::read::FoundObject;
use mlgw_policies::language::{ConditionType, Fact, Facts, Property};
use mlgw_policies::workloads::WorkloadIdentity;
use mlgw_policies::{Caller, Op, RequestRank};
use mlgw_policy_runtime::Policies;
use mlgw_wire::lanes::workload;
use mlgw_wire::operation::{Operation, Support, Supported};
use std::cell::OnceCell;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

/// Header with the number of objects that a client reads at once.
const BATCH_SIZE: &str = "x-mlgw-batch-size";
/// Header with the number of accelerators that a client reads for.
const GPU_COUNT: &str = "x-mlgw-gpu-count";
static DECODED_LENGTH_HEADER: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");

/// Returns the caller of a request.
pub(super) fn caller(request: &AuthenticatedRequest<'_>) -> Caller {
    let headers = &request.head.headers;
    let agent = headers.get(USER_AGENT).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let with_address =
        |address: &[u8]| Caller::of(&request.principal.access_key, agent, workload(headers), address);
    match request.memory.address() {
        IpAddr::V4(address) => with_address(&address.octets()),
        IpAddr::V6(address) => with_address(&address.octets()),
    }
}

/// Returns the caller's claims about itself.
pub(super) fn identity(request: &AuthenticatedRequest<'_>) -> WorkloadIdentity {
    let headers = &request.head.headers;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    WorkloadIdentity {
        name: workload(headers).map(Into::into),
        user_agent: text(USER_AGENT.as_str()).map(Into::into),
        batch_size: text(BATCH_SIZE).and_then(|size| size.parse().ok()),
        gpu_count: text(GPU_COUNT).and_then(|count| count.parse().ok()),
    }
}

/// Facts about an object that is read, and about the server, for rules.
pub(super) struct ObjectRuleFacts<'a> {
    bucket: &'a Bucket,
    object: &'a ObjectVersion,
    now: Timestamp,
    policies: &'a Policies,
    /// Names, computed when a rule first needs them.
    tags: OnceCell<Vec<&'a str>>,
    metadata: OnceCell<Vec<&'a str>>,
}

impl<'a> ObjectRuleFacts<'a> {
    pub(super) fn new(
        gateway: &'a Gateway,
        bucket: &'a Bucket,
        object: &'a ObjectVersion,
        now: Timestamp,
    ) -> Self {
        let (tags, metadata) = (OnceCell::new(), OnceCell::new());
        Self { bucket, object, now, policies: &gateway.policies, tags, metadata }
    }
}

impl ObjectRuleFacts<'_> {
    /// True if the tags are known. The read of a remote-backed object does not return them.
    fn has_known_tags(&self) -> bool {
        self.bucket.binding.is_none() || !self.object.tags.is_empty()
    }
}

fn names(pairs: &[Pair]) -> Vec<&str> {
    pairs.iter().map(|pair| pair.name.as_str()).collect()
}

fn value_of<'a>(pairs: &'a [Pair], name: &str) -> Option<Fact<'a>> {
    pairs.iter().find(|pair| pair.name == name).map(|pair| Fact::Text(&pair.value))
}

impl Facts for ObjectRuleFacts<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        match property {
            Property::Bucket => Some(Fact::Text(&self.bucket.name)),
            Property::Tags | Property::Tag if !self.has_known_tags() => Some(Fact::Unknown),
            Property::Tags => Some(Fact::List(self.tags.get_or_init(|| names(&self.object.tags)))),
            Property::Tag => value_of(&self.object.tags, name),
            Property::Tier if self.bucket.binding.is_some() => Some(Fact::Text(Tier::Upstream.name())),
            Property::Metadata => {
                Some(Fact::List(self.metadata.get_or_init(|| names(&self.object.metadata))))
            }
            Property::MetadataEntry => value_of(&self.object.metadata, name),
            Property::Age => {
                let age_ms = self.now.as_millis().saturating_sub(self.object.modified_ms);
                Some(Fact::Duration(Duration::from_millis(u64::try_from(age_ms).unwrap_or(0))))
            }
            _ if property.row().condition_type == ConditionType::SystemContext => {
                self.policies.system().property_fact(property)
            }
            _ => None,
        }
    }
}

/// Records a read of an object that is stored here. Returns the rank with which rules have the read wait
/// for a disk.
pub(super) fn record_read(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    found: &FoundObject,
    range: Range<u64>,
) -> Option<RequestRank> {
    let identity = || identity(request);
    let about = ObjectRuleFacts::new(gateway, &found.bucket, &found.object, request.now);
    let may_wait = can_wait_for_disk(gateway, &range);
    let context = PolicyRequestContext {
        caller: caller(request),
        identity: &identity,
        facts: &about,
        may_wait_for_disk: may_wait,
    };
    let (bucket, size) = (found.bucket.bucket_id(), found.object.size);
    gateway.policy_driver.record_access(
        &policy_driver::ObservedRequest { context, bucket, key: &found.key, op: Op::Read, size },
        range,
    )
}

/// Records that an object stored here is about to be copied, which counts as a use.
pub(super) fn record_copy_source(gateway: &Gateway, found: &FoundObject) {
    let (bucket, key) = (found.bucket.bucket_id(), found.key.as_str());
    gateway.policy_driver.with_engine(|decider, now_us| decider.watched.record_use(now_us, bucket.0, key));
}

/// True if a read may have to wait for a disk: it is long, or other reads wait already. Short reads on an
/// idle disk take no place in a lane.
pub(super) fn can_wait_for_disk(gateway: &Gateway, range: &Range<u64>) -> bool {
    range.end - range.start > INLINE_READ_BYTES_MAX || gateway.objects.tiers.hot.queues().is_any_busy()
}

/// Records a successful request that changes objects.
pub(super) fn record_change(gateway: &Gateway, operation: Operation, request: &AuthenticatedRequest<'_>) {
    use Supported as S;
    let Support::Full(supported) = operation.support() else { return };
    let (op, known_size) = match supported {
        S::PutObject => (Op::Write, Some(stated_size(request))),
        S::CopyObject | S::CompleteMultipartUpload => (Op::Write, None),
        S::DeleteObject => (Op::Delete, Some(0)),
        S::PutObjectTagging | S::DeleteObjectTagging => return record_tags_changed(gateway, request),
        // Recorded key by key ([`record_delete`]).
        S::DeleteObjects => return,
        // Recorded by its handler, which finds the key in a field of the form.
        S::PostObject => return,
        // Change no object.
        S::CreateMultipartUpload | S::UploadPart | S::UploadPartCopy | S::AbortMultipartUpload => return,
        S::CreateBucket | S::DeleteBucket => return,
        // Reads; those of bytes are recorded by their handlers.
        S::GetObject
        | S::HeadObject
        | S::GetObjectAttributes
        | S::GetObjectTagging
        | S::ListParts
        | S::ListObjects
        | S::ListObjectsV2
        | S::ListObjectVersions
        | S::ListMultipartUploads
        | S::ListBuckets
        | S::HeadBucket
        | S::GetBucketLocation => return,
    };
    let (Some(key), Some(bucket)) = (&request.target.key, bucket_of(gateway, request)) else { return };
    let size = known_size.unwrap_or_else(|| {
        gateway.objects.catalogue.object(bucket, key).ok().flatten().map_or(0, |object| object.size)
    });
    record_access(gateway, request, bucket, key, op, size);
}

/// Records that the object's tags have changed, so that rules may decide differently. A pending deletion
/// waits until the rules are evaluated again.
fn record_tags_changed(gateway: &Gateway, request: &AuthenticatedRequest<'_>) {
    if let (Some(key), Some(bucket)) = (&request.target.key, bucket_of(gateway, request)) {
        gateway
            .policy_driver
            .with_engine(|decider, now_us| decider.watched.record_use(now_us, bucket.0, key.as_str()));
    }
}

/// Records that a DeleteObjects has deleted this key.
pub(super) fn record_delete(gateway: &Gateway, request: &AuthenticatedRequest<'_>, key: &str) {
    if let (Ok(key), Some(bucket)) = (ObjectKey::new(key), bucket_of(gateway, request)) {
        record_access(gateway, request, bucket, &key, Op::Delete, 0);
    }
}

fn bucket_of(gateway: &Gateway, request: &AuthenticatedRequest<'_>) -> Option<BucketId> {
    Some(gateway.objects.bucket(request.target.bucket.as_deref()?).ok()?.bucket_id())
}

/// Records an access to a whole object.
pub(super) fn record_access(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    bucket: BucketId,
    key: &ObjectKey,
    op: Op,
    size: u64,
) {
    let identity = || identity(request);
    let context =
        PolicyRequestContext { identity: &identity, ..PolicyRequestContext::of_caller(caller(request)) };
    gateway
        .policy_driver
        .record_access(&policy_driver::ObservedRequest { context, bucket, key, op, size }, 0..size);
}

/// Returns the size in bytes of the object that a request puts, as its headers state it.
fn stated_size(request: &AuthenticatedRequest<'_>) -> u64 {
    let stated = |name: &HeaderName| request.head.headers.get(name)?.to_str().ok()?.parse().ok();
    stated(&DECODED_LENGTH_HEADER).or_else(|| stated(&CONTENT_LENGTH)).unwrap_or(0)
}
