//! Commands of the quotas of buckets and access keys.
//!
//! Those that set and remove a quota are idempotent and the same in every group;
//! `metadata/src/catalogue/quotas.rs` sends them to all groups. The others divide a quota among groups:
//! `metadata/src/catalogue/allotments.rs`.

use crate::schema::{Measure, Quota};

/// Sets a bucket's quota. Replies with the bucket, in group 0.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetBucketQuota {
    /// Name of the bucket.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Id of the bucket.
    #[prost(uint64, tag = "2")]
    pub bucket_id: u64,
    /// The quota; `None` removes it.
    #[prost(message, optional, tag = "3")]
    pub quota: Option<Quota>,
}

/// Sets an access key's quota.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetKeyQuota {
    /// The access key.
    #[prost(string, tag = "1")]
    pub access_key: String,
    /// The quota; `None` removes it.
    #[prost(message, optional, tag = "2")]
    pub quota: Option<Quota>,
}

/// Owner of a quota that is divided.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct QuotaOwner {
    /// Id of the bucket; 0 for an access key.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The access key; empty for a bucket.
    #[prost(string, tag = "2")]
    pub access_key: String,
}

/// Room that a write needs in the slice of its group.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NeededRoom {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Bytes that the write adds to the usage.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Objects that the write adds to the usage.
    #[prost(uint64, tag = "3")]
    pub objects: u64,
    /// Allotment of the slice that had no room for the write.
    #[prost(uint64, tag = "4")]
    pub allotment: u64,
}

impl NeededRoom {
    /// Returns the needed amount of a quantity.
    #[must_use]
    pub const fn amount(&self, measure: Measure) -> u64 {
        match measure {
            Measure::Bytes => self.bytes,
            Measure::Objects => self.objects,
        }
    }
}

/// Allocates the number of an allotment of a quota, higher than those of all allotments that began before it.
/// Replies with [`Reply::Allotment`](super::Reply::Allotment). As a saga: divides the quota.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BeginAllotment {
    /// Owner of the quota; only the saga reads it.
    #[prost(message, required, tag = "1")]
    pub owner: QuotaOwner,
    /// The number is higher than this one.
    #[prost(uint64, tag = "2")]
    pub after: u64,
    /// The room for which the quota is divided, if any; only the saga reads it.
    #[prost(message, optional, tag = "3")]
    pub needed: Option<NeededRoom>,
}

/// Sets a group's slice of a quota. Rejected if the group has taken part in a later allotment. Replies with
/// [`Reply::Slice`](super::Reply::Slice).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetSlice {
    /// Owner of the quota.
    #[prost(message, required, tag = "1")]
    pub owner: QuotaOwner,
    /// Number of the allotment.
    #[prost(uint64, tag = "2")]
    pub allotment: u64,
    /// The slice.
    #[prost(message, required, tag = "3")]
    pub slice: Quota,
    /// False: the group takes part in the allotment from now on, and its slice falls to `slice`, also below
    /// the usage; it does not grow. True: the slice grows to `slice`; the group must take part already.
    #[prost(bool, tag = "4")]
    pub grows: bool,
}

#[cfg(test)]
mod tests {
    use super::{BeginAllotment, NeededRoom, Quota, QuotaOwner, SetSlice};
    use crate::schema::golden;

    #[test]
    fn the_commands_of_a_division_have_these_bytes() {
        let owner = QuotaOwner { bucket_id: 0, access_key: "AK".into() };
        let needed = NeededRoom { group: 2, bytes: 300, objects: 1, allotment: 4 };
        let begin = BeginAllotment { owner: owner.clone(), after: 5, needed: Some(needed) };
        golden::check(&begin, "01 0a04 1202414b 1005 1a09 0802 10ac02 1801 2004");
        let slice = Quota { bytes: Some(7), objects: Some(0) };
        let set = SetSlice { owner, allotment: 6, slice, grows: true };
        golden::check(&set, "01 0a04 1202414b 1006 1a04 0807 1000 2001");
        let of_bucket = QuotaOwner { bucket_id: 300, access_key: String::new() };
        golden::check(&of_bucket, "01 08ac02");
    }
}
