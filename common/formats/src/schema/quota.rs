//! What a bucket or an access key may hold, and `payer` (each object group, at the access key): what it
//! holds.
//!
//! A version counts for the access key that wrote it, its payer, an upload with its parts for the one that
//! began it. Whoever has no payer (what was written before there were any, by the root key, or by a job)
//! counts for nobody. The counters are kept by `apply` with those of buckets, and a row is there as long as
//! it says something.

use super::usage::BucketUsage;
use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use serde::{Deserialize, Serialize};

/// How much may be there; what is not given has no limit.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes of versions and of parts of uploads in progress.
    #[prost(uint64, optional, tag = "1")]
    pub bytes: Option<u64>,
    /// Versions, current ones included.
    #[prost(uint64, optional, tag = "2")]
    pub objects: Option<u64>,
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Measure {
    /// Bytes.
    Bytes,
    /// Objects.
    Objects,
}

/// A limit that something would go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excess {
    /// Which.
    pub measure: Measure,
    /// The limit.
    pub limit: u64,
    /// What is there.
    pub used: u64,
}

impl Quota {
    /// The same without a quota that limits nothing.
    #[must_use]
    pub fn some(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// The limit of one measure.
    #[must_use]
    pub const fn limit(&self, measure: Measure) -> Option<u64> {
        match measure {
            Measure::Bytes => self.bytes,
            Measure::Objects => self.objects,
        }
    }

    /// The limit that going from `before` to `after` goes over. Only what grows does, so whoever holds more
    /// than a quota that was set later may still delete and replace.
    #[must_use]
    pub fn excess(&self, before: &BucketUsage, after: &BucketUsage) -> Option<Excess> {
        [Measure::Bytes, Measure::Objects].into_iter().find_map(|measure| {
            let (limit, used, then) = (self.limit(measure)?, measure.of(before), measure.of(after));
            (then > used && then > limit).then_some(Excess { measure, limit, used })
        })
    }
}

impl Measure {
    /// How much of it is there.
    #[must_use]
    pub const fn of(self, usage: &BucketUsage) -> u64 {
        match self {
            Self::Bytes => usage.bytes.saturating_add(usage.upload_bytes),
            Self::Objects => usage.versions,
        }
    }
}

/// What an access key holds in a group, and may hold.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Payer {
    /// What it holds.
    #[prost(message, required, tag = "1")]
    pub usage: BucketUsage,
    /// What it may hold, as in the access key's record.
    #[prost(message, optional, tag = "2")]
    pub quota: Option<Quota>,
}

/// The row of the payer `access_key`.
#[must_use]
pub fn payer_row(access_key: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Payer, access_key.len() + 1).raw(access_key.as_bytes()).finish()
}

/// The access key in a payer's row.
///
/// # Errors
/// When it is no row of this family.
pub fn payer_key_of(row: &[u8]) -> Result<&str, BadKey> {
    std::str::from_utf8(KeyReader::new(Family::Payer, row)?.rest()).map_err(|_| BadKey)
}

#[cfg(test)]
mod tests {
    use super::{BucketUsage, Excess, Measure, Payer, Quota, payer_key_of, payer_row};
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
    fn only_what_grows_goes_over_a_quota() {
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
        assert_eq!((nothing.some(), Quota::default().some()), (Some(nothing), None));
    }

    #[test]
    fn the_record_has_these_bytes() {
        let usage = BucketUsage { objects: 1, versions: 2, bytes: 300, uploads: 4, upload_bytes: 5 };
        golden::check(&Payer { usage, quota: None }, include_str!("golden/payer.hex"));
        let quota = Some(Quota { bytes: Some(1 << 30), objects: Some(0) });
        golden::check(&Payer { usage, quota }, include_str!("golden/payer_limited.hex"));
    }
}
