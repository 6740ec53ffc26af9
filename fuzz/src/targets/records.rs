//! Records of the catalogue. Property: a record that decodes is encoded to bytes that decode to an equal
//! record.

use mlgw_formats::schema::{
    self, AuthorityRecord, Bucket, BucketUsage, Credential, Dataset, ExtentPage, GroupSet, Job,
    JoinTokenRecord, Mirror, Node, NodeSet, ObjectSummary, ObjectVersion, PartRecord, Partition, Payer,
    PolicyFiles, PolicyVersion, Rebalance, Release, SegmentRecord, SegmentUsage, Upload,
};

/// The first byte selects the family.
pub fn run(data: &[u8]) {
    let Some((family, bytes)) = data.split_first() else { return };
    match family % 25 {
        0 => same::<Bucket>(bytes),
        1 => same::<Mirror>(bytes),
        2 => same::<Credential>(bytes),
        3 => same::<ExtentPage>(bytes),
        4 => same::<Node>(bytes),
        5 => same::<ObjectVersion>(bytes),
        6 => same::<ObjectSummary>(bytes),
        7 => same::<PartRecord>(bytes),
        8 => same::<Partition>(bytes),
        9 => same::<Release>(bytes),
        10 => same::<SegmentRecord>(bytes),
        11 => same::<Upload>(bytes),
        12 => same::<BucketUsage>(bytes),
        13 => same::<SegmentUsage>(bytes),
        14 => same::<Dataset>(bytes),
        15 => same::<Job>(bytes),
        16 => same::<Payer>(bytes),
        17 => same::<PolicyVersion>(bytes),
        18 => same::<PolicyFiles>(bytes),
        19 => same::<JoinTokenRecord>(bytes),
        20 => same::<AuthorityRecord>(bytes),
        21 => same::<NodeSet>(bytes),
        22 => same::<GroupSet>(bytes),
        23 => same::<Rebalance>(bytes),
        _ => same::<schema::meta::LogPosition>(bytes),
    }
}

fn same<M: prost::Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(record) = schema::decode::<M>(bytes) else { return };
    assert!(schema::decode::<M>(&schema::encode(&record)).is_ok_and(|again| again == record));
    // Formatting must not panic either.
    drop(format!("{record:?}"));
}
