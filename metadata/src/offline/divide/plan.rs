//! Decides in which group each row of group 0 belongs after the division. Pure.
//!
//! - Rows that concern the whole cluster stay in group 0: the system group.
//! - Rows of objects move to the object group, unchanged.
//! - Fences are in both: a new group begins with the fences of its origin, and group 0 checks its own when it
//!   removes a segment.
//! - The position in the log and the membership are in both: the object group continues at the same log id.
//!   Sequence numbers are derived from log indexes, so those of later commands are higher than all before.
//! - The usage of an access key and its slice of the quota move; the quota is in both, because every group
//!   has it.
//! - Ranges of group 0 name the object group.
//! - Further new groups have no objects: they begin with the fences, the quotas and the position.

use super::super::rows;
use crate::store_error::StoreError;
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::MetaRow;
use mlgw_formats::schema::{Partition, Payer, decode, encode};
use std::borrow::Cow;
use std::ops::Range;

/// Group, or groups, of the rows of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residence {
    /// The system group.
    System,
    /// The object group.
    Objects,
    /// Both, unchanged.
    Both,
    /// Decided for each row by [`DivisionPlan`].
    ByRow,
}

/// Returns the residence of a family.
pub(super) const fn residence(family: Family) -> Residence {
    match family {
        Family::Bucket
        | Family::Credential
        | Family::Node
        | Family::Partition
        | Family::Segment
        | Family::Dataset
        | Family::Job
        | Family::Policy
        | Family::PolicyFiles
        | Family::JoinToken
        | Family::Authority
        | Family::Set
        | Family::GroupSet => Residence::System,
        Family::Mirror
        | Family::Object
        | Family::Version
        | Family::Extent
        | Family::Upload
        | Family::Part
        | Family::PartExtent
        | Family::BucketUsage
        | Family::SegmentUsage
        | Family::Release => Residence::Objects,
        Family::Fence => Residence::Both,
        Family::Meta | Family::Payer => Residence::ByRow,
        // No group contains them, and the check of the old catalogue has refused them.
        Family::Copy | Family::CopyBlock | Family::CopySegment | Family::CopyName => Residence::Both,
    }
}

/// True if the object group has this row of the family `meta`.
pub(super) fn is_position(key: &[u8]) -> bool {
    [MetaRow::Applied, MetaRow::Membership].iter().any(|row| row.row() == key)
}

/// Value of a row in a group; `None` if the group does not have the row.
pub(super) type PlannedValue<'v> = Option<Cow<'v, [u8]>>;

/// A division of group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DivisionPlan {
    /// Id of the new group, which gets the objects of group 0.
    pub(super) object_group: u32,
    /// Number of further new groups, which have no objects yet. Their ids follow.
    pub(super) empty_groups: u32,
}

impl DivisionPlan {
    /// The value that a row of group 0 has in the system group afterwards.
    pub(super) fn system_value<'v>(
        self,
        key: &[u8],
        value: &'v [u8],
    ) -> Result<PlannedValue<'v>, StoreError> {
        let family = family_of(key)?;
        if family == Family::Partition {
            let partition: Partition = decode(value)?;
            return Ok(Some(match partition.group {
                0 => Cow::Owned(encode(&Partition { group: self.object_group })),
                _ => Cow::Borrowed(value),
            }));
        }
        if family == Family::Payer {
            let payer: Payer = decode(value)?;
            let quota = Payer { quota: payer.quota, ..Payer::default() };
            return Ok((quota != Payer::default()).then(|| Cow::Owned(encode(&quota))));
        }
        Ok((residence(family) != Residence::Objects).then_some(Cow::Borrowed(value)))
    }

    /// Ids of the new groups without objects.
    pub(super) const fn empty_group_ids(self) -> Range<u32> {
        let first = self.object_group + 1;
        first..first + self.empty_groups
    }

    /// The value that a row of group 0 has in a new group without objects: one that every object group has.
    pub(super) fn empty_value<'v>(self, key: &[u8], value: &'v [u8]) -> Result<PlannedValue<'v>, StoreError> {
        match family_of(key)? {
            Family::Payer => self.system_value(key, value),
            family if residence(family) == Residence::Objects => Ok(None),
            _ => self.object_value(key, value),
        }
    }

    /// The value that a row of group 0 has in the object group afterwards.
    pub(super) fn object_value<'v>(
        self,
        key: &[u8],
        value: &'v [u8],
    ) -> Result<PlannedValue<'v>, StoreError> {
        let family = family_of(key)?;
        let has_row = match residence(family) {
            Residence::System => false,
            Residence::Objects | Residence::Both => true,
            Residence::ByRow => family != Family::Meta || is_position(key),
        };
        Ok(has_row.then_some(Cow::Borrowed(value)))
    }
}

