//! Work that is due by time, in rounds in which clocks jump: a dataset with a schedule that is due every day,
//! half a day from the begin of the round, and an incomplete upload. A clock that is days ahead creates no
//! job, and deletes nothing of the upload.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use crate::cluster::testbed::{BUCKET, FIRST, TestCluster, content_of, until_served, wait_until};
use crate::s3::full_body;

const HOURS_PER_DAY: u64 = 24;
const SECS_PER_HOUR: u64 = 60 * 60;

/// A dataset with a schedule, and an upload, which exist from the begin of a round to its end.
pub(super) struct DueWork {
    dataset: String,
    /// Ids of the jobs before the round.
    jobs: BTreeSet<u64>,
    key: String,
    upload: String,
    /// ETag of its only part.
    etag: String,
}

impl DueWork {
    /// Makes both through the first node.
    pub(super) fn begin(cluster: &TestCluster, seed: u64) -> Self {
        let dataset = format!("due-{seed}");
        until_run(cluster, &["dataset", "create", &dataset, "--bucket", BUCKET]);
        let hour = UNIX_EPOCH.elapsed().expect("later than 1970").as_secs() / SECS_PER_HOUR;
        let schedule = format!("0 {} * * *", (hour + HOURS_PER_DAY / 2) % HOURS_PER_DAY);
        until_run(cluster, &["dataset", "warm", &dataset, "--schedule", &schedule]);
        let (client, key) = (cluster.client(FIRST), format!("due-{seed}"));
        let (upload, etag) = cluster.block_on(async {
            let begin = async || client.create_upload(BUCKET, &key).await;
            let upload = until_served("an upload is begun", begin).await;
            let put = async || {
                let body = full_body(content_of(&key).bytes());
                client.put_part(BUCKET, &key, &upload, 1, body).await
            };
            let etag = until_served("a part is stored", put).await;
            (upload, etag)
        });
        Self { jobs: jobs(cluster), dataset, key, upload, etag }
    }

    /// Asserts that there is no further job, and ends the upload, which is still there.
    pub(super) fn end(self, cluster: &TestCluster) {
        let Self { dataset, jobs: before, key, upload, etag } = self;
        let later: Vec<u64> = jobs(cluster).difference(&before).copied().collect();
        assert_eq!(later, Vec::<u64>::new(), "jobs that were created because a clock jumped");
        until_run(cluster, &["--yes", "dataset", "delete", &dataset]);
        let client = cluster.client(FIRST);
        cluster.block_on(async {
            let parts = [(1, etag)];
            let complete = async || client.complete(BUCKET, &key, &upload, &parts).await;
            until_served("the upload is completed", complete).await;
            let read = until_served("its object is read", async || client.get(BUCKET, &key).await).await;
            assert_eq!(content_of(&key).difference(&read.body), None, "{key}");
        });
    }
}

/// Runs a command on the first node until it succeeds: no node may have the duty for a while. Returns what it
/// prints.
fn until_run(cluster: &TestCluster, words: &[&str]) -> String {
    let mut printed = String::new();
    wait_until(&format!("{words:?} succeeds"), || {
        let (output, status) = cluster.member(FIRST).setup.command(words);
        printed = output;
        status == Some(0)
    });
    printed
}

/// Ids of all jobs.
fn jobs(cluster: &TestCluster) -> BTreeSet<u64> {
    let output = until_run(cluster, &["job", "list", "--output", "json"]);
    let list: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let jobs = list["jobs"].as_array().unwrap_or_else(|| panic!("{output}"));
    jobs.iter().map(|job| job["id"].as_u64().expect("an id")).collect()
}
