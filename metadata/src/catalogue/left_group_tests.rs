//! Files of nodes that have some groups of a cluster, and old files of groups that they left: checks,
//! recoveries and rebuilds.

use super::testing::{NOW, bucket, do_put, key, name, options};
use super::{Catalogue, CatalogueOptions, CheckpointOptions, CutError};
use crate::copy::{Copier, read_contents, verify_contents};
use crate::identity::ExpectedServer;
use crate::offline::tests::all_files;
use crate::offline::{
    CatalogueRecovery, CheckFinding, CheckpointDir, DivideError, Division, FindingKind, Offline, OldRows,
    RebuildError, RebuildLog, RecoveredCatalogue, copy_closed, ignore_progress, rebuild, recount,
    recover_catalogue,
};
use crate::store::behind;
use crate::store::options as store_options;
use crate::store::state::StateDb;
use crate::view::RowReader as _;
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName};
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, PutNode, PutPartition};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{Member, MembershipRecord, MetaRow};
use mlgw_formats::schema::{Bucket, BucketUsage, Node, decode, encode};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const HOMES: [NodeId; 3] = [NodeId(2), NodeId(3), NodeId(4)];

/// A catalogue of node 1 with a bucket in each of the groups 1 to 3.
async fn four_groups(dir: &Path) -> (Catalogue, [Arc<Bucket>; 3]) {
    let checkpoints = CheckpointOptions { dir: dir.join("checkpoints"), every: Duration::from_secs(1 << 30) };
    let checkpoints = Some(checkpoints);
    let options = CatalogueOptions { groups: 4, checkpoints, ..options(&dir.join("catalogue")) };
    let catalogue = Catalogue::open(options).await.unwrap();
    let mut buckets = Vec::new();
    for group in 1..=3 {
        let made = bucket(&catalogue, &format!("in-{group}")).await;
        assert_eq!(catalogue.inner().groups_of(made.bucket_id()), [group].into());
        buckets.push(made);
    }
    (catalogue, buckets.try_into().unwrap())
}

/// Makes the nodes 2 to 4 the first set. Group 3 is in a set with node 1.
async fn leave_groups_1_and_2(catalogue: &Catalogue) {
    catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
    for node in HOMES {
        let put = PutNode { node: Node { id: node.get(), ..Node::default() } };
        catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
    }
    catalogue.put_set(0, &HOMES, 0).await.unwrap();
    catalogue.put_set(1, &[NodeId(1), NodeId(2)], 0).await.unwrap();
    catalogue.assign_group(3, 1, 0).await.unwrap();
}

/// Opens the files as those of a node. `None` if they cannot be read.
fn check(dir: &Path, node: u64) -> (Option<Offline>, Vec<CheckFinding>) {
    let (scratch, mut findings) = (dir.join("scratch"), Vec::new());
    let (catalogue, node) = (dir.join("catalogue"), NodeId(node));
    let opened = Offline::open(&catalogue, &scratch, node, None, &mut findings, &ignore_progress).unwrap();
    (opened, findings)
}

fn lineage() -> Lineage {
    let own = Identity { cluster: ClusterId(8), node: NodeName(2), incarnation: Incarnation(9) };
    Lineage { own, marking: true, ..Lineage::default() }
}

fn recover(dir: &Path) -> Result<RecoveredCatalogue, DivideError> {
    recover_with(dir, OldRows::Refuse)
}

fn recover_with(dir: &Path, old_rows: OldRows) -> Result<RecoveredCatalogue, DivideError> {
    let recovery = CatalogueRecovery {
        old: &dir.join("catalogue"),
        new: &dir.join("recovered"),
        node: NodeId(1),
        expected: None,
        lineage: lineage(),
        now: NOW,
        old_rows,
    };
    recover_catalogue(&recovery, &dir.join("recovering"), &ignore_progress)
}