fn family_of(key: &[u8]) -> Result<Family, StoreError> {
    let family = key.first().and_then(|byte| rows::family(*byte));
    family.ok_or_else(|| StoreError("a row belongs to no known family".into()))
}

#[cfg(test)]
mod tests {
    use super::{DivisionPlan, Residence, residence};
    use crate::offline::rows::FAMILIES;
    use mlgw_formats::key::Family;
    use mlgw_formats::schema::meta::MetaRow;
    use mlgw_formats::schema::{
        BucketUsage, Partition, Payer, Quota, QuotaSlice, decode, encode, partition, quota,
    };

    const PLAN: DivisionPlan = DivisionPlan { object_group: 4, empty_groups: 2 };

    #[test]
    fn every_row_of_a_family_has_a_group() {
        for family in FAMILIES.into_iter().filter(|family| residence(*family) != Residence::ByRow) {
            if family == mlgw_formats::key::Family::Partition {
                continue;
            }
            let key = [family as u8, 7];
            let (system, objects) =
                (PLAN.system_value(&key, b"v").unwrap(), PLAN.object_value(&key, b"v").unwrap());
            assert!(system.is_some() || objects.is_some(), "{family:?}");
            assert!([system, objects].into_iter().flatten().all(|value| *value == *b"v"), "{family:?}");
        }
        assert!(PLAN.system_value(&[0xF0], b"").is_err() && PLAN.object_value(&[], b"").is_err());
    }

    #[test]
    fn a_group_without_objects_begins_with_what_every_object_group_has() {
        assert_eq!(PLAN.empty_group_ids(), 5..7);
        let begins_with = |family: Family| PLAN.empty_value(&[family as u8, 7], b"").unwrap().is_some();
        let families = FAMILIES.into_iter().filter(|family| residence(*family) != Residence::ByRow);
        for family in families.filter(|family| residence(*family) != Residence::Both) {
            assert!(!begins_with(family), "{family:?}");
        }
        assert!(begins_with(Family::Fence));
        assert!(PLAN.empty_value(&MetaRow::Applied.row(), b"").unwrap().is_some());
        let usage = BucketUsage { objects: 3, ..BucketUsage::default() };
        let limit = Quota { bytes: Some(9), ..Quota::default() };
        let (quota, slice) = (Some(limit), Some(QuotaSlice { limits: limit, allotment: 5 }));
        let limited = Payer { quota, usage, slice };
        let (row, of_one) = (quota::payer_row("AK"), encode(&limited));
        let kept: Payer = decode(&PLAN.empty_value(&row, &of_one).unwrap().unwrap()).unwrap();
        assert_eq!(kept, Payer { quota, ..Payer::default() }, "its slice is of the object group");
    }

    #[test]
    fn ranges_of_group_0_name_the_object_group_and_others_stay() {
        let row = partition::row_key(&partition::PartitionStart::default());
        for (before, after) in [(0, 4), (1, 1), (3, 3)] {
            let value = encode(&Partition { group: before });
            let planned = PLAN.system_value(&row, &value).unwrap().unwrap();
            assert_eq!(decode::<Partition>(&planned).unwrap().group, after);
            assert_eq!(PLAN.object_value(&row, &value).unwrap(), None);
        }
    }

    #[test]
    fn usage_of_an_access_key_moves_and_its_quota_is_in_both_groups() {
        let usage = BucketUsage { objects: 3, versions: 3, bytes: 9, ..BucketUsage::default() };
        let limit = Quota { bytes: Some(10), objects: None };
        for (payer, left) in [
            (Payer { usage, ..Payer::default() }, None),
            (
                Payer { usage, quota: Some(limit), slice: None },
                Some(Payer { quota: Some(limit), ..Payer::default() }),
            ),
        ] {
            let (row, value) = (quota::payer_row("AK"), encode(&payer));
            let system = PLAN.system_value(&row, &value).unwrap();
            assert_eq!(system.map(|value| decode::<Payer>(&value).unwrap()), left);
            assert_eq!(*PLAN.object_value(&row, &value).unwrap().unwrap(), *value);
        }
    }

    #[test]
    fn the_object_group_has_the_position_and_no_counter() {
        let has = |row: MetaRow| PLAN.object_value(&row.row(), b"").unwrap().is_some();
        assert!(has(MetaRow::Applied) && has(MetaRow::Membership));
        for row in [
            MetaRow::NextBucket,
            MetaRow::NextBody,
            MetaRow::NextSegment,
            MetaRow::NextJob,
            MetaRow::UploadKey,
            MetaRow::Incarnation,
            MetaRow::EarlierTimelines,
            MetaRow::ClusterVersion,
            MetaRow::Duty,
            MetaRow::Rebalance,
            MetaRow::NextAllotment,
            MetaRow::LastDrop,
        ] {
            assert!(!has(row), "{row:?}");
            assert!(PLAN.system_value(&row.row(), b"").unwrap().is_some());
        }
    }
}
