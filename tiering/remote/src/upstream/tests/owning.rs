//! Tests of prefixes that two servers share: which of them may delete, whatever the store does.

use super::*;
use crate::upstream::fake::{FakeS3Call, FakeS3Effect};
use mlgw_common::{ClusterId, Identity, Lineage, NodeName};

const MARK: &str = "pre/mlgw-owner";

/// Returns a lineage of cluster 1, node 2 with the given incarnation and its ancestors.
fn lineage(incarnation: u64, earlier: &[u64]) -> Lineage {
    let own = Identity { cluster: ClusterId(1), node: NodeName(2), incarnation: Incarnation(incarnation) };
    Lineage { own, earlier: earlier.iter().copied().map(Incarnation).collect(), ..Lineage::default() }
}

fn other_server() -> Lineage {
    let mut lineage = lineage(5, &[]);
    lineage.own.node = NodeName(3);
    lineage
}

/// Starts the server of `lineage` without claiming the prefix.
fn server(store: &FakeStore, lineage: Lineage) -> Upstream {
    upstream(store).owned_by(lineage).expect("random bytes")
}

async fn started(store: &FakeStore, lineage: Lineage) -> Upstream {
    let upstream = server(store, lineage);
    upstream.claim().await.expect("claimed");
    upstream
}

/// Puts an object into the store, and returns true if `upstream` removed it.
async fn removes(upstream: &Upstream, store: &FakeStore) -> bool {
    store.set_object(NAME, vec![1, 2, 3]);
    let (deletes, aborts) = (store.calls(FakeS3Call::Delete), store.calls(FakeS3Call::Abort));
    let removed = upstream.remove(OBJECT).await;
    let is_gone = store.object(NAME).is_none();
    assert_eq!(removed.is_ok(), is_gone, "{removed:?}");
    if !is_gone {
        assert!(upstream.abort(OBJECT, "u").await.is_err());
        assert_eq!((store.calls(FakeS3Call::Delete), store.calls(FakeS3Call::Abort)), (deletes, aborts));
    }
    is_gone
}

