//! Buckets over four groups: crashes between the steps, stale epochs, writes while a deletion is being
//! decided.

use super::model_tests::{copy_dir, four_groups};
use super::testing::{NOW, bucket, delete, do_put, key, name, new_bucket, put, version};
use super::{Catalogue, DeleteBucketError, NewBucket, ProposeError};
use mlgw_formats::cluster_version::{DUTY_CLUSTER_VERSION, SERVING_CLUSTER_VERSION};
use mlgw_formats::command::{
    Change, Command, CreateBucket, FreezeBucket, MirrorBucket, Reject, Reply, SetBucketState, ThawBucket,
};
use mlgw_formats::schema::{BindMode, Binding, BucketState};
use std::path::Path;
use std::sync::Arc;

async fn step(catalogue: &Catalogue, group: u32, change: Change) -> Result<Reply, ProposeError> {
    catalogue.inner.propose_to(group, Arc::new(Command::from(change))).await
}

fn state(id: u64, state: BucketState) -> Change {
    Change::SetBucketState(SetBucketState { name: "alpha".into(), bucket_id: id, state: state as i32 })
}

fn freeze(bucket_id: u64, epoch: Option<u64>) -> Change {
    Change::FreezeBucket(FreezeBucket { bucket_id, epoch })
}

fn thaw(bucket_id: u64, epoch: Option<u64>) -> Change {
    Change::ThawBucket(ThawBucket { bucket_id, epoch })
}

