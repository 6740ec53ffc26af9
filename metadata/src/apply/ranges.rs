//! Ranges of keys of a bucket: assigned to groups with the bucket, and removed with it.
//!
//! A bucket without a range of its own belongs to the group of the range before it. No removal changes the
//! group of another bucket.

use super::malformed;
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::limits::SPLIT_KEYS_IN_ALL_MAX;
use mlgw_common::{BucketId, SplitKeys};
use mlgw_formats::command::{CreateBucket, PutPartition, Reject, Reply, SplitKey};
use mlgw_formats::key::Family;
use mlgw_formats::schema::partition::{PartitionStart, parse_row_key, row_key};
use mlgw_formats::schema::{Bucket, Partition, decode};
use std::collections::BTreeSet;

/// Assigns the ranges of a new bucket to their groups, unless they are assigned already.
pub(super) fn assign_new(
    view: &mut View<'_>,
    bucket: BucketId,
    command: &CreateBucket,
) -> Result<(), ApplyError> {
    check_splits(view, command)?;
    if let Some(group) = command.group {
        assign(view, bucket, &[], group)?;
    }
    for SplitKey { key, group } in &command.splits {
        assign(view, bucket, key.as_bytes(), *group)?;
    }
    Ok(())
}

fn check_splits(view: &View<'_>, command: &CreateBucket) -> Result<(), ApplyError> {
    let keys: Vec<&str> = command.splits.iter().map(|split| split.key.as_str()).collect();
    if keys.is_empty() {
        return Ok(());
    }
    SplitKeys::new(&keys).map_err(|why| malformed(why.to_string()))?;
    if command.group.is_none() {
        return Err(malformed("the first range of a split bucket has no group"));
    }
    if count_splits(view)? + keys.len() > SPLIT_KEYS_IN_ALL_MAX {
        return Err(Reject::TooManySplitKeys.into());
    }
    Ok(())
}

/// Number of ranges that begin within a bucket.
fn count_splits(view: &View<'_>) -> Result<usize, StoreError> {
    let mut splits = 0;
    for (row, _) in view.range(&Family::Partition.start(), &Family::Partition.end(), usize::MAX)? {
        splits += usize::from(!parse_row_key(&row)?.key.is_empty());
    }
    Ok(splits)
}

/// Assigns the keys of a bucket from `key` to the next range to a group, unless a range begins there already.
fn assign(view: &mut View<'_>, bucket: BucketId, key: &[u8], group: u32) -> Result<(), StoreError> {
    let row = row_key(&PartitionStart { bucket, key: key.to_vec() });
    if !view.has(&row)? {
        view.put(row, &Partition { group });
    }
    Ok(())
}

/// Removes the ranges of a removed bucket, so that their number is bounded by that of the buckets and splits.
pub(super) fn remove(view: &mut View<'_>, bucket: BucketId) -> Result<(), StoreError> {
    let ranges = view.range(&row_of(bucket), &row_of(BucketId(bucket.0 + 1)), usize::MAX)?;
    let Some((_, last)) = ranges.last() else { return Ok(()) };
    // A later bucket may have the group of the removed ranges.
    if let Some(heir) = next_bucket(view, bucket)? {
        assign(view, heir, &[], decode::<Partition>(last)?.group)?;
    }
    for (row, _) in ranges {
        view.delete(row);
    }
    Ok(())
}

/// The groups that own ranges of keys.
pub(super) fn owning_groups(view: &View<'_>) -> Result<BTreeSet<u32>, StoreError> {
    let ranges = view.range(&Family::Partition.start(), &Family::Partition.end(), usize::MAX)?;
    ranges.iter().map(|(_, value)| Ok(decode::<Partition>(value)?.group)).collect()
}

pub(super) fn put_partition(view: &mut View<'_>, command: &PutPartition) -> Result<Reply, ApplyError> {
    let row = row_key(&PartitionStart { bucket: BucketId(command.bucket_id), key: command.key.clone() });
    let known: Option<Partition> = view.get(&row)?;
    if known.is_some_and(|partition| partition.group != command.group) {
        return Err(Reject::RangeInUse.into());
    }
    view.put(row, &Partition { group: command.group });
    Ok(Reply::Done)
}

fn row_of(bucket: BucketId) -> Vec<u8> {
    row_key(&PartitionStart { bucket, key: Vec::new() })
}

