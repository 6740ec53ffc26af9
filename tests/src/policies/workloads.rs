//! `mlgw workload …` on a server: workloads and their datasets, access plans, and the facts about an object
//! that follow from them.

use super::write;
use crate::content::TestContent;
use crate::s3::{S3TestClient, encode, full_body};
use crate::seed::Rng;
use crate::server::{ServerProcess, ServerSetup, runtime};
use http::Method;
use serde_json::{Value, json};

/// The bucket at the origin, and the one here.
const ORIGIN_BUCKET: &str = "lake";
const BUCKET: &str = "bound";
const SHARDS: u64 = 60;
const LENGTH: usize = 20_000;

/// An origin with a training set and a validation set, and a server with a bucket that is bound to it.
struct WorkloadBench {
    dir: tempfile::TempDir,
    _origin: ServerProcess,
    setup: ServerSetup,
}

fn shard(n: u64) -> String {
    format!("train/shard-{n:05}.tar")
}

/// Reads an object as a whole, as a process of a workload.
async fn read(client: &S3TestClient, key: &str, name: &str) {
    let headers = [("x-mlgw-workload", name.to_owned()), ("user-agent", "torch-loader/1".to_owned())];
    let path = format!("/{BUCKET}/{}", key.split('/').map(encode).collect::<Vec<_>>().join("/"));
    let answer = client.call(Method::GET, &path, &headers, full_body("")).await.expect("read");
    assert_eq!(answer.body.len(), LENGTH);
}

impl WorkloadBench {
    fn new() -> Self {
        let room = super::temp_dir();
        let origin = ServerSetup::new(room.path().join("origin")).start();
        runtime().block_on(async {
            let there = origin.client();
            there.create_bucket(ORIGIN_BUCKET).await.expect("made");
            let val = (0..10).map(|n| format!("val/shard-{n:05}.tar"));
            for (id, key) in (0..SHARDS).map(shard).chain(val).enumerate() {
                let bytes = TestContent { id: id as u64, length: LENGTH }.bytes();
                there.put(ORIGIN_BUCKET, &key, full_body(bytes)).await.expect("stored");
            }
        });
        let setup =
            ServerSetup::new(room.path().join("data")).with_upstream("far", origin.s3, ORIGIN_BUCKET, "5s");
        Self { dir: room, _origin: origin, setup }
    }

    /// Starts the server for the first time.
    fn start(&self) -> ServerProcess {
        let server = self.setup.start();
        let (output, status) =
            self.setup.command(&["bucket", "bind", BUCKET, "--upstream", "far", "--ttl", "1h"]);
        assert_eq!(status, Some(0), "{output}");
        server
    }

    fn run(&self, words: &[&str]) -> (String, Option<i32>) {
        self.setup.command(words)
    }

