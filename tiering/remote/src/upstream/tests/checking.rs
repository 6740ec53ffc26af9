//! Tests of `check`: each step names the missing permission, and no object is left behind.

use super::*;
use crate::upstream::fake::{FakeS3Call, FakeS3Effect, FakeStore};

/// Returns an upstream over `store`, and a listener at the address of the upstream.
async fn upstream_with_listener(store: &FakeStore) -> (Upstream, tokio::net::TcpListener) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    (upstream_with(&UpstreamSettings { endpoint: Some(endpoint), ..settings() }, store), listener)
}

async fn faults(store: &FakeStore) -> Vec<(CheckVerb, Option<&'static str>)> {
    let (upstream, _listener) = upstream_with_listener(store).await;
    let steps = upstream.check().await;
    let failed = steps.into_iter().filter(|step| step.fault.is_some());
    failed.map(|step| (step.verb, step.missing)).collect()
}

#[tokio::test]
async fn a_complete_store_passes_and_is_unchanged() {
    let store = FakeStore::default();
    store.set_object(NAME, vec![1]);
    let (upstream, _listener) = upstream_with_listener(&store).await;
    let steps = upstream.check().await;
    assert!(steps.iter().all(|step| step.fault.is_none()), "{steps:?}");
    use CheckVerb::{Abort, Credentials, Delete, List, Multipart, Range, Reach, Read, Write};
    let verbs: Vec<CheckVerb> = steps.iter().map(|step| step.verb).collect();
    assert_eq!(verbs, [Reach, Credentials, List, Write, Read, Range, Multipart, Abort, Delete]);
    assert_eq!((store.names(), store.open_uploads()), (vec![NAME.to_owned()], 0));
    assert_eq!(store.calls(FakeS3Call::Abort), 1);
}

#[tokio::test]
async fn the_missing_permission_is_named() {
    let denied = FakeS3Effect::Status(403, "AccessDenied");
    for (call, wanted) in [
        (FakeS3Call::List, vec![(CheckVerb::List, Some("s3:ListBucket"))]),
        (FakeS3Call::Put, vec![(CheckVerb::Write, Some("s3:PutObject"))]),
        (
            FakeS3Call::Get,
            vec![(CheckVerb::Read, Some("s3:GetObject")), (CheckVerb::Range, Some("s3:GetObject"))],
        ),
        (
            FakeS3Call::CreateUpload,
            vec![
                (CheckVerb::Multipart, Some("s3:PutObject")),
                (CheckVerb::Abort, Some("s3:AbortMultipartUpload")),
            ],
        ),
        (FakeS3Call::Abort, vec![(CheckVerb::Abort, Some("s3:AbortMultipartUpload"))]),
        (FakeS3Call::Delete, vec![(CheckVerb::Delete, Some("s3:DeleteObject"))]),
    ] {
        let store = FakeStore::default();
        store.fail(call, usize::MAX, denied);
        assert_eq!(faults(&store).await, wanted, "{call:?}");
    }
}

#[tokio::test]
async fn a_check_ends_at_an_unknown_caller_or_an_unreachable_store() {
    let store = FakeStore::default();
    store.fail(FakeS3Call::Get, 1, FakeS3Effect::Status(403, "InvalidAccessKeyId"));
    assert_eq!(faults(&store).await, [(CheckVerb::Credentials, None)]);
    assert_eq!(store.calls(FakeS3Call::Put), 0);
    // The port was free a moment ago, so that nothing listens there.
    let (upstream, listener) = upstream_with_listener(&store).await;
    drop(listener);
    let steps = upstream.check().await;
    let fault = steps[0].fault.clone().unwrap_or_default();
    assert!(steps.len() == 1 && fault.starts_with("TCP: cannot connect to 127.0.0.1"), "{steps:?}");
    let steps = super::upstream(&store).check().await;
    let fault = steps[0].fault.clone().unwrap_or_default();
    assert!(steps.len() == 1 && fault.starts_with("DNS: cannot resolve store.invalid"), "{steps:?}");
}

#[tokio::test]
async fn the_steps_before_a_fault_are_reported() {
    let store = FakeStore::default();
    let (upstream, _listener) = upstream_with_listener(&store).await;
    let steps = upstream.check_under(Err(getrandom::Error::UNSUPPORTED)).await;
    let found: Vec<_> = steps.iter().map(|step| (step.verb, step.fault.is_some())).collect();
    let expected = [(CheckVerb::Reach, false), (CheckVerb::Credentials, false), (CheckVerb::Write, true)];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_mismatch_on_read_back_is_reported() {
    for (call, effect, verb) in [
        (FakeS3Call::Put, FakeS3Effect::Flip, CheckVerb::Read),
        (FakeS3Call::Put, FakeS3Effect::Discard, CheckVerb::Read),
        (FakeS3Call::Part(1), FakeS3Effect::Discard, CheckVerb::Multipart),
    ] {
        let store = FakeStore::default();
        store.fail(call, 1, effect);
        assert!(faults(&store).await.iter().any(|(of, _)| *of == verb), "{call:?} {effect:?}");
        assert_eq!(store.names(), [""; 0], "{call:?} {effect:?}");
    }
}

#[tokio::test]
async fn an_object_left_behind_is_named() {
    let store = FakeStore::default();
    store.fail(FakeS3Call::Delete, usize::MAX, FakeS3Effect::Status(403, "AccessDenied"));
    let (upstream, _listener) = upstream_with_listener(&store).await;
    let steps = upstream.check().await;
    let fault = steps.iter().find_map(|step| step.fault.clone()).unwrap_or_default();
    let left = store.names().first().cloned().unwrap_or_default();
    assert!(
        fault.contains(left.trim_start_matches("pre/")) && fault.contains("was not deleted"),
        "{fault} {left}"
    );
}
