//! Bounds of write-back: the send rate, and the bytes that the origin does not have yet.

use std::time::Duration;

use super::{
    BUCKET, assert_everywhere, flush, hold_writes, keys_at_origin, put, release_writes, write_back_bench_with,
};
use crate::observability::access_log;
use crate::remote_backed::{MIB, bytes, runtime};
use crate::s3::{CallFailure, full_body};

#[test]
fn the_send_rate_is_limited_as_configured() {
    let bench = write_back_bench_with("upstream.far.persist_bytes_per_second", "1MiB");
    runtime().block_on(async {
        let begun = mlgw_common::time::Instant::now();
        for n in 0..6 {
            put(&bench.gateway.client(), &n.to_string(), n, MIB / 2).await;
        }
        flush(&bench);
        // The first write is sent at once, and unused rate is saved for a quarter of a second.
        assert!(begun.elapsed() > Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_eq!(keys_at_origin(&bench).await.len(), 6);
    });
}

#[test]
fn dirty_bytes_are_bounded_and_writers_are_throttled() {
    let mut bench = write_back_bench_with("bound.dirty_bytes_max", "1MiB");
    hold_writes(&bench);
    runtime().block_on(async {
        let client = bench.gateway.client();
        for n in 0..4 {
            put(&client, &n.to_string(), n, MIB / 4).await;
        }
        let begun = mlgw_common::time::Instant::now();
        let refused = client.put(BUCKET, "4", full_body(bytes(4, 100))).await;
        assert!(
            matches!(
                &refused,
                Err(CallFailure::Refused { status, body })
                    if status.as_u16() == 503 && body.contains("SlowDown")
            ),
            "{refused:?}"
        );
        assert!(begun.elapsed() > Duration::from_secs(5), "the write waited");
        client.delete(BUCKET, "3").await.expect("a delete takes no bytes");
        // A waiting write continues as soon as there is room.
        let waiting = tokio::spawn({
            let client = bench.gateway.client();
            async move { put(&client, "4", 4, MIB / 2).await }
        });
        mlgw_common::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished());
        release_writes(&bench);
        waiting.await.expect("written");
        // A write that exceeds the limit of dirty bytes goes through to the origin.
        put(&client, "large", 5, 2 * MIB).await;
        assert_everywhere(&bench, "large", &bytes(5, 2 * MIB)).await;
        flush(&bench);
        assert_eq!(keys_at_origin(&bench).await, ["0", "1", "2", "4", "large"]);
    });
    // A stop flushes buffered lines.
    bench.gateway.send_sigterm();
    bench.gateway.wait_exit();
    let lines = access_log::lines(&bench.setup.data_dir);
    let short: Vec<_> = lines.iter().filter(|line| line.get("short_of").is_some()).collect();
    assert_eq!(short.len(), 1, "{short:?}");
    let fields = ["operation", "error", "short_of"].map(|name| short[0][name].as_str());
    assert_eq!(fields, [Some("PutObject"), Some("SlowDown"), Some("dirty")]);
}
