//! `/v1/workloads` and `/v1/workload-plans`: consistency with the OpenAPI document, and behavior of the
//! calls.

use super::calls::Api;
use super::document::{assert_schema_of, assert_taken};
use http::{Method, StatusCode};
use mlgw_api::{
    AccessPlanInfo, AccessPlanList, CopyPolicy, CountedPhase, NewAccessPlan, OptimizationLevel, PhaseCount,
    PlanSampler, ReadAheadStrategy, TreatmentInfo, WorkloadDataset, WorkloadDatasetRole, WorkloadInfo,
    WorkloadList, WorkloadPhase, WorkloadTotals,
};
use serde_json::{Value, json};

#[test]
fn workloads_and_plans_match_their_schemas() {
    let text = || Some("t".to_owned());
    let (optimization, prefetch, cache) =
        (OptimizationLevel::Balanced, ReadAheadStrategy::Adaptive, CopyPolicy::Learned);
    let treatment = TreatmentInfo { optimization, prefetch, cache };
    let bare = WorkloadInfo { treatment: treatment.clone(), ..WorkloadInfo::default() };
    let whole = WorkloadInfo {
        treatment,
        name: text(),
        user_agent: text(),
        phase: Some(WorkloadPhase::Training),
        datasets: vec![WorkloadDataset { role: WorkloadDatasetRole::Model, ..WorkloadDataset::default() }],
        batch_size: Some(2.0),
        items_per_second: 0.5,
        last_checkpoint: text(),
        last_checkpoint_prefix: text(),
        checkpoint_interval_seconds: Some(1.5),
        frameworks: vec!["pytorch".into()],
        ..WorkloadInfo::default()
    };
    let phases = vec![PhaseCount { phase: CountedPhase::Unknown, workloads: 1 }];
    let totals = WorkloadTotals { phases, ..WorkloadTotals::default() };
    assert_schema_of("WorkloadList", &WorkloadList { workloads: vec![whole, bare], totals });
    let plan = AccessPlanInfo {
        sampler: PlanSampler::TorchRandom,
        rank: Some(1),
        workloads: vec!["w".into()],
        ..AccessPlanInfo::default()
    };
    assert_schema_of(
        "AccessPlanList",
        &AccessPlanList { plans: vec![AccessPlanInfo { rank: None, ..plan.clone() }, plan] },
    );
    assert_taken::<NewAccessPlan>("NewAccessPlan", json!({"workload": "w", "name": "n", "text": "t"}));
}

fn new(workload: &str, text: &str) -> Value {
    json!({"workload": workload, "name": "p.yaml", "text": text})
}

#[tokio::test]
async fn a_plan_is_put_shown_and_deleted_and_each_change_is_a_line_of_the_audit_log() {
    let api = Api::open().await;
    api.call(Method::POST, "/v1/buckets", json!({"name": "lake"})).await;
    let keys = new("resnet", "version: 1\nbucket: lake\nkeys: [a, b, a]\nepochs: 3\n");
    let (status, put) = api.call(Method::PUT, "/v1/workload-plans/resnet", keys).await;
    assert_eq!(status, StatusCode::OK, "{put}");
    assert_eq!((&put["keys"], &put["reads"], &put["trusted"]), (&json!(2), &json!(3), &json!(false)));
    let (_, again) = api
        .call(Method::PUT, "/v1/workload-plans/resnet", new("bert", "version: 1\nbucket: lake\nkeys: [c]\n"))
        .await;
    assert_eq!((&again["keys"], &again["workload"]), (&json!(1), &json!("bert")));
    let (_, list) = api.call(Method::GET, "/v1/workload-plans", Value::Null).await;
    assert_eq!(list["plans"], json!([again]));
    assert_eq!(api.call(Method::GET, "/v1/workload-plans/resnet", Value::Null).await.1, again);
    let (status, gone) = api.call(Method::DELETE, "/v1/workload-plans/resnet", Value::Null).await;
    assert_eq!((status, gone), (StatusCode::OK, again));
    for method in [Method::GET, Method::DELETE] {
        let (status, response) = api.call(method, "/v1/workload-plans/resnet", Value::Null).await;
        assert_eq!((status, &response["code"]), (StatusCode::NOT_FOUND, &json!("NoSuchPlan")));
    }
    let lines: Vec<_> =
        api.audit().into_iter().filter(|line| line.action.starts_with("workload.plan")).collect();
    let outcomes: Vec<_> = lines.iter().map(|line| (&*line.action, line.outcome == "done")).collect();
    let (put, delete) = ("workload.plan.put", "workload.plan.delete");
    assert_eq!(outcomes, [(put, true), (put, true), (delete, true), (delete, false)]);
    assert_eq!((&lines[1].before["keys"], &lines[1].after["keys"]), (&json!(2), &json!(1)));
    assert!(lines.iter().all(|line| line.resource == "resnet"));
}

#[tokio::test]
async fn an_invalid_plan_is_refused_with_the_position_of_its_fault() {
    let api = Api::open().await;
    api.call(Method::POST, "/v1/buckets", json!({"name": "lake"})).await;
    let good = "version: 1\nbucket: lake\nkeys: [a]\n";
    for (id, workload, text, status, code, message) in [
        (
            "p",
            "w",
            "version: 1\nbucket: lake\nkeys: [a]\nepochs: 0\n",
            422,
            "InvalidPlan",
            "p.yaml is invalid:\np.yaml:4:9: epochs: ",
        ),
        (
            "p",
            "w",
            "version: 1\nbucket: lake\nprefix: none/\n",
            422,
            "InvalidPlan",
            "p.yaml is invalid: the plan reads nothing",
        ),
        ("p", "w", "version: 1\nbucket: other\nprefix: x\n", 404, "NoSuchBucket", ""),
        ("P", "w", good, 400, "InvalidRequest", "invalid plan id \"P\""),
        ("p", "", good, 400, "InvalidRequest", "the name of a workload"),
    ] {
        let (got, response) =
            api.call(Method::PUT, &format!("/v1/workload-plans/{id}"), new(workload, text)).await;
        assert_eq!((got.as_u16(), &response["code"]), (status, &json!(code)), "{response}");
        assert!(response["message"].as_str().unwrap().starts_with(message), "{response}");
    }
    // Longer than the bodies of other calls may be.
    let keys: Vec<String> = (0..20_000).map(|n| format!("a/key/{n}")).collect();
    let large = json!({"version": 1, "bucket": "lake", "keys": keys}).to_string();
    let (status, response) = api.call(Method::PUT, "/v1/workload-plans/p", new("w", &large)).await;
    assert_eq!((status, &response["keys"]), (StatusCode::OK, &json!(20_000)));
}

#[tokio::test]
async fn workloads_are_empty_before_the_first_request() {
    let api = Api::open().await;
    let (status, list) = api.call(Method::GET, "/v1/workloads", Value::Null).await;
    assert_eq!(
        (status, &list["workloads"], &list["totals"]["active"]),
        (StatusCode::OK, &json!([]), &json!(0))
    );
    for (path, expected) in [
        ("/v1/workloads/none", StatusCode::NOT_FOUND),
        ("/v1/workloads?limit=0", StatusCode::BAD_REQUEST),
        ("/v1/workloads?limit=1001", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(api.call(Method::GET, path, Value::Null).await.0, expected, "{path}");
    }
}