/// The fault for which a recovery is refused, the groups that have it, and the nodes that it names.
fn refused(dir: &Path) -> (&'static str, Vec<u32>, Vec<NodeId>) {
    match recover(dir).map(drop) {
        Err(DivideError::MissingGroups { groups, homes }) => ("missing", groups, homes),
        Err(DivideError::OldGroups { groups, homes }) => ("old", groups, homes),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_after_a_gap_are_checked_and_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [first, _, last]) = four_groups(dir.path()).await;
    for of in [&first, &last] {
        do_put(&catalogue, of, "k", 0).await;
    }
    catalogue.delete_bucket(&name("in-2")).await.unwrap();
    catalogue.shutdown().await;
    std::fs::remove_dir_all(dir.path().join("catalogue/group-2")).unwrap();
    let (opened, findings) = check(dir.path(), 1);
    let opened = opened.unwrap();
    assert_eq!((opened.groups(), opened.facts.objects), (vec![0, 1, 3], 2));
    let digests: Vec<u32> = opened.facts.groups.iter().map(|of| of.group).collect();
    assert_eq!((digests, findings), (vec![0, 1, 3], vec![]));
    drop(opened);

    let recovered = recover(dir.path()).unwrap();
    assert_eq!(recovered.catalogue.facts.objects, 2);
    drop(recovered);
    let expected = Some(ExpectedServer { lineage: lineage(), floor: 0 });
    let alone = CatalogueOptions { expected, ..options(&dir.path().join("recovered")) };
    let alone = Catalogue::open(alone).await.unwrap();
    assert_eq!(alone.groups(), [0, 1, 3]);
    assert!(alone.object(last.bucket_id(), &key("k")).unwrap().is_some());
    alone.shutdown().await;

    let (at, scratch) = (dir.path().join("recovered"), dir.path().join("dividing"));
    let division = Division::plan(&at, NodeId::SINGLE, None, &scratch, &ignore_progress).unwrap();
    let divided = division.build(&dir.path().join("divided"), &ignore_progress).unwrap();
    assert_eq!((divided.object_group, divided.objects), (4, 2), "its number is that of no other group");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_counter_after_a_gap_is_named_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [.., last]) = four_groups(dir.path()).await;
    do_put(&catalogue, &last, "k", 0).await;
    catalogue.shutdown().await;
    let at = dir.path().join("catalogue");
    std::fs::remove_dir_all(at.join("group-2")).unwrap();
    let state = StateDb::open(&at.join("group-3/state-1"), &store_options::cache(1 << 20), 1 << 20).unwrap();
    let usages = state.range(&Family::BucketUsage.start(), &Family::BucketUsage.end(), 9).unwrap();
    let [(row, value)] = usages.as_slice() else { panic!("one bucket has objects") };
    let wrong = BucketUsage { objects: 7, ..decode(value).unwrap() };
    state.write(&[(row.clone(), Some(encode(&wrong)))].into()).unwrap();
    state.flush().unwrap();
    drop(state);
    let (_, findings) = check(dir.path(), 1);
    let found: Vec<_> = findings.iter().map(|of| (of.kind, of.place.starts_with("group 3 "))).collect();
    assert_eq!(found, [(FindingKind::Counter, true)]);
    assert_eq!(recount(&at).unwrap(), ["1 counters of group 3 were recounted"]);
    assert_eq!(check(dir.path(), 1).1, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_group_that_the_node_left_are_not_checked_and_not_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [first, _, last]) = four_groups(dir.path()).await;
    // Its segment was removed since the node left the group.
    do_put(&catalogue, &first, "old", 10).await;
    do_put(&catalogue, &last, "k", 0).await;
    leave_groups_1_and_2(&catalogue).await;
    catalogue.shutdown().await;
    let (opened, findings) = check(dir.path(), 1);
    let opened = opened.unwrap();
    assert_eq!((opened.groups(), opened.facts.objects), (vec![0, 3], 1));
    drop(opened);
    let notes = findings.iter().filter(|of| of.kind == FindingKind::LeftGroup).count();
    assert!(notes == 2 && findings.len() == 2 && !findings[0].is_damage(), "{findings:?}");
    let (_, of_home) = check(dir.path(), 2);
    assert!(of_home.iter().any(CheckFinding::is_damage), "node 2 has the group: {of_home:?}");
    let refusal = recover(dir.path()).map(drop).unwrap_err().to_string();
    assert!(refusal.contains("(1, 2)") && refusal.contains("nodes 2, 3, 4"), "{refusal}");
    assert_eq!(refused(dir.path()), ("missing", vec![1, 2], HOMES.to_vec()));
    assert!(!dir.path().join("recovered").exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_rows_of_a_group_is_not_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [first, ..]) = four_groups(dir.path()).await;
    let range = PutPartition { bucket_id: first.id, key: b"m".to_vec(), group: 4 };
    catalogue.propose(Command::from(Change::PutPartition(range))).await.unwrap();
    catalogue.shutdown().await;
    assert_eq!(refused(dir.path()), ("missing", vec![4], vec![]));
    // A learner that has not received a snapshot yet.
    let empty = dir.path().join("catalogue/group-4/state-1");
    std::fs::create_dir_all(&empty).unwrap();
    drop(StateDb::open(&empty, &store_options::cache(1 << 20), 1 << 20).unwrap());
    let (opened, findings) = check(dir.path(), 1);
    assert_eq!((opened.unwrap().groups(), findings), (vec![0, 1, 2, 3, 4], vec![]));
    assert_eq!(refused(dir.path()), ("missing", vec![4], vec![]), "a directory is not enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_not_caught_up_with_a_group_is_recovered_only_if_the_loss_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [.., last]) = four_groups(dir.path()).await;
    do_put(&catalogue, &last, "k", 0).await;
    catalogue.shutdown().await;
    let at = dir.path().join("catalogue");
    behind::record(&at, 3).unwrap();
    assert_eq!(refused(dir.path()), ("old", vec![3], vec![]));
    let refusal = recover(dir.path()).map(drop).unwrap_err().to_string();
    assert!(refusal.contains("may be old (3)") && refusal.contains("--old-rows"), "{refusal}");
    assert!(!dir.path().join("recovered").exists(), "nothing was made");
    let accepted = recover_with(dir.path(), OldRows::Accept).unwrap();
    assert_eq!((&accepted.old_groups, accepted.catalogue.facts.objects), (&vec![3], 1));
    drop(accepted);
    std::fs::remove_dir_all(dir.path().join("recovered")).unwrap();
    // A copy has the record too.
    let mut copier = Copier::new(&dir.path().join("copy"), None).unwrap();
    copy_closed(&at, &mut copier, "").unwrap();
    copier.finish(NOW).unwrap();
    assert_eq!(behind::groups_behind(&dir.path().join("copy")).unwrap(), [3].into());

    std::fs::remove_file(behind::behind_file(&at, 3)).unwrap();
    assert_eq!(recover(dir.path()).unwrap().old_groups, [0; 0]);
    std::fs::remove_dir_all(dir.path().join("recovered")).unwrap();
    let state = StateDb::open(&at.join("group-2/state-1"), &store_options::cache(1 << 20), 1 << 20).unwrap();
    let row = MetaRow::Membership.row();
    let known: MembershipRecord = decode(&state.get(&row).unwrap().unwrap()).unwrap();
    let others = vec![Member { node: 2, ..Member::default() }];
    let removed = MembershipRecord { members: others, ..known };
    state.write(&[(row, Some(encode(&removed)))].into()).unwrap();
    state.flush().unwrap();
    drop(state);
    assert_eq!(refused(dir.path()), ("old", vec![2], vec![]), "by its own rows it is no member");
}

