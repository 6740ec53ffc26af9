//! Rules about more than one object, planned, explained and executed; and actions that hold for a limited
//! time.

use super::acting::{TieredBench, put, wait_until};
use super::write;
use crate::server::runtime;
use http::Method;
use serde_json::{Value, json};

const BUCKET: &str = "lake";

/// The first three keys share a prefix; the rule below matches the first one only.
const KEYS: [&str; 4] = ["logs/index.json", "logs/1.txt", "logs/2.txt", "notes.txt"];
const DOWN: &str = "
- id: logs-down
  conditions: [{type: file_pattern, property: name, operator: matches, value: index.json}]
  actions: [{type: spill, target: 'prefix:logs/'}]
";

fn stored(bench: &TieredBench) -> crate::server::ServerProcess {
    let server = bench.setup.start();
    let client = server.client();
    runtime().block_on(async {
        client.create_bucket(BUCKET).await.expect("made");
        for key in KEYS {
            put(&client, key, 5000).await;
        }
    });
    server
}

fn are_in(bench: &TieredBench, keys: &[&str], tier: &str) -> bool {
    keys.iter().all(|key| bench.is_in(key, tier))
}

#[test]
fn a_prefix_action_is_planned_done_and_explained_for_every_key_of_the_prefix() {
    let bench = TieredBench::new();
    let server = stored(&bench);
    write(bench.dir.path(), "down.yaml", &format!("version: 1\nrules:{DOWN}"));
    let path = bench.dir.path().join("down.yaml").display().to_string();
    let plan = bench.run_json(&["policy", "plan", &path]);
    let [action] = &plan["actions"].as_array().expect("actions")[..] else { panic!("{plan:#}") };
    let figures = ["objects", "bytes", "moved_bytes"].map(|name| action[name].as_u64().expect("a number"));
    assert_eq!(
        (figures, &action["action"]),
        ([3, 15_000, 15_000], &"spill prefix:logs/".into()),
        "{action:#}"
    );
    assert_eq!((&plan["collected"], &plan["objects"], &plan["changed"]), (&4.into(), &4.into(), &3.into()));
    bench.apply(DOWN);
    wait_until("all objects are in the cold tier", || are_in(&bench, &KEYS[..3], "cold"));
    assert!(are_in(&bench, &KEYS[3..], "hot"));
    let scoped = |key: &str| -> Value {
        bench.run_json(&["policy", "explain", &format!("s3://{BUCKET}/{key}")])["scoped"].clone()
    };
    let expected = json!([{"action": "spill", "rule": "logs-down", "of": "prefix logs/"}]);
    assert_eq!((scoped(KEYS[1]), scoped(KEYS[3])), (expected, json!([])));
    let output = bench.run(&["policy", "explain", &format!("s3://{BUCKET}/{}", KEYS[2])]);
    let row = ["group", "spill", "prefix", "logs/", "logs-down"];
    assert!(output.lines().any(|line| line.split_whitespace().eq(row)), "{output}");
    server.stop();
}

#[test]
fn an_expired_pin_leaves_the_object_to_weaker_rules() {
    let bench = TieredBench::new();
    let server = stored(&bench);
    let pin = "
- id: for-a-while
  priority: 50
  conditions: [{type: file_pattern, property: path, operator: matches, value: 'logs/**'}]
  actions: [{type: pin, parameters: {for: 3s}}]
";
    bench.apply(&format!("{pin}{DOWN}"));
    wait_until("all three objects are pinned", || bench.count("pin", "done") == 3);
    assert_eq!(bench.count("spill", "done"), 0, "the pin takes precedence");
    wait_until("the pins are over", || bench.count("unpin", "done") == 3);
    wait_until("all objects are in the cold tier", || are_in(&bench, &KEYS[..3], "cold"));
    assert_eq!(bench.count("pin", "done"), 3, "the objects are not pinned again");
    server.stop();
}

#[test]
fn an_unknown_plan_or_one_of_an_older_policy_must_be_restarted() {
    let bench = TieredBench::new();
    let server = stored(&bench);
    let client = server.admin_client();
    let ask = |body: Value| runtime().block_on(client.call_admin(Method::POST, "/v1/policy/plan", &body));
    let text = format!("version: 1\nrules:{DOWN}");
    let files = json!([{"name": "p.yaml", "text": text}]);
    let mut page = ask(json!({"files": files, "limit": 1})).expect("begun");
    let mut pages = 1;
    while !page["next"].is_null() {
        page = ask(json!({"plan": page["next"], "limit": 1})).expect("continued");
        pages += 1;
    }
    assert!(pages >= 8, "each object twice: {pages}");
    assert_eq!((&page["changed"], &page["objects"]), (&3.into(), &4.into()), "{page:#}");
    let refused = |body| format!("{:?}", ask(body).expect_err("refused"));
    let why = refused(json!({"plan": 1}));
    assert!(why.contains("No such plan: 1; old plans are removed. Start again."), "{why}");
    let why = refused(json!({"plan": 1, "files": files}));
    assert!(why.contains("A continued plan has its files already; give none."), "{why}");
    let begun = ask(json!({"files": files, "limit": 1})).expect("begun");
    bench.apply(DOWN);
    let why = refused(json!({"plan": begun["next"]}));
    assert!(why.contains("start the plan again"), "{why}");
    server.stop();
}

#[test]
fn policies_are_tried_over_the_admin_api_without_effect() {
    let bench = TieredBench::new();
    let server = stored(&bench);
    let client = server.admin_client();
    let ask = |method, path: &str, body: Value| runtime().block_on(client.call_admin(method, path, &body));
    let schema = ask(Method::GET, "/v1/policy/schema?framework=true", Value::Null).expect("a schema");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let file = |text: &str| json!([{"name": "p.yaml", "text": format!("version: 1\nrules:{text}")}]);
    let wrong = file(&DOWN.replace("spill", "spil"));
    let validated = ask(Method::POST, "/v1/policy/validate", json!({"files": wrong})).expect("looked at");
    let text = validated.to_string();
    assert!(text.contains("did you mean \\\"spill\\\"?"), "{validated:#}");
    let keys = json!({"files": file(DOWN), "keys": ["logs/index.json", "s3://lake/notes.txt"]});
    let tested = ask(Method::POST, "/v1/policy/test", keys).expect("tried");
    assert_eq!(tested["keys"].as_array().map(Vec::len), Some(2), "{tested:#}");
    assert!(tested.to_string().contains("logs-down"), "{tested:#}");
    let simulation = json!({
        "profile": "resnet50", "objects": 50, "epochs": 3, "cache": [".5"],
        "policies": ["mlgw", "lru", "optimum"]
    });
    let simulated = ask(Method::POST, "/v1/policy/simulate", simulation).expect("simulated").to_string();
    let ratio = |policy: &str| -> f64 {
        let rows: Value = serde_json::from_str(&simulated).expect("a document");
        let rows = rows.as_array().or_else(|| rows["results"].as_array()).expect("rows").clone();
        let row = rows.iter().find(|row| row["policy"] == policy).expect("a row").clone();
        row["byte_hit_ratio"].as_f64().expect("a ratio")
    };
    assert!(ratio("mlgw") > ratio("lru") && ratio("mlgw") <= ratio("optimum"), "{simulated}");
    assert_eq!(bench.run_json(&["policy", "history"])["versions"], json!([]));
    server.stop();
}
