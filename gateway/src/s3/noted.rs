//! What the policy engine hears of requests: who asks for what, once it is clear that it will be answered.
//!
//! Who asks is told apart by key, address, user agent and the workload that they say they are of. What a client says of itself moves only what is
//! kept of what it reads itself. Reads of bound buckets are told as they happen, block by block, where they are read.

use super::Gateway;
use super::get::Found;
use super::lanes::workload;
use super::operation::Operation;
use super::request::Request;
use http::header::{CONTENT_LENGTH, USER_AGENT};
use mlgw_policies::{Caller, Op};
use mlgw_tiering::policy;
use std::net::IpAddr;
use std::ops::Range;

/// The caller of a request.
pub(super) fn caller(request: &Request<'_>) -> Caller {
    let headers = &request.head.headers;
    let agent = headers.get(USER_AGENT).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let of = |address: &[u8]| Caller::of(&request.principal.access_key, agent, workload(headers), address);
    match request.memory.address() {
        IpAddr::V4(address) => of(&address.octets()),
        IpAddr::V6(address) => of(&address.octets()),
    }
}

/// Bytes of one of our own objects are read.
pub(super) fn read(gateway: &Gateway, request: &Request<'_>, found: &Found, range: Range<u64>) {
    let (caller, bucket, size) = (caller(request), found.bucket.bucket_id(), found.object.size);
    let request = policy::Request { caller, bucket, key: &found.key, op: Op::Read, size };
    gateway.policies.note(&request, range);
}

/// A request that changes objects was answered.
pub(super) fn changed(gateway: &Gateway, operation: Operation, request: &Request<'_>) {
    use Operation as O;
    let op = match operation {
        O::PutObject | O::CopyObject | O::CompleteMultipartUpload => Op::Write,
        O::DeleteObject => Op::Delete,
        _ => return,
    };
    let (Some(key), Some(name)) = (&request.target.key, request.target.bucket.as_deref()) else { return };
    let Ok(bucket) = gateway.any_bucket(name) else { return };
    let size = match operation {
        O::PutObject => length(request),
        O::DeleteObject => 0,
        _ => gateway.catalogue.object(bucket.bucket_id(), key).ok().flatten().map_or(0, |object| object.size),
    };
    let request = policy::Request { caller: caller(request), bucket: bucket.bucket_id(), key, op, size };
    gateway.policies.note(&request, 0..size);
}

/// Bytes of the object that a request puts.
fn length(request: &Request<'_>) -> u64 {
    let said = |name| request.head.headers.get(name)?.to_str().ok()?.parse().ok();
    said("x-amz-decoded-content-length").or_else(|| said(CONTENT_LENGTH.as_str())).unwrap_or(0)
}