/// Rebuilds the catalogue from its newest checkpoint and its log.
fn rebuilt(dir: &Path) -> Result<u64, RebuildError> {
    let path = dir.join("checkpoints");
    let from = CheckpointDir { path: &path, is_marked: false };
    let (at, scratch, mut unusable) = (dir.join("catalogue"), dir.join("rebuilding"), Vec::new());
    let made = rebuild(&at, from, RebuildLog::Own, None, &scratch, &mut unusable, &ignore_progress);
    made.map(|report| report.entries)
}

/// Stops the member of group 2, which is then in no checkpoint, and ends the catalogue.
async fn stop_group_2(catalogue: Catalogue, bucket: &Bucket, dir: &Path) {
    let stopped = catalogue.inner().groups.remove(2).unwrap();
    stopped.shutdown().await.unwrap();
    drop(stopped);
    catalogue.inner().checkpoint_or_log().await;
    let has = |group: &str| dir.join("checkpoints/checkpoint-1").join(group).exists();
    assert_eq!(["group-1", "group-2", "group-3"].map(has), [true, false, true]);
    do_put(&catalogue, bucket, "later", 0).await;
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_leaves_the_files_of_a_group_that_the_node_left() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [first, second, _]) = four_groups(dir.path()).await;
    do_put(&catalogue, &second, "old", 0).await;
    catalogue.inner().compact().await.unwrap();
    leave_groups_1_and_2(&catalogue).await;
    stop_group_2(catalogue, &first, dir.path()).await;
    let at = dir.path().join("catalogue");
    let files = all_files(&at.join("group-2"));
    for group in ["group-0", "group-1", "group-3"] {
        std::fs::remove_dir_all(at.join(group)).unwrap();
    }
    assert!(rebuilt(dir.path()).unwrap() > 0);
    assert_eq!(all_files(&at.join("group-2")), files);
    let catalogue = Catalogue::open(options(&at)).await.unwrap();
    assert_eq!(catalogue.groups(), [0, 1, 2, 3]);
    assert!(catalogue.object(first.bucket_id(), &key("later")).unwrap().is_some());
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_rebuild_leaves_no_directory_of_a_group_without_a_state() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [first, second, _]) = four_groups(dir.path()).await;
    do_put(&catalogue, &second, "old", 0).await;
    catalogue.inner().compact().await.unwrap();
    stop_group_2(catalogue, &first, dir.path()).await;
    let group = dir.path().join("catalogue/group-2");
    std::fs::remove_dir_all(&group).unwrap();
    let files = all_files(&dir.path().join("catalogue"));
    let refused = rebuilt(dir.path());
    assert!(matches!(refused, Err(RebuildError::Log(_))), "{refused:?}");
    assert!(!group.exists(), "a start would open it as an empty member");
    assert_eq!(all_files(&dir.path().join("catalogue")), files);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_running_node_name_the_groups_whose_rows_may_be_old() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, [.., last]) = four_groups(dir.path()).await;
    let at = dir.path().join("catalogue");
    behind::record(&at, 3).unwrap();
    catalogue.inner().checkpoint_or_log().await;
    let copy = dir.path().join("copy");
    let copier = catalogue.copy_into(Copier::new(&copy, None).unwrap(), "catalogue/").await.unwrap();
    copier.finish(NOW).unwrap();
    let checkpoint = dir.path().join("checkpoints/checkpoint-1");
    for made in [&checkpoint, &copy.join("catalogue")] {
        assert_eq!(behind::records(made).unwrap(), [(3, "1\n".to_owned())].into(), "{}", made.display());
    }
    let (contents, mut findings) = (read_contents(&checkpoint).unwrap(), Vec::new());
    assert!(contents.files.contains_key("group-3.behind"));
    verify_contents(&contents, &checkpoint, "", &mut findings, &ignore_progress);
    assert_eq!(findings, []);
    let (opened, _) = check(&copy, 1);
    assert_eq!(opened.unwrap().old_groups().unwrap(), [3]);

    // The barrier of a lone voter passes.
    assert_eq!(catalogue.confirm_groups().await.unwrap(), [].into());
    do_put(&catalogue, &last, "later", 0).await;
    catalogue.inner().checkpoint_or_log().await;
    let next = dir.path().join("checkpoints/checkpoint-2");
    assert!(read_contents(&next).is_ok() && behind::records(&next).unwrap().is_empty());
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_cluster_is_made_by_a_node_that_has_all_groups() {
    let dir = tempfile::tempdir().unwrap();
    let (catalogue, _) = four_groups(dir.path()).await;
    let cut = async |name: &str| {
        let copier = Copier::new(&dir.path().join(name), None).unwrap();
        catalogue.copy_cut_into(copier, "catalogue/").await.map(drop)
    };
    cut("whole").await.unwrap();
    leave_groups_1_and_2(&catalogue).await;
    let refused = cut("old").await.unwrap_err();
    assert!(matches!(&refused, CutError::NotAtHome { homes } if *homes == HOMES), "{refused}");
    assert!(refused.to_string().ends_with("one of the nodes 2, 3, 4"), "{refused}");
    catalogue.shutdown().await;
}