/// The existing bucket with the lowest id above `bucket`.
fn next_bucket(view: &View<'_>, bucket: BucketId) -> Result<Option<BucketId>, StoreError> {
    let mut next: Option<u64> = None;
    for (_, value) in view.range(&Family::Bucket.start(), &Family::Bucket.end(), usize::MAX)? {
        let id = decode::<Bucket>(&value)?.id;
        if id > bucket.0 && next.is_none_or(|next| id < next) {
            next = Some(id);
        }
    }
    Ok(next.map(BucketId))
}

#[cfg(test)]
mod tests {
    use super::super::{apply, seq_of};
    use crate::view::{MemoryRows, RowReader as _, View};
    use mlgw_common::BucketId;
    use mlgw_common::limits::{SPLIT_KEYS_IN_ALL_MAX, SPLIT_KEYS_MAX};
    use mlgw_formats::command::{
        Change, Command, CreateBucket, Reject, RemoveBucket, Reply, SetBucketState, SplitKey,
    };
    use mlgw_formats::key::Family;
    use mlgw_formats::schema::partition::{PartitionStart, parse_row_key};
    use mlgw_formats::schema::{BucketState, Partition, decode};
    use proptest::prelude::{Strategy, any, prop};
    use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
    use std::collections::BTreeMap;

    /// Keys to look up: at most one in each range of a bucket.
    const PROBES: [&[u8]; 4] = [b"", b"g", b"n", b"z"];

    /// Keys at which a bucket may be split when it is created.
    const SPLITS: [&str; 2] = ["g", "p"];

    #[derive(Clone, Debug)]
    enum RangeStep {
        /// Groups of the ranges; none for a bucket without a range of its own.
        Create {
            groups: Vec<u32>,
        },
        Split {
            which: usize,
            group: u32,
        },
        Remove {
            which: usize,
        },
    }

    fn steps() -> impl Strategy<Value = RangeStep> {
        prop_oneof![
            3 => prop::collection::vec(0u32..4, 0..=3).prop_map(|groups| RangeStep::Create { groups }),
            1 => (any::<usize>(), 0u32..4).prop_map(|(which, group)| RangeStep::Split { which, group }),
            3 => any::<usize>().prop_map(|which| RangeStep::Remove { which }),
        ]
    }

    #[derive(Default)]
    struct System {
        rows: MemoryRows,
        index: u64,
        /// Groups of the probes of each existing bucket.
        groups: BTreeMap<u64, [u32; PROBES.len()]>,
    }

    impl System {
        fn apply(&mut self, change: Change) -> Reply {
            self.try_apply(change).unwrap()
        }

        fn try_apply(&mut self, change: Change) -> Result<Reply, Reject> {
            self.index += 1;
            let mut view = View::new(&self.rows);
            let outcome = apply(&mut view, &Command::from(change), seq_of(self.index, 0)).unwrap();
            let (changes, _) = view.into_changes();
            self.rows.write(changes);
            outcome
        }

        fn create(&mut self, group: Option<u32>, splits: Vec<SplitKey>) -> Result<Reply, Reject> {
            let name = format!("b{}", self.index);
            let create = CreateBucket { name, group, splits, ..CreateBucket::default() };
            self.try_apply(Change::CreateBucket(create))
        }

        fn ranges(&self) -> BTreeMap<PartitionStart, u32> {
            let family = Family::Partition;
            let rows = self.rows.range(&family.start(), &family.end(), usize::MAX).unwrap();
            let range = |(row, value): &(Vec<u8>, Vec<u8>)| {
                (parse_row_key(row).unwrap(), decode::<Partition>(value).unwrap().group)
            };
            rows.iter().map(range).collect()
        }

        fn group_of(&self, bucket: u64, key: &[u8]) -> u32 {
            let at = PartitionStart { bucket: BucketId(bucket), key: key.to_vec() };
            self.ranges().range(..=at).next_back().map_or(0, |(_, group)| *group)
        }

        fn groups_of(&self, bucket: u64) -> [u32; PROBES.len()] {
            PROBES.map(|key| self.group_of(bucket, key))
        }

        fn some_bucket(&self, which: usize) -> Option<u64> {
            let count = self.groups.len().max(1);
            self.groups.keys().nth(which % count).copied()
        }

