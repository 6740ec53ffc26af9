//! A restored copy of a server whose original continued: writes that the original made at the origin after
//! the backup stay.

use super::{
    BUCKET, assert_at_origin, bytes, flush, hold_writes, origin_key, put, release_writes, runtime,
    wait_for_next_second, wait_until, write_back_bench,
};
use crate::proxy::FaultProxy;
use crate::server::ServerSetup;

use super::ORIGIN_BUCKET;

#[test]
fn a_restored_copy_does_not_overwrite_later_writes_of_the_original() {
    let mut bench = write_back_bench();
    let runtime = runtime();
    let path = |name: &str| bench.dir.path().join(name).display().to_string();
    let (copy, restored) = (path("copy"), path("restored"));
    hold_writes(&bench);
    runtime.block_on(async {
        for key in ["replaced", "deleted", "same"] {
            put(&bench.gateway.client(), key, 1, 100).await;
        }
        bench.gateway.client().delete(BUCKET, "made").await.expect("acknowledged");
    });
    bench.gateway.kill();
    let commands = [
        vec!["store", "backup", bench.setup.data_dir.to_str().expect("text"), &copy],
        vec!["store", "restore", &copy, &restored],
    ];
    for words in commands {
        let (output, status) = bench.setup.command(&words);
        assert_eq!(status, Some(0), "{output}");
    }
    // The original continues, in the next second.
    release_writes(&bench);
    bench.gateway = bench.setup.start();
    flush(&bench);
    runtime.block_on(async {
        wait_for_next_second().await;
        let client = bench.gateway.client();
        put(&client, "replaced", 2, 200).await;
        put(&client, "made", 2, 300).await;
        client.delete(BUCKET, "deleted").await.expect("acknowledged");
    });
    flush(&bench);
    bench.gateway.kill();
    let proxy = FaultProxy::start(bench.origin.s3);
    let setup = ServerSetup::new(&restored).with_upstream("far", proxy.addr(), ORIGIN_BUCKET, "5s");
    let server = setup.start();
    runtime.block_on(async {
        wait_until("only conflicting objects are dirty", async || {
            let (output, status) = setup.command(&["bucket", "flush", BUCKET]);
            status == Some(1) && ["made", "replaced"].iter().all(|key| output.contains(&format!("{key:?}")))
        })
        .await;
        assert_at_origin(&bench, "replaced", &bytes(2, 200)).await;
        assert_at_origin(&bench, "made", &bytes(2, 300)).await;
        // One write, sent by both servers.
        assert_at_origin(&bench, "same", &bytes(1, 100)).await;
        // A new write of a client replaces the foreign object, and carries the incarnation of its server.
        put(&server.client(), "replaced", 3, 50).await;
        wait_until("the object has arrived", async || {
            let found =
                bench.origin_client().get(ORIGIN_BUCKET, &origin_key("replaced")).await.expect("exists");
            found.body == bytes(3, 50)
        })
        .await;
        let mark = |of: crate::s3::S3ClientResponse| of.header("x-amz-meta-mlgw-write").map(str::to_owned);
        let head = |key: &str| origin_key(key);
        let old = bench.origin_client().head(ORIGIN_BUCKET, &head("made")).await.expect("exists");
        let new = bench.origin_client().head(ORIGIN_BUCKET, &head("replaced")).await.expect("exists");
        let (old, new) = (mark(old).expect("marked"), mark(new).expect("marked"));
        assert!(old.starts_with('i') && new.starts_with('i') && old[..17] != new[..17], "{old}, {new}");
    });
    server.stop();
}
