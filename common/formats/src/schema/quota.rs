//! Quotas of buckets and access keys, and usage of access keys. Rows: `payer` in each object group, keyed by
//! access key.
//!
//! A version is charged to the access key that wrote it, its payer; an upload with its parts is charged to
//! the access key that began it. Data without a payer (written before payers existed, by the root key, or by
//! a job) is charged to no access key. `apply` maintains the counters together with those of buckets. A row
//! exists only while it contains usage or a quota.
//!
//! A quota that counts in several groups is divided into slices, one for each group. The slice of a group is
//! beside its quota: in the mirror of a bucket and in the row of a payer. A group without a slice compares
//! its usage with the whole quota.

use super::usage::BucketUsage;
use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use serde::{Deserialize, Serialize};

/// Limits of a quota; an absent limit is unlimited.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes of versions and of parts of uploads in progress.
    #[prost(uint64, optional, tag = "1")]
    pub bytes: Option<u64>,
    /// Versions, current ones included.
    #[prost(uint64, optional, tag = "2")]
    pub objects: Option<u64>,
}

/// Quantity that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Measure {
    /// Bytes.
    Bytes,
    /// Objects.
    Objects,
}

/// A limit that a change would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excess {
    /// The exceeded quantity.
    pub measure: Measure,
    /// The limit.
    pub limit: u64,
    /// Current usage.
    pub used: u64,
}

impl Quota {
    /// Returns `None` for a quota without limits, otherwise the quota.
    #[must_use]
    pub fn non_empty(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// Returns a quota with a limit for each quantity.
    #[must_use]
    pub fn from_limits(limit: impl Fn(Measure) -> Option<u64>) -> Self {
        Self { bytes: limit(Measure::Bytes), objects: limit(Measure::Objects) }
    }

    /// Returns the limit of one quantity.
    #[must_use]
    pub const fn limit(&self, measure: Measure) -> Option<u64> {
        match measure {
            Measure::Bytes => self.bytes,
            Measure::Objects => self.objects,
        }
    }

    /// Returns the limit that a change of usage from `before` to `after` exceeds. Only a growing quantity can
    /// exceed its limit, so deletes and replacements stay possible above a quota that was lowered later.
    #[must_use]
    pub fn excess(&self, before: &BucketUsage, after: &BucketUsage) -> Option<Excess> {
        Measure::ALL.into_iter().find_map(|measure| {
            let (limit, used, then) =
                (self.limit(measure)?, measure.amount_in(before), measure.amount_in(after));
            (then > used && then > limit).then_some(Excess { measure, limit, used })
        })
    }
}

impl Measure {
    /// All quantities, in the order in which they are checked.
    pub const ALL: [Self; 2] = [Self::Bytes, Self::Objects];

    /// Returns the current amount of this quantity.
    #[must_use]
    pub const fn amount_in(self, usage: &BucketUsage) -> u64 {
        match self {
            Self::Bytes => usage.bytes.saturating_add(usage.upload_bytes),
            Self::Objects => usage.versions,
        }
    }
}

/// A group's slice of a quota that is divided among several groups.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct QuotaSlice {
    /// The limits of the group. An absent limit was not divided yet: the whole quota limits the group.
    #[prost(message, required, tag = "1")]
    pub limits: Quota,
    /// Number of the newest allotment that the group took part in. It accepts no change of an earlier one.
    #[prost(uint64, tag = "2")]
    pub allotment: u64,
}

impl QuotaSlice {
    /// Returns the slice after a change of the quota: without limits that the quota does not have.
    #[must_use]
    pub fn within(self, quota: Option<&Quota>) -> Option<Self> {
        let quota = quota?;
        let limits = Quota::from_limits(|measure| quota.limit(measure).and(self.limits.limit(measure)));
        Some(Self { limits, ..self })
    }
}

/// Slice and usage of a group, as an allotment finds and leaves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceState {
    /// Limits of the slice.
    pub limits: Quota,
    /// Bytes that count in the group.
    pub used_bytes: u64,
    /// Objects that count in the group.
    pub used_objects: u64,
}

impl SliceState {
    /// Returns the state of a group with this slice and usage.
    #[must_use]
    pub fn new(limits: Quota, usage: &BucketUsage) -> Self {
        let used = |measure: Measure| measure.amount_in(usage);
        Self { limits, used_bytes: used(Measure::Bytes), used_objects: used(Measure::Objects) }
    }

    /// Returns the used amount of a quantity.
    #[must_use]
    pub const fn used(&self, measure: Measure) -> u64 {
        match measure {
            Measure::Bytes => self.used_bytes,
            Measure::Objects => self.used_objects,
        }
    }
}

