//! `/v1/policy/schema`, `validate`, `test` and `simulate`: consistency with the OpenAPI document and with the
//! command line, and limits.

use super::calls::Api;
use super::document::{assert_schema_of, assert_taken};
use http::{Method, StatusCode};
use mlgw_api::{SimulateRequest, TestRequest, ValidateRequest};
use mlgw_policies::{Access, Caller, Op, trace::TraceWriter};
use serde_json::{Value, json};

const PLUGIN: &str = "
version: 1
framework: mine
detect: {keys: [{pattern: '*.mine', confidence: 0.9}]}
templates:
- id: keep
  rules: [{id: it, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.mine'}], \
    actions: [{type: pin}]}]
";
const POLICY: &str = "version: 1\nuse:\n- {id: kept, template: keep}\n";

fn text(name: &str, text: &str) -> Value {
    json!([{"name": name, "text": text}])
}

#[test]
fn requests_are_taken_as_the_document_says() {
    let files = text("p.yaml", POLICY);
    assert_taken::<ValidateRequest>("ValidateRequest", json!({"files": files, "frameworks": files}));
    assert_taken::<TestRequest>(
        "TestRequest",
        json!({"files": files, "frameworks": null, "environment": "staging", "keys": ["k"], "limit": 5}),
    );
    assert_taken::<SimulateRequest>(
        "SimulateRequest",
        json!({
            "files": files, "frameworks": null, "environment": null, "trace": "t", "profile": "mix",
            "workloads": 2, "seed": 3, "epochs": 4, "order": "shard-shuffled", "objects": 5, "cache": [".5"],
            "block": "8MiB", "policies": ["lru"], "from_epoch": 2, "plans": true
        }),
    );
    assert!(serde_json::from_value::<SimulateRequest>(json!({})).is_ok(), "no field is required");
}

#[tokio::test]
async fn schemas_are_those_of_the_language() {
    let api = Api::open().await;
    let (status, policy) = api.call(Method::GET, "/v1/policy/schema", Value::Null).await;
    assert_eq!((status, policy), (StatusCode::OK, mlgw_policies::language::schema()));
    let (_, plugin) = api.call(Method::GET, "/v1/policy/schema?framework=true", Value::Null).await;
    assert_eq!(plugin, mlgw_policies::language::framework_schema());
    let (status, _) = api.call(Method::GET, "/v1/policy/schema?of=it", Value::Null).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn files_are_validated_and_nothing_changes() {
    let api = Api::open().await;
    let post = async |body: Value| api.call(Method::POST, "/v1/policy/validate", body).await;
    let files = text("p.yaml", POLICY);
    let (status, response) = post(json!({"files": files})).await;
    assert_eq!((status, &response[0]["valid"]), (StatusCode::OK, &json!(false)), "there is no such template");
    assert_schema_of("ValidationResult", &response[0]);
    assert_eq!(response[0]["diagnostics"][0]["line"], 3);
    let (_, response) = post(json!({"files": files, "frameworks": text("mine.yaml", PLUGIN)})).await;
    assert_eq!(
        (&response[0]["valid"], &response[1]["kind"]),
        (&json!(true), &json!("framework")),
        "{response}"
    );
    // The running plugins are available unless the request has its own.
    let applied = json!({"frameworks": text("mine.yaml", PLUGIN)});
    assert_eq!(api.call(Method::POST, "/v1/policy", applied).await.0, StatusCode::OK);
    let (_, response) = post(json!({"files": files})).await;
    assert_eq!((response.as_array().unwrap().len(), &response[0]["valid"]), (1, &json!(true)), "{response}");
    let (_, response) = post(json!({"files": files, "frameworks": []})).await;
    assert_eq!(response[0]["valid"], false);
    assert_eq!(post(json!({})).await.0, StatusCode::BAD_REQUEST);
    let many = json!({"files": vec![files[0].clone(); 17]});
    assert_eq!(post(many).await.0, StatusCode::BAD_REQUEST);
    let (_, history) = api.call(Method::GET, "/v1/policy/history", Value::Null).await;
    assert_eq!(history["versions"].as_array().unwrap().len(), 1);
    assert_eq!(api.audit().len(), 1);
}

#[tokio::test]
async fn keys_are_tested_against_a_policy() {
    let api = Api::open().await;
    let post = async |body: Value| api.call(Method::POST, "/v1/policy/test", body).await;
    let (files, plugins) = (text("p.yaml", POLICY), text("mine.yaml", PLUGIN));
    let keys = json!(["a/x.mine", "s3://lake/b.jpg"]);
    let request = json!({"files": files, "frameworks": plugins, "keys": keys});
    let (status, response) = post(request.clone()).await;
    assert_eq!(status, StatusCode::OK, "{response}");
    assert_schema_of("PolicyTestResult", &response);
    assert_eq!((&response["tried"], &response["keys"][1]["bucket"]), (&json!(2), &json!("lake")));
    let rule = response["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == "kept.it").unwrap();
    assert_eq!((&rule["matched"], &rule["of"]), (&json!(1), &json!(2)));
    let limited = json!({"files": files, "frameworks": plugins, "keys": keys, "limit": 1});
    assert_eq!(post(limited).await.1["keys"].as_array().unwrap().len(), 1);
    // Rules of an environment apply in that environment only.
    let rule = "{id: here, conditions: [{type: file_pattern, property: name, operator: matches, \
        value: '*.jpg'}], actions: [{type: pin}]}";
    let files = text("e.yaml", &format!("version: 1\nenvironments:\n  staging: {{rules: [{rule}]}}\n"));
    let has = async |environment: Value| {
        let result = post(json!({"files": files, "keys": keys, "environment": environment})).await.1;
        result["rules"].as_array().unwrap().iter().any(|rule| rule["rule"] == "here" && rule["matched"] == 1)
    };
    assert_eq!((has(json!("staging")).await, has(Value::Null).await), (true, false));
    for (wrong, status) in [
        (json!({"keys": []}), StatusCode::BAD_REQUEST),
        (json!({"keys": [""]}), StatusCode::BAD_REQUEST),
        (json!({"keys": vec!["k"; 10_001]}), StatusCode::BAD_REQUEST),
        (json!({"keys": ["k"], "limit": 1001}), StatusCode::BAD_REQUEST),
        (json!({"keys": ["k"], "environment": "research"}), StatusCode::BAD_REQUEST),
        (json!({"keys": ["k"], "files": text("w.yaml", "version: 2\n")}), StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        assert_eq!(post(wrong.clone()).await.0, status, "{wrong}");
    }
}

const NOTHING_KEPT: &str = "
version: 1
rules:
- {id: nothing, priority: 10, conditions: [{type: file_context, property: size, operator: greater_than, \
    value: 1B}], actions: [{type: cache, parameters: {keep: false}}]}
";

#[tokio::test]
async fn only_one_profile_is_simulated_at_a_time() {
    let api = Api::open().await;
    let post = async |body: Value| api.call(Method::POST, "/v1/policy/simulate", body).await;
    let mut request = json!({
        "profile": "epochs", "objects": 50, "epochs": 3, "seed": 7, "cache": [".5", "10MiB"],
        "policies": ["mlgw", "lru"]
    });
    let (status, rows) = post(request.clone()).await;
    assert_eq!(status, StatusCode::OK, "{rows}");
    let seen: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["cache_fraction"].as_f64().unwrap(), &row["policy"]))
        .collect();
    let (mlgw, lru) = (json!("mlgw"), json!("lru"));
    assert_eq!(seen, [(0.5, &mlgw), (0.5, &lru), (0.2, &mlgw), (0.2, &lru)]);
    assert_eq!((&rows[0]["profile"], &rows[0]["seed"]), (&json!("epochs"), &json!(7)));
    assert!(rows[0]["byte_hit_ratio"].as_f64().unwrap() > 0.2, "{rows}");
    assert_eq!(post(request.clone()).await.1, rows, "the same again");
    request["files"] = text("p.yaml", NOTHING_KEPT);
    assert_eq!(post(request.clone()).await.1[0]["byte_hit_ratio"], 0.0, "rules apply");
    let turn = api.admin.simulating.lock().await;
    let (status, response) = post(request).await;
    assert_eq!((status, &response["code"]), (StatusCode::CONFLICT, &json!("SimulationRunning")));
    drop(turn);
}

#[tokio::test]
async fn invalid_or_too_large_simulations_are_refused() {
    let api = Api::open().await;
    let post = async |body: Value| api.call(Method::POST, "/v1/policy/simulate", body).await;
    for (wrong, why) in [
        (json!({}), "Nothing to replay"),
        (json!({"trace": "t", "profile": "mix"}), "Nothing to replay"),
        (json!({"trace": "../t"}), "invalid trace name"),
        (json!({"trace": "t", "seed": 1}), "only with a profile"),
        (json!({"profile": "resnet51"}), "unknown variant `resnet51`"),
        (json!({"profile": "mix", "workloads": 0}), "workloads is 0"),
        (json!({"profile": "mix", "cache": ["0"]}), "cache is \"0\""),
        (json!({"profile": "mix", "cache": vec![".5"; 17]}), "17 caches were given"),
        (json!({"profile": "mix", "block": "1"}), "block is \"1\""),
        (json!({"profile": "mix", "policies": ["best"]}), "unknown variant `best`"),
        (json!({"profile": "mix", "from_epoch": 0}), "from_epoch is 0"),
        (json!({"profile": "mix", "environment": "here"}), "unknown variant `here`"),
        (json!({"profile": "zipf", "objects": 21_000}), "objects times epochs is 1050000"),
        (json!({"profile": "unet3d", "block": "4KiB", "policies": ["lru"]}), "more than 2097152 blocks"),
    ] {
        let (status, response) = post(wrong.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {response}");
        assert!(response["message"].as_str().unwrap().contains(why), "{wrong}: {response}");
    }
    assert_eq!(post(json!({"trace": "none"})).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_trace_of_the_server_is_simulated_under_the_running_or_the_given_policy() {
    let api = Api::open().await;
    let post = async |body: Value| api.call(Method::POST, "/v1/policy/simulate", body).await;
    let dir = api.dir().join("traces/day");
    std::fs::create_dir_all(&dir).unwrap();
    // Two files with the same content.
    for number in 1..=2_u64 {
        let mut bytes = Vec::new();
        let mut writer = TraceWriter::new(0, &mut bytes);
        for at in 0..20_u64 {
            let (key, caller) = (format!("k/{at:02}"), Caller { id: 1, family: 1 });
            let (at_us, range) = (number * 1_000_000 + at * 1000, 0..4096);
            let access = Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size: 4096, range };
            let _ = writer.write(&access, &mut bytes);
        }
        writer.flush(&mut bytes);
        std::fs::write(dir.join(format!("{number:06}.mlgwtrace")), bytes).unwrap();
    }
    let request =
        json!({"trace": "day", "cache": ["1"], "policies": ["mlgw", "never-evict"], "block": "4KiB"});
    let (status, rows) = post(request.clone()).await;
    assert_eq!(status, StatusCode::OK, "{rows}");
    assert_eq!((&rows[0]["profile"], &rows[0]["seed"]), (&json!("day"), &json!(0)));
    assert_eq!(rows[1]["object_hit_ratio"], 0.5, "all of it is there the second time");
    assert_schema_of("SimulationRow", &rows[0]);
    let applied = json!({"files": text("p.yaml", NOTHING_KEPT)});
    assert_eq!(api.call(Method::POST, "/v1/policy", applied).await.0, StatusCode::OK);
    let (_, ruled) = post(request.clone()).await;
    assert_eq!(ruled[0]["object_hit_ratio"], 0.0, "the running policy decides");
    assert_ne!(ruled[0]["decisions_hash"], rows[0]["decisions_hash"]);
    let mut without = request.clone();
    without["files"] = json!([]);
    assert_eq!(post(without).await.1[0]["decisions_hash"], rows[0]["decisions_hash"]);
    std::fs::write(dir.join("000002.mlgwtrace"), "not a trace").unwrap();
    let (status, response) = post(request).await;
    assert_eq!((status, &response["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("TraceUnreadable")));
}