/// The catalogue as the next start finds it after a kill.
async fn kill_and_reopen(catalogue: Catalogue, dir: &Path, next: &Path) -> Catalogue {
    copy_dir(dir, next);
    catalogue.shutdown().await;
    Catalogue::open(four_groups(next)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_creation_is_finished_at_open() {
    for mirrored in [0, 2, 4] {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let catalogue = Catalogue::open(four_groups(&one)).await.unwrap();
        let create = CreateBucket { name: "alpha".into(), owner: "o".into(), ..CreateBucket::default() };
        let made = step(&catalogue, 0, Change::CreateBucket(create)).await.unwrap();
        let Reply::Bucket(made) = made else { panic!("{made:?}") };
        for group in 0..mirrored {
            step(&catalogue, group, Change::MirrorBucket(MirrorBucket::from(&made))).await.unwrap();
        }
        assert!(catalogue.bucket("alpha").is_none(), "it is not in use yet");
        let catalogue = kill_and_reopen(catalogue, &one, &two).await;
        let alpha = catalogue.bucket("alpha").unwrap();
        for object in ["a", "b", "m", "z"] {
            do_put(&catalogue, &alpha, object, 1).await;
        }
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_deletion_is_decided_again_at_open() {
    for (frozen, empty) in [(0, true), (3, true), (2, false)] {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let catalogue = Catalogue::open(four_groups(&one)).await.unwrap();
        let alpha = bucket(&catalogue, "alpha").await;
        if !empty {
            do_put(&catalogue, &alpha, "z", 1).await;
        }
        step(&catalogue, 0, state(alpha.id, BucketState::Deleting)).await.unwrap();
        for group in 0..frozen {
            step(&catalogue, group, freeze(alpha.id, None)).await.unwrap();
        }
        let catalogue = kill_and_reopen(catalogue, &one, &two).await;
        match catalogue.bucket("alpha") {
            None => assert!(empty),
            Some(again) => {
                assert!(!empty && again.epoch > alpha.epoch);
                assert!(catalogue.object(again.bucket_id(), &key("z")).unwrap().is_some());
                do_put(&catalogue, &again, "a", 1).await;
            }
        }
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_freeze_of_an_earlier_deletion_does_not_freeze_an_active_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    catalogue.raise_cluster_version(SERVING_CLUSTER_VERSION).await.unwrap();
    let alpha = bucket(&catalogue, "alpha").await;
    do_put(&catalogue, &alpha, "z", 1).await;
    // The runner before this one proposed the same freezes, and they were delayed.
    assert_eq!(catalogue.delete_bucket(&name("alpha")).await, Err(DeleteBucketError::NotEmpty));
    let active = catalogue.bucket("alpha").unwrap();
    assert_eq!((active.state(), active.epoch), (BucketState::Active, alpha.epoch + 1));
    for group in 0..4 {
        let delayed = step(&catalogue, group, freeze(alpha.id, Some(alpha.epoch))).await;
        assert_eq!(delayed, Err(ProposeError::Rejected(Reject::StaleEpoch)), "group {group}");
    }
    for object in ["a", "b", "m", "z"] {
        do_put(&catalogue, &active, object, 1).await;
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_return_to_active_is_completed_at_open() {
    for thawed in 1..4 {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1"), dir.path().join("2"));
        let catalogue = Catalogue::open(four_groups(&one)).await.unwrap();
        catalogue.raise_cluster_version(SERVING_CLUSTER_VERSION).await.unwrap();
        let alpha = bucket(&catalogue, "alpha").await;
        step(&catalogue, 0, state(alpha.id, BucketState::Deleting)).await.unwrap();
        for group in 0..4 {
            step(&catalogue, group, freeze(alpha.id, Some(alpha.epoch))).await.unwrap();
        }
        let next = MirrorBucket { epoch: alpha.epoch + 1, ..MirrorBucket::from(&*alpha) };
        for group in 0..thawed {
            step(&catalogue, group, Change::MirrorBucket(next.clone())).await.unwrap();
            step(&catalogue, group, thaw(alpha.id, Some(next.epoch))).await.unwrap();
        }
        let catalogue = kill_and_reopen(catalogue, &one, &two).await;
        let again = catalogue.bucket("alpha").expect("it was decided to keep it");
        assert_eq!((again.state(), again.epoch), (BucketState::Active, next.epoch));
        for object in ["a", "b", "m", "z"] {
            do_put(&catalogue, &again, object, 1).await;
        }
        assert_eq!(catalogue.delete_bucket(&name("alpha")).await, Err(DeleteBucketError::NotEmpty));
        catalogue.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_with_a_stale_epoch_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let stale = bucket(&catalogue, "alpha").await;
    do_put(&catalogue, &stale, "z", 1).await;
    assert_eq!(catalogue.delete_bucket(&name("alpha")).await, Err(DeleteBucketError::NotEmpty));
    assert!(catalogue.bucket("alpha").unwrap().epoch > stale.epoch);
    let refused = Command::object(&stale, &key("a"), NOW, put(version(99.into(), 1)));
    let group = catalogue.inner.resident.group_of(stale.bucket_id(), b"a");
    assert_eq!(
        catalogue.inner.propose_to(group, Arc::new(refused.clone())).await,
        Err(ProposeError::Rejected(Reject::StaleEpoch))
    );
    assert!(matches!(catalogue.propose(refused).await, Ok(Reply::Written(_))));
    let gone = Command::object(&stale, &key("a"), NOW, delete());
    assert_eq!(catalogue.propose(gone).await, Ok(Reply::Deleted { existed: true }));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_of_an_ended_term_of_duty_is_rejected_in_every_group() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    catalogue.raise_cluster_version(DUTY_CLUSTER_VERSION).await.unwrap();
    let (alpha, other) = (bucket(&catalogue, "alpha").await, bucket(&catalogue, "other").await);
    catalogue.set_bucket_term(alpha.bucket_id(), 3).await.unwrap();
    for object in ["a", "b", "m", "z"] {
        for (of, term, is_late) in [(&alpha, 2, true), (&alpha, 3, false), (&other, 2, false)] {
            let body = catalogue.body_id().await.unwrap();
            let command = Command::object(of, &key(object), NOW, put(version(body, 1)));
            let written = catalogue.propose(command.of_term(Some(term))).await;
            match is_late {
                true => assert_eq!(written, Err(Reject::TermEnded { term: 3 }.into()), "{object}"),
                false => assert!(matches!(written, Ok(Reply::Written(_))), "{object}: {written:?}"),
            }
        }
    }
    let gone = catalogue.set_bucket_term(mlgw_common::BucketId(99), 3).await;
    assert_eq!(gone, Ok(()), "its bucket is being deleted");
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_into_a_frozen_bucket_waits_for_the_decision() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let alpha = bucket(&catalogue, "alpha").await;
    step(&catalogue, 0, freeze(alpha.id, None)).await.unwrap();
    let waiting = tokio::spawn({
        let (catalogue, alpha) = (catalogue.clone(), Arc::clone(&alpha));
        async move { do_put(&catalogue, &alpha, "a", 1).await }
    });
    step(&catalogue, 0, thaw(alpha.id, None)).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Reply::Written(_)));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_objects_survive_concurrent_bucket_deletions() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    for _ in 0..20 {
        let alpha = bucket(&catalogue, "alpha").await;
        let writer = tokio::spawn({
            let (catalogue, alpha) = (catalogue.clone(), Arc::clone(&alpha));
            async move {
                let body = catalogue.body_id().await.unwrap();
                catalogue.propose(Command::object(&alpha, &key("z"), NOW, put(version(body, 1)))).await
            }
        });
        let deleted = catalogue.delete_bucket(&name("alpha")).await;
        match (writer.await.unwrap(), deleted) {
            (Ok(_), Err(DeleteBucketError::NotEmpty)) => {
                let alpha = catalogue.bucket("alpha").unwrap();
                catalogue.propose(Command::object(&alpha, &key("z"), NOW, delete())).await.unwrap();
                catalogue.delete_bucket(&name("alpha")).await.unwrap();
            }
            (Err(ProposeError::Rejected(Reject::NoSuchBucket)), Ok(())) => {}
            other => panic!("{other:?}"),
        }
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebinding_is_idempotent_and_requires_the_current_binding() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("1"), dir.path().join("2"));
    let catalogue = Catalogue::open(four_groups(&one)).await.unwrap();
    let to = |upstream: &str| Binding {
        upstream: upstream.to_owned(),
        mode: BindMode::WriteBack as i32,
        ..Binding::default()
    };
    let new = NewBucket { region: "r".into(), binding: Some(to("old")), ..new_bucket("alpha") };
    let alpha = catalogue.create_bucket(new).await.unwrap();
    let upstreams = || Vec::from_iter(catalogue.bound_upstreams().iter().cloned());
    assert_eq!(upstreams(), ["old"]);
    let native = bucket(&catalogue, "native").await;
    let refused = catalogue.rebind_bucket(&native, to("old"), to("new"), None).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::BucketBusy)), "it is not bound at all");
    let refused = catalogue.rebind_bucket(&alpha, to("other"), to("new"), None).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::BucketBusy)));
    assert_eq!(catalogue.bucket("alpha").unwrap(), alpha);
    for _ in 0..2 {
        let moved = catalogue.rebind_bucket(&alpha, to("old"), to("new"), None).await.unwrap();
        assert_eq!((moved.binding.clone(), moved.epoch), (Some(to("new")), alpha.epoch));
        assert_eq!(catalogue.bucket("alpha").unwrap(), moved);
        assert_eq!(upstreams(), ["new"]);
    }
    let catalogue = kill_and_reopen(catalogue, &one, &two).await;
    assert_eq!(catalogue.bucket("alpha").unwrap().binding, Some(to("new")));
    assert_eq!(catalogue.bound_upstreams().len(), 1);
    catalogue.delete_bucket(&name("alpha")).await.unwrap();
    assert!(catalogue.bound_upstreams().is_empty());
    let refused = catalogue.rebind_bucket(&alpha, to("new"), to("old"), None).await;
    assert_eq!(refused, Err(ProposeError::Rejected(Reject::NoSuchBucket)));
    catalogue.shutdown().await;
}