/// Usage and quota of an access key in a group.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Payer {
    /// Usage of the access key.
    #[prost(message, required, tag = "1")]
    pub usage: BucketUsage,
    /// Quota of the access key, as in its record.
    #[prost(message, optional, tag = "2")]
    pub quota: Option<Quota>,
    /// The group's slice of the quota, if it was divided.
    #[prost(message, optional, tag = "3")]
    pub slice: Option<QuotaSlice>,
}

/// Returns the row key of the payer `access_key`.
#[must_use]
pub fn payer_row(access_key: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Payer, access_key.len() + 1).raw(access_key.as_bytes()).finish()
}

/// Returns the access key in the row key of a payer.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn payer_key_of(row: &[u8]) -> Result<&str, BadKey> {
    std::str::from_utf8(KeyReader::new(Family::Payer, row)?.rest()).map_err(|_| BadKey)
}

#[cfg(test)]
mod tests {
    use super::{BucketUsage, Excess, Measure, Payer, Quota, QuotaSlice, payer_key_of, payer_row};
    use crate::schema::golden;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_access_key(a in "[A-Z0-9]{1,9}", b in "[A-Z0-9]{1,9}") {
            prop_assert_eq!(payer_row(&a).cmp(&payer_row(&b)), a.cmp(&b));
            let row = payer_row(&a);
            prop_assert_eq!(payer_key_of(&row), Ok(&*a));
        }
    }

    #[test]
    fn only_growing_usage_exceeds_a_quota() {
        let usage = |versions, bytes, upload_bytes| BucketUsage {
            versions,
            bytes,
            upload_bytes,
            ..BucketUsage::default()
        };
        let quota = Quota { bytes: Some(10), objects: Some(2) };
        let before = usage(1, 4, 5);
        let over = |measure, limit, used| Some(Excess { measure, limit, used });
        for (after, excess) in [
            (usage(2, 5, 5), None),
            (usage(1, 0, 10), None),
            (usage(1, 4, 7), over(Measure::Bytes, 10, 9)),
            (usage(2, 11, 0), over(Measure::Bytes, 10, 9)),
            (usage(3, 0, 0), over(Measure::Objects, 2, 1)),
        ] {
            assert_eq!(quota.excess(&before, &after), excess, "{after:?}");
        }
        let beyond = usage(5, 50, 0);
        for (after, refused) in [
            (usage(5, 50, 0), false),
            (usage(5, 49, 1), false),
            (usage(4, 20, 0), false),
            (usage(4, 51, 0), true),
            (usage(6, 0, 0), true),
        ] {
            assert_eq!(quota.excess(&beyond, &after).is_some(), refused, "{after:?}");
        }
        assert_eq!(Quota::default().excess(&before, &usage(u64::MAX, u64::MAX, u64::MAX)), None);
        let nothing = Quota { bytes: Some(0), objects: None };
        assert_eq!(nothing.excess(&usage(0, 0, 0), &usage(1, 0, 0)), None, "an empty object has no bytes");
        assert_eq!((nothing.non_empty(), Quota::default().non_empty()), (Some(nothing), None));
    }

    #[test]
    fn the_record_has_these_bytes() {
        let usage = BucketUsage { objects: 1, versions: 2, bytes: 300, uploads: 4, upload_bytes: 5 };
        let payer = Payer { usage, ..Payer::default() };
        golden::check(&payer, include_str!("golden/payer.hex"));
        let quota = Some(Quota { bytes: Some(1 << 30), objects: Some(0) });
        let limited = Payer { quota, ..payer };
        golden::check(&limited, include_str!("golden/payer_limited.hex"));
        let slice = QuotaSlice { limits: Quota { bytes: Some(7), objects: None }, allotment: 300 };
        golden::check(&slice, "01 0a02 0807 10ac02");
        let divided = Payer { slice: Some(slice), ..limited };
        let expected = concat!(include_str!("golden/payer_limited.hex"), "1a07 0a02 0807 10ac02");
        golden::check(&divided, expected);
    }

    #[test]
    fn a_slice_has_no_limit_that_its_quota_lacks() {
        let slice = |bytes, objects| QuotaSlice { limits: Quota { bytes, objects }, allotment: 4 };
        let divided = slice(Some(3), Some(2));
        for (quota, after) in [
            (None, None),
            (Some(Quota { bytes: Some(9), objects: None }), Some(slice(Some(3), None))),
            (Some(Quota { bytes: Some(1), objects: Some(1) }), Some(divided)),
        ] {
            assert_eq!(divided.within(quota.as_ref()), after);
        }
        let quota = Quota { bytes: Some(9), objects: Some(9) };
        assert_eq!(slice(Some(3), None).within(Some(&quota)), Some(slice(Some(3), None)), "added later");
    }
}
