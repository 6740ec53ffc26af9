//! Upstreams against stores that do what they should, and what they should not.

mod checking;
pub(crate) mod fake;
mod gateway;
mod local;
mod opening;
mod owning;
mod putting;
mod reading;

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use mlgw_common::Secret;
use mlgw_common::ids::{Generation, SegmentId};
use zeroize::Zeroizing;

use super::*;
use fake::FakeStore;

/// The smallest part that opendal sends to S3.
const PART: u64 = 5 * MIB;
const OBJECT: ObjectId = ObjectId { segment: SegmentId(0xA7), incarnation: Incarnation(0), copy: 0xB };
const NAME: &str = "pre/segments/00000000000000a7-000000000000000b.seg";
const SECRET: &str = "wJalrXUtnFEMI-hush";

/// Nothing is waited for that does not happen.
const TUNING: Tuning = Tuning {
    part_bytes: PART,
    parts_at_once: 4,
    retry_first: Duration::ZERO,
    retry_max: Duration::ZERO,
    retries: 3,
};

fn settings() -> UpstreamSettings {
    UpstreamSettings {
        name: "lake".to_owned(),
        kind: UpstreamKind::S3,
        endpoint: Some("http://store.invalid".to_owned()),
        bucket: "bucket".to_owned(),
        prefix: "pre/".to_owned(),
        region: "us-east-1".to_owned(),
        addressing: Addressing::Auto,
        credentials: CredentialSource::Static {
            access_key: "AKIAEXAMPLE".to_owned(),
            secret: Secret::new(SECRET),
            session_token: None,
        },
        ca_file: None,
        proxy: None,
        encrypt: false,
        bytes_per_second: 0,
        persist_bytes_per_second: 0,
        etag: super::EtagTrust::Auto,
        requests_per_second: 0,
        timeout: Duration::from_secs(30),
    }
}

/// An upstream whose requests go to `store`.
fn upstream_with(settings: &UpstreamSettings, store: &FakeStore) -> Upstream {
    let connected = connect(settings).expect("right settings");
    Upstream::over_http(settings, connected, TUNING, store.clone())
}

fn upstream(store: &FakeStore) -> Upstream {
    upstream_with(&settings(), store)
}

/// The upstream "lake", for tests of who stores segments there.
pub(crate) fn lake(store: &FakeStore, encrypt: bool) -> Upstream {
    upstream_with(&UpstreamSettings { encrypt, ..settings() }, store)
}

fn encrypted(store: &FakeStore) -> Upstream {
    upstream_with(&UpstreamSettings { encrypt: true, ..settings() }, store)
}

fn key(of: u8) -> ReplicaKey {
    ReplicaKey::new(Zeroizing::new([of; 32]))
}

fn object(bytes: u64, key: Option<&ReplicaKey>) -> SegmentObject<'_> {
    SegmentObject { id: OBJECT, generation: Generation(1), bytes, key }
}

/// What is in a segment: no two parts, frames or pages of it are the same.
fn content(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8 ^ (n >> 16) as u8).collect()
}

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(content).expect("written");
    file
}

fn at_once(_: u64) -> Wait {
    Box::pin(async { Ok(()) })
}

async fn put(upstream: &Upstream, content: &[u8], key: Option<&ReplicaKey>) -> Result<Stored, UpstreamError> {
    let object = object(content.len() as u64, key);
    upstream.put_segment(&object, file(content), Resumed::never(), &mut at_once).await
}

/// How often it was asked for that, and went that way.
fn requests(upstream: &Upstream, op: Op, outcome: Outcome) -> u64 {
    let counted = upstream.metrics().requests.into_iter().find(|(of, went, _)| (*of, *went) == (op, outcome));
    counted.map_or(0, |(_, _, count)| count)
}
