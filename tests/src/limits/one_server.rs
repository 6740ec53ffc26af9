//! One server at a time on one directory.

use super::{BUCKET, runtime};
use crate::s3::full_body;
use crate::server::ServerSetup;

#[test]
fn a_second_server_on_a_directory_is_refused_and_the_first_continues() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"));
    let first = setup.start();
    let failure = setup.try_start().err().expect("a second server is refused");
    let status = failure.status.expect("the second server exits");
    assert!(status.code().is_some_and(|code| code != 0), "{status:?}\n{}", failure.log);
    assert!(failure.log.contains("in use"), "the log names the cause:\n{}", failure.log);
    runtime().block_on(async {
        let client = first.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "key", full_body("body")).await.expect("stored");
        assert_eq!(client.get(BUCKET, "key").await.expect("read").body, "body");
    });
    first.stop();
    setup.start().stop();
}
