//! Tests of the replacement of chunks by another encoding.

use super::bench::Bench;
use super::*;
use mlgw_formats::schema::Encoding;

/// Stores text of two chunks as an object.
async fn put_text(bench: &Bench, object: &str) -> (BodyId, Vec<u8>) {
    let body = bench.catalogue.body_id().await.unwrap();
    let text = text_of(body.0, 200_000);
    let appended = bench.append(object, body, &text, 100_000).await;
    bench.name(object, body, appended.into_iter().map(|one| one.extent).collect()).await.unwrap();
    (body, text)
}

async fn read_object(bench: &Bench, object: &str, body: BodyId) -> Vec<u8> {
    let mut data = Vec::new();
    for extent in bench.extents(object) {
        data.extend(read_all(&bench.tier, &extent, body.0).await);
    }
    data
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_is_replaced_by_its_compressed_form_and_its_bytes_are_dead() {
    let bench = Bench::new().await;
    let (body, text) = put_text(&bench, "text").await;
    let before = bench.extents("text");
    let chunk = bench.tier.read_stored(&before[1], body).await.unwrap();
    assert!(!chunk.is_first() && chunk.uncompressed().unwrap() == &text[100_000..]);
    let packed = mlgw_formats::segment_zstd::compress(chunk.uncompressed().unwrap(), 3).unwrap();
    assert!(bench.tier.replace(&bench.catalogue, chunk, packed).await.unwrap());
    let after = bench.extents("text");
    assert!(after[0] == before[0] && after[1].encoding() == Encoding::Zstd, "{after:?}");
    assert!(after[1].stored_bytes * 2 < before[1].stored_bytes && after[1].logical_bytes == 100_000);
    assert_eq!(read_object(&bench, "text", body).await, text);
    let used = |extent: &Extent| bench.catalogue.segment_usage(extent.segment_id()).unwrap().bytes;
    assert_eq!(used(&before[0]), before[0].record_bytes());
    assert_eq!(used(&after[1]), after[1].record_bytes());
    assert!(
        bench.tier.read_stored(&after[1], body).await.unwrap().uncompressed().is_none(),
        "it is compressed already"
    );
    let bench = bench.reopen().await;
    assert_eq!(read_object(&bench, "text", body).await, text);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrent_replacement_or_delete_wins() {
    let bench = Bench::new().await;
    let (body, text) = put_text(&bench, "text").await;
    let first = bench.extents("text").remove(0);
    let stored = || async { bench.tier.read_stored(&first, body).await.unwrap() };
    let (chunk, late, later) = (stored().await, stored().await, stored().await);
    let packed = mlgw_formats::segment_zstd::compress(chunk.uncompressed().unwrap(), 3).unwrap();
    assert!(bench.tier.replace(&bench.catalogue, chunk, packed.clone()).await.unwrap());
    let after = bench.extents("text");
    assert!(!bench.tier.replace(&bench.catalogue, late, packed.clone()).await.unwrap());
    assert_eq!(bench.extents("text"), after);
    assert_eq!(read_object(&bench, "text", body).await, text);
    bench.delete("text").await;
    assert!(!bench.tier.replace(&bench.catalogue, later, packed).await.unwrap());
    bench.close().await;
}
