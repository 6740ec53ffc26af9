//! Keys of rows. Property: a key has one form, so encoding the decoded key yields the same bytes.

use mlgw_formats::schema::{
    bucket, extent, object, part, partition, release, segment, upload, usage, version,
};

/// Decodes the bytes as a key of every family.
pub fn run(data: &[u8]) {
    let rows = [
        bucket::mirror_key_of(data).map(bucket::mirror_row).ok(),
        extent::key_of(data).map(|(body, first)| extent::row(body, first)).ok(),
        object::key_of(data).map(|(bucket, key)| object::row(bucket, &key)).ok(),
        part::key_of(data).map(|(body, number)| part::row(body, number)).ok(),
        part::page_key_of(data).map(|(body, number, first)| part::page_row(body, number, first)).ok(),
        partition::parse_row_key(data).map(|start| partition::row_key(&start)).ok(),
        release::key_of(data).map(release::row).ok(),
        segment::key_of(data).map(segment::row).ok(),
        upload::key_of(data).map(|(bucket, key, body)| upload::row(bucket, &key, body)).ok(),
        usage::segment_key_of(data).map(usage::segment_row).ok(),
        version::key_of(data).map(|(bucket, key, seq)| version::row(bucket, &key, seq)).ok(),
    ];
    let read: Vec<_> = rows.into_iter().flatten().collect();
    assert!(read.len() <= 1, "a key is of one family");
    assert!(read.iter().all(|row| row == data), "a key has one form");
}