fn refusal(refused: Result<(), UpstreamError>) -> String {
    match refused {
        Err(UpstreamError::NotOwner { advice, .. }) => advice,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn of_two_servers_with_one_directory_the_one_that_started_first_deletes_nothing() {
    for ignores in [false, true] {
        let store = FakeStore::default();
        if ignores {
            store.ignore_conditions();
        }
        let first = started(&store, lineage(5, &[])).await;
        assert_eq!(first.honours_conditions(), Some(!ignores));
        assert!(removes(&first, &store).await);
        let second = started(&store, lineage(5, &[])).await;
        assert!(!removes(&first, &store).await);
        assert_eq!(first.ownership().map(|of| of.name()), Some("superseded"));
        assert!(removes(&second, &store).await);
        // The first server does not compare again, and never claims without an operator.
        store.forget_calls();
        first.claim().await.expect("compared before");
        assert!(!removes(&first, &store).await);
        assert_eq!((store.calls(FakeS3Call::Get), store.calls(FakeS3Call::Put)), (0, 0));
        // Its objects have their own names, so that its writes are not rejected.
        put(&first, &content(100), None).await.expect("stored");
        let third = started(&store, lineage(5, &[])).await;
        assert!(removes(&third, &store).await && !removes(&second, &store).await);
        first.adopt().await.expect("its directory is the right one");
        assert!(removes(&first, &store).await && !removes(&third, &store).await);
    }
}

#[tokio::test]
async fn a_new_incarnation_deletes_nothing_before_it_adopts_and_the_old_one_nothing_after() {
    let store = FakeStore::default();
    let original = started(&store, lineage(5, &[])).await;
    let restored = started(&store, lineage(6, &[5])).await;
    let stored = content(1000);
    put(&original, &stored, None).await.expect("stored");
    let object = object(1000, None);
    assert_eq!(restored.read(&object, 0, 1000).await.expect("read"), stored);
    assert!(!removes(&restored, &store).await && removes(&original, &store).await);
    let advice = refusal(restored.check_may_delete().await);
    let named = [lineage(5, &[]).own, lineage(6, &[]).own].map(|of| advice.contains(&of.to_string()));
    assert!(named == [true, true] && advice.contains("mlgw upstream adopt lake"), "{advice}");
    // A second start does not count as an adoption.
    let restored_again = started(&store, lineage(6, &[5])).await;
    assert!(!removes(&restored_again, &store).await && removes(&original, &store).await);
    restored_again.adopt().await.expect("adopted");
    assert!(removes(&restored_again, &store).await && !removes(&original, &store).await);
    let original_again = started(&store, lineage(5, &[])).await;
    assert!(!removes(&original_again, &store).await);
    assert_eq!(original_again.ownership().map(|of| of.name()), Some("superseded"));
    let restored_later = started(&store, lineage(6, &[5])).await;
    assert!(removes(&restored_later, &store).await, "the adopter starts again");
}

#[tokio::test]
async fn in_the_prefix_of_another_server_nothing_is_stored_deleted_or_adopted() {
    let store = FakeStore::default();
    let theirs = started(&store, other_server()).await;
    let mark = store.object(MARK);
    let ours = started(&store, lineage(5, &[])).await;
    assert!(!removes(&ours, &store).await);
    store.remove_object(NAME);
    assert!(put(&ours, &content(100), None).await.is_err());
    let advice = refusal(ours.adopt().await);
    let named = [other_server().own, lineage(5, &[]).own].map(|of| advice.contains(&of.to_string()));
    assert!(named == [true, true], "{advice}");
    assert_eq!((store.names(), store.object(MARK)), (vec![MARK.to_owned()], mark));
    assert!(removes(&theirs, &store).await);
    store.remove_object(MARK);
    ours.adopt().await.expect("the operator deleted the mark");
    assert!(removes(&ours, &store).await && !removes(&theirs, &store).await);
}

#[tokio::test]
async fn a_prefix_of_an_earlier_version_is_marked_by_the_first_start_and_not_by_a_restored_one() {
    let store = FakeStore::default();
    store.set_object(NAME, vec![1]);
    let restored = started(&store, lineage(6, &[5])).await;
    assert!(!removes(&restored, &store).await);
    assert_eq!(store.object(MARK), None);
    let first = started(&store, lineage(5, &[])).await;
    assert!(removes(&first, &store).await);
    assert_eq!(first.list().await.expect("listed"), [], "the mark is no segment");
    let empty = FakeStore::default();
    let restored = started(&empty, lineage(6, &[5])).await;
    assert!(removes(&restored, &empty).await, "an empty prefix has no other user");
}

#[tokio::test]
async fn an_unreachable_upstream_is_read_but_not_changed_until_its_mark_was_compared() {
    let store = FakeStore::default();
    for call in [FakeS3Call::Head, FakeS3Call::Get, FakeS3Call::Put] {
        store.fail(call, usize::MAX, FakeS3Effect::Break);
    }
    let upstream = server(&store, lineage(5, &[]));
    assert!(matches!(upstream.claim().await, Err(UpstreamError::Unreachable { .. })));
    assert!(!removes(&upstream, &store).await);
    assert!(put(&upstream, &content(100), None).await.is_err());
    store.heal();
    let object = object(3, None);
    assert_eq!(upstream.read(&object, 0, 3).await.expect("read"), &[1, 2, 3][..]);
    assert!(removes(&upstream, &store).await, "the request was retried");
    // A comparison that fails later does not grant a deletion either.
    store.fail(FakeS3Call::Get, usize::MAX, FakeS3Effect::Break);
    assert!(!removes(&upstream, &store).await);
    store.heal();
    assert!(removes(&upstream, &store).await);
}

#[tokio::test]
async fn a_server_recognizes_its_own_mark_after_a_lost_response() {
    for times in 1..=2 {
        let store = FakeStore::default();
        store.fail(FakeS3Call::Put, times, FakeS3Effect::BreakAfter);
        let first = started(&store, lineage(5, &[])).await;
        assert!(removes(&first, &store).await);
        store.fail(FakeS3Call::Put, times, FakeS3Effect::BreakAfter);
        let second = started(&store, lineage(5, &[])).await;
        assert!(removes(&second, &store).await && !removes(&first, &store).await);
    }
}

#[tokio::test]
async fn a_mark_that_is_gone_or_damaged_stops_deletes_and_a_store_that_keeps_none_gets_no_owner() {
    let store = FakeStore::default();
    let upstream = started(&store, lineage(5, &[])).await;
    let mark = store.object(MARK).expect("marked");
    for at in [0, mark.len() / 2, mark.len() - 1] {
        let mut damaged = mark.clone();
        damaged[at] ^= 1;
        store.set_object(MARK, damaged);
        assert!(!removes(&upstream, &store).await);
        store.set_object(MARK, mark.clone());
        assert!(removes(&upstream, &store).await, "damage in transfer is transient");
    }
    store.remove_object(MARK);
    assert!(!removes(&upstream, &store).await);
    assert!(refusal(upstream.check_may_delete().await).contains(MARK));
    upstream.adopt().await.expect("adopted");
    assert!(removes(&upstream, &store).await);
    let forgetful = FakeStore::default();
    forgetful.fail(FakeS3Call::Put, usize::MAX, FakeS3Effect::Discard);
    let upstream = server(&forgetful, lineage(5, &[]));
    assert!(upstream.claim().await.is_err());
    assert!(!removes(&upstream, &forgetful).await);
}

#[tokio::test]
async fn a_directory_is_marked_like_any_other_store() {
    let room = tempfile::tempdir().expect("a directory");
    let settings = UpstreamSettings {
        kind: UpstreamKind::Fs,
        endpoint: None,
        bucket: room.path().display().to_string(),
        region: String::new(),
        credentials: CredentialSource::Anonymous,
        ..settings()
    };
    let open = |lineage| Upstream::open(&settings).expect("opened").owned_by(lineage).expect("random bytes");
    let (first, second) = (open(lineage(5, &[])), open(lineage(5, &[])));
    first.claim().await.expect("claimed");
    put(&first, &content(100), None).await.expect("stored");
    second.claim().await.expect("claimed");
    assert!(first.remove(OBJECT).await.is_err());
    assert_eq!(second.list().await.expect("listed"), [OBJECT]);
    second.remove(OBJECT).await.expect("removed");
    let restored = open(lineage(6, &[5]));
    put(&restored, &content(100), None).await.expect("stored");
    assert!(restored.remove(OBJECT).await.is_err() && second.remove(OBJECT).await.is_ok());
}

#[test]
fn names_of_two_incarnations_differ_and_those_of_earlier_versions_stay() {
    use crate::upstream::objects::object_name;
    let id = |incarnation| ObjectId { incarnation: Incarnation(incarnation), ..OBJECT };
    assert_eq!(object_name(id(0)), "segments/00000000000000a7-000000000000000b.seg");
    assert_eq!(object_name(id(0xC)), "segments/00000000000000a7-000000000000000c-000000000000000b.seg");
}