        fn step(&mut self, step: &RangeStep) {
            match step {
                RangeStep::Create { groups } => {
                    let splits = SPLITS.iter().zip(groups.iter().skip(1));
                    let splits = splits.map(|(key, group)| split(key, *group)).collect();
                    let created = self.create(groups.first().copied(), splits);
                    let Ok(Reply::Bucket(made)) = created else { panic!("{created:?}") };
                    let found = self.groups_of(made.id);
                    match groups[..] {
                        [] => {}
                        [all] => assert_eq!(found, [all; PROBES.len()]),
                        [first, last] => assert_eq!(found, [first, last, last, last]),
                        _ => assert_eq!(found, [groups[0], groups[1], groups[1], groups[2]]),
                    }
                    self.groups.insert(made.id, found);
                    self.set_state(&made.name, made.id, BucketState::Active);
                }
                RangeStep::Split { which, group } => {
                    let Some(bucket_id) = self.some_bucket(*which) else { return };
                    let split = super::PutPartition { bucket_id, key: b"m".to_vec(), group: *group };
                    let mut view = View::new(&self.rows);
                    // A second split at the same key is rejected.
                    let _ = apply(&mut view, &Command::from(Change::PutPartition(split)), seq_of(1 << 40, 0));
                    let (changes, _) = view.into_changes();
                    self.rows.write(changes);
                    // Later buckets without a range of their own follow; they have no keys in this model.
                    let ids: Vec<u64> = self.groups.keys().copied().collect();
                    self.groups = ids.into_iter().map(|id| (id, self.groups_of(id))).collect();
                }
                RangeStep::Remove { which } => {
                    let Some(id) = self.some_bucket(*which) else { return };
                    let name = self.name_of(id);
                    self.set_state(&name, id, BucketState::Deleting);
                    self.apply(Change::RemoveBucket(RemoveBucket { name, bucket_id: id }));
                    self.groups.remove(&id);
                }
            }
        }

        fn set_state(&mut self, name: &str, bucket_id: u64, state: BucketState) {
            let set = SetBucketState { name: name.to_owned(), bucket_id, state: state as i32 };
            self.apply(Change::SetBucketState(set));
        }

        fn name_of(&self, id: u64) -> String {
            let family = Family::Bucket;
            let rows = self.rows.range(&family.start(), &family.end(), usize::MAX).unwrap();
            let mut buckets = rows.iter().map(|(_, value)| decode::<super::Bucket>(value).unwrap());
            buckets.find(|bucket| bucket.id == id).unwrap().name
        }
    }

    proptest! {
        #[test]
        fn a_removal_changes_the_group_of_no_other_bucket(steps in prop::collection::vec(steps(), 1..40)) {
            let mut system = System::default();
            for step in steps {
                system.step(&step);
                for (id, groups) in &system.groups {
                    prop_assert_eq!(system.groups_of(*id), *groups, "bucket {} after {:?}", id, step);
                }
                // A range at the beginning of each bucket, two splits at its creation and one later.
                prop_assert!(system.ranges().len() <= 4 * system.groups.len());
            }
        }
    }

    fn split(key: &str, group: u32) -> SplitKey {
        SplitKey { key: key.to_owned(), group }
    }

    #[test]
    fn a_creation_with_invalid_split_keys_changes_nothing() {
        let mut system = System::default();
        let long = "k".repeat(1025);
        for (group, keys) in [
            (Some(1), &["b", "a"][..]),
            (Some(1), &["a", "a"]),
            (Some(1), &[""]),
            (Some(1), &["a", long.as_str()]),
            (None, &["a"]),
        ] {
            let splits = keys.iter().map(|key| split(key, 2)).collect();
            let refused = system.create(group, splits);
            assert!(matches!(refused, Err(Reject::Malformed { .. })), "{keys:?}: {refused:?}");
            assert!(system.rows.0.is_empty());
        }
        let many = (0..=SPLIT_KEYS_MAX).map(|i| split(&format!("{i:02}"), 2)).collect();
        let refused = system.create(Some(1), many);
        assert!(matches!(refused, Err(Reject::Malformed { .. })), "{refused:?}");
        assert!(system.rows.0.is_empty());
    }

    #[test]
    fn the_split_keys_of_all_buckets_are_limited() {
        let mut system = System::default();
        let splits = |count: usize| (0..count).map(|i| split(&format!("{i:02}"), 2)).collect();
        let (full, rest) = (SPLIT_KEYS_IN_ALL_MAX / SPLIT_KEYS_MAX, SPLIT_KEYS_IN_ALL_MAX % SPLIT_KEYS_MAX);
        for _ in 0..full {
            system.create(Some(1), splits(SPLIT_KEYS_MAX)).unwrap();
        }
        let ranges = system.ranges().len();
        assert_eq!(system.create(Some(1), splits(rest + 1)), Err(Reject::TooManySplitKeys));
        assert_eq!(system.ranges().len(), ranges);
        system.create(Some(1), splits(rest)).unwrap();
        system.create(Some(1), vec![]).unwrap();
        assert_eq!(system.create(Some(1), splits(1)), Err(Reject::TooManySplitKeys));
    }
}