    fn run_json(&self, words: &[&str]) -> Value {
        let (output, status) = self.run(&[&["--output", "json"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {output}");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    fn plan(&self, text: &str) -> String {
        write(self.dir.path(), "plan.yaml", text);
        self.dir.path().join("plan.yaml").display().to_string()
    }
}

/// Reads epochs, each in a random order of its own.
async fn train(client: &S3TestClient, name: &str, epochs: u64) {
    for epoch in 0..epochs {
        let mut rng = Rng::new(1 + epoch);
        let mut left: Vec<u64> = (0..SHARDS).collect();
        while !left.is_empty() {
            let n = left.swap_remove(rng.index(left.len()));
            read(client, &shard(n), name).await;
        }
    }
}

fn facts(explained: &Value) -> impl Fn(&str) -> Option<String> {
    let facts = explained["facts"].as_array().expect("facts").clone();
    move |word| {
        let fact = facts.iter().find(|fact| fact["property"] == word)?;
        Some(fact["value"].as_str().expect("a value").to_owned())
    }
}

#[test]
fn workloads_show_their_datasets_phase_and_progress() {
    let bench = WorkloadBench::new();
    let server = bench.start();
    let key = format!("s3://{BUCKET}/{}", shard(7));
    let before = bench.run_json(&["policy", "explain", &key]);
    assert_eq!((facts(&before)("pattern"), facts(&before)("phase")), (None, None));
    assert_eq!(before["kept"], json!({"blocks": 1, "kept": 0, "pinned": 0, "planned": 0}));
    assert_eq!(bench.run_json(&["workload", "list"])["workloads"], json!([]));
    runtime().block_on(async {
        train(&server.client(), "resnet", 3).await;
        read(&server.client(), &shard(0), "someone").await;
    });
    let shown = bench.run_json(&["workload", "show", "resnet"]);
    assert_eq!((&shown["phase"], &shown["active"]), (&"training".into(), &true.into()), "{shown:#}");
    assert_eq!(shown["treatment"]["cache"], "training-aware", "{shown:#}");
    let set = &shown["datasets"][0];
    assert_eq!((&shown["epochs"], &set["passes"]), (&3.into(), &3.into()), "{shown:#}");
    assert_eq!(
        (&set["role"], &set["bucket"], &set["keys"], &set["reads"]),
        (&"training".into(), &BUCKET.into(), &"train/shard-#.tar".into(), &(3 * SHARDS).into())
    );
    assert_eq!(shown["bytes_read"], 3 * SHARDS * LENGTH as u64);
    assert_eq!((&shown["user_agent"], &shown["workers"]), (&"torch-loader/1".into(), &1.into()));
    assert!(
        shown["frameworks"].as_array().is_some_and(|all| all.contains(&"webdataset".into())),
        "{shown:#}"
    );
    let (since, last) =
        (shown["since"].as_str().expect("a time"), shown["last_access"].as_str().expect("a time"));
    assert!(
        since >= shown["started"].as_str().expect("a time") && since <= last && last.ends_with('Z'),
        "{shown:#}"
    );
    let id = shown["id"].as_str().expect("an id");
    assert_eq!(bench.run_json(&["workload", "show", id])["name"], "resnet");
    assert_eq!(bench.run(&["workload", "show", "nobody"]).1, Some(1));
    let list = bench.run_json(&["workload", "list"]);
    let names: Vec<&Value> =
        list["workloads"].as_array().expect("workloads").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["someone", "resnet"]);
    assert_eq!(
        bench.run_json(&["workload", "list", "--limit", "1"])["workloads"].as_array().map(Vec::len),
        Some(1)
    );
    let totals = &list["totals"];
    assert_eq!(
        (&totals["workloads"], &totals["active"], &totals["epochs"]),
        (&2.into(), &2.into(), &shown["epochs"])
    );
    let metrics = bench.run(&["status", "--metrics"]).0;
    assert!(metrics.contains("mlgw_workload_count{phase=\"training\"} 1\n"), "{metrics}");
    assert!(metrics.contains(&format!("mlgw_workload_epochs_total {}\n", shown["epochs"])), "{metrics}");
    let (output, _) = bench.run(&["workload", "show", "resnet"]);
    for line in ["phase        training since ", "training  s3://bound/train/shard-#.tar"] {
        assert!(output.contains(line), "{line}: {output}");
    }
    assert!(bench.run(&["workload", "list"]).0.ends_with(" decisions.\n"));
    server.stop();
}

#[test]
fn explain_shows_the_last_workload_of_the_objects_dataset() {
    let bench = WorkloadBench::new();
    let server = bench.start();
    runtime().block_on(train(&server.client(), "resnet", 3));
    let explained = bench.run_json(&["policy", "explain", &format!("s3://{BUCKET}/{}", shard(7))]);
    let fact = facts(&explained);
    for (word, value) in [
        ("pattern", "shard-shuffled"),
        ("phase", "training"),
        ("type", "shard"),
        ("dataset", "train/shard-#.tar"),
        ("workers", "1"),
    ] {
        assert_eq!(fact(word).as_deref(), Some(value), "{word}: {explained:#}");
    }
    assert!(fact("epoch_count").is_some_and(|epochs| epochs != "0") && fact("recency").is_some());
    assert_eq!(explained["kept"], json!({"blocks": 1, "kept": 1, "pinned": 0, "planned": 0}));
    let (output, _) = bench.run(&["policy", "explain", &format!("s3://{BUCKET}/{}", shard(7))]);
    assert!(output.contains("copies       1 of 1 blocks cached, 0 pinned, 0 planned\n"), "{output}");
    let other = bench.run_json(&["policy", "explain", &format!("s3://{BUCKET}/val/shard-00001.tar")]);
    assert_eq!((facts(&other)("pattern"), facts(&other)("dataset")), (None, None), "no reads of the dataset");
    server.stop();
}

#[test]
fn a_plan_applies_to_workloads_of_its_name_and_survives_a_kill() {
    let bench = WorkloadBench::new();
    let mut server = bench.start();
    let file = bench.plan(&format!("version: 1\nbucket: {BUCKET}\nprefix: train/\nepochs: 4\n"));
    let put = bench.run_json(&["workload", "plan", "put", &file, "--workload", "resnet"]);
    assert_eq!(
        (&put["id"], &put["keys"], &put["trusted"]),
        (&"resnet".into(), &SHARDS.into(), &false.into())
    );
    let other = bench.plan(&format!("version: 1\nbucket: {BUCKET}\nkeys: [{}]\n", shard(0)));
    bench.run_json(&["workload", "plan", "put", &other, "--workload", "Another one", "--id", "other"]);
    server.kill();
    let mut server = bench.setup.start();
    assert_eq!(bench.run_json(&["workload", "plan", "show", "resnet"]), put, "the plan is stored unchanged");
    let in_order = async |client: S3TestClient, name: &str| {
        for n in 0..SHARDS {
            read(&client, &shard(n), name).await;
        }
    };
    runtime().block_on(in_order(server.client(), "someone"));
    assert_eq!(
        bench.run_json(&["workload", "plan", "show", "resnet"])["trusted"],
        false,
        "the plan is not trusted for other workloads"
    );
    runtime().block_on(in_order(server.client(), "resnet"));
    let shown = bench.run_json(&["workload", "plan", "show", "resnet"]);
    assert_eq!((&shown["trusted"], &shown["reads"]), (&true.into(), &SHARDS.into()), "{shown:#}");
    assert!(shown["epoch"] == 1 || shown["read"] == SHARDS, "{shown:#}");
    assert_eq!(shown["workloads"], json!([bench.run_json(&["workload", "show", "resnet"])["id"]]));
    let explained = bench.run_json(&["policy", "explain", &format!("s3://{BUCKET}/{}", shard(3))]);
    assert_eq!(explained["kept"]["planned"], 1, "{explained:#}");
    let list = bench.run_json(&["workload", "plan", "show"]);
    let trusted: Vec<_> =
        list["plans"].as_array().expect("plans").iter().map(|plan| (&plan["id"], &plan["trusted"])).collect();
    assert_eq!(trusted, [(&json!("other"), &json!(false)), (&json!("resnet"), &json!(true))]);
    assert!(bench.run(&["workload", "plan", "show"]).0.contains("resnet  resnet"));
    let (output, status) = bench.run(&["workload", "plan", "delete", "resnet"]);
    assert!(status == Some(2) && output.contains("--yes"), "{output}");
    bench.run_json(&["workload", "plan", "delete", "resnet", "--yes"]);
    server.kill();
    let server = bench.setup.start();
    assert_eq!(bench.run(&["workload", "plan", "show", "resnet"]).1, Some(1));
    assert_eq!(bench.run_json(&["workload", "plan", "show"])["plans"].as_array().map(Vec::len), Some(1));
    server.stop();
}

#[test]
fn a_plan_of_a_local_bucket_uses_catalogue_keys_and_errors_have_positions() {
    let bench = WorkloadBench::new();
    let server = bench.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket("own").await.expect("made");
        for key in ["a", "train/1", "train/2", "train/3", "trainer"] {
            client.put("own", key, full_body("x")).await.expect("stored");
        }
        client.delete("own", "train/2").await.expect("deleted");
    });
    let file = bench.plan(
        "version: 1\nbucket: own\nprefix: train/\nsampler: torch_distributed\nseed: 3\nepochs: 2\nranks: 2\n",
    );
    let put = bench.run_json(&["workload", "plan", "put", &file, "--workload", "w"]);
    assert_eq!(
        (&put["keys"], &put["sampler"], &put["ranks"]),
        (&2.into(), &"torch_distributed".into(), &2.into())
    );
    let file = bench.plan("version: 1\nbucket: own\nprefix: train/\nsampler: torch_distribted\n");
    let (output, status) = bench.run(&["workload", "plan", "put", &file, "--workload", "w"]);
    let expected = format!(
        "mlgw: {file} is invalid:\n{file}:4:10: sampler: unknown sampler \"torch_distribted\"; did you mean"
    );
    assert!(status == Some(1) && output.starts_with(&expected), "{output}");
    assert_eq!(bench.run_json(&["workload", "plan", "show", "w"]), put, "the previous plan is in force");
    let (output, status) = bench.run(&["workload", "plan", "put", &file, "--workload", "Its Name"]);
    assert!(status == Some(4) && output.contains("invalid plan id"), "{output}");
    server.stop();
}
