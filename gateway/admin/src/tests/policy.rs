//! `/v1/policy…`: consistency with the OpenAPI document, and behavior of the calls.

use super::calls::Api;
use super::document::{assert_schema_of, assert_taken};
use http::{Method, StatusCode};
use mlgw_api::{
    ActionInfo, ApplyRequest, CachePriority, CachedBlocksInfo, ConditionResultInfo, CopyPolicy,
    DatasetOutcomes, EffectivePolicy, ExpiredCheckpointInfo, Explanation, FactInfo, FreezeRequest,
    ObjectInfo, OverriddenAction, OverrideReason, PendingDeletionInfo, PlanExample, PlanPage, PlanRequest,
    PlannedActionInfo, PlannedChange, PolicyChange, PolicyChangeKind, PolicyEnvironment, PolicyHistory,
    PolicyInfo, PolicyText, PolicyVersionInfo, ReadAheadStrategy, RecommendationInfo, RollbackRequest,
    RuleActionKind, RuleEvaluationInfo, RuleStance, ScopedActionInfo, UndeterminedRule,
};
use mlgw_policies::at_rest::ExpiredCheckpoint;
use serde_json::{Value, json};

fn version() -> PolicyVersionInfo {
    PolicyVersionInfo {
        version: 3,
        time: "t".into(),
        who: "AK".into(),
        kind: PolicyChangeKind::Rollback,
        message: "m".into(),
        changes: "c".into(),
        files: 1,
        back_to: Some(1),
        frozen: true,
    }
}

#[test]
fn what_runs_has_the_fields_and_types_that_the_document_says() {
    let file = PolicyText { name: "n".into(), text: "t".into() };
    let info = PolicyInfo {
        version: Some(version()),
        learning: true,
        environment: Some(PolicyEnvironment::Production),
        files: vec![file.clone()],
        frameworks: vec![file],
        rules_act: 1,
        rules_observe: 1,
        fault: Some("f".into()),
        refused: Some("r".into()),
    };
    assert_schema_of("PolicyInfo", &PolicyInfo { version: None, fault: None, ..info.clone() });
    assert_schema_of("PolicyInfo", &info);
    let effective = EffectivePolicy { version: 1, yaml: "y".into(), policy: json!({}), from: json!({}) };
    assert_schema_of("EffectivePolicy", &effective);
    let other = PolicyVersionInfo { back_to: None, kind: PolicyChangeKind::Apply, ..version() };
    assert_schema_of("PolicyHistory", &PolicyHistory { versions: vec![version(), other] });
    assert_schema_of("PolicyChange", &PolicyChange { changed: true, version: Some(version()) });
    let file = json!({"name": "n", "text": "t"});
    let apply = json!({"files": [file], "frameworks": null, "if_version": 3, "message": "m"});
    assert_taken::<ApplyRequest>("ApplyRequest", apply);
    let back = json!({"version": null, "if_version": 3, "message": "m"});
    assert_taken::<RollbackRequest>("RollbackRequest", back);
    assert_taken::<FreezeRequest>("FreezeRequest", json!({"if_version": null, "message": ""}));
}

#[test]
fn plans_and_explanations_have_the_fields_and_types_that_the_document_says() {
    let plan = json!({"files": null, "frameworks": [], "plan": 3, "limit": 5});
    assert_taken::<PlanRequest>("PlanRequest", plan);
    let action = PlannedActionInfo {
        change: PlannedChange::Starts,
        stance: RuleStance::Act,
        examples: vec![PlanExample::default()],
        ..PlannedActionInfo::default()
    };
    let page = PlanPage {
        actions: vec![action],
        not_judged: vec![UndeterminedRule { rule: "r".into(), asks: vec!["a".into()] }],
        deletions: vec![PendingDeletionInfo::default()],
        expired: vec![ExpiredCheckpointInfo::default()],
        impossible: vec!["spill".into()],
        next: Some(3),
        ..PlanPage::default()
    };
    assert_schema_of("PlanPage", &page);
    let action = || ActionInfo {
        action: RuleActionKind::Pin,
        target: "object".into(),
        rule: "r".into(),
        note: "n".into(),
    };
    let lost = OverriddenAction {
        action: RuleActionKind::Pin,
        rule: "r".into(),
        to_action: RuleActionKind::Pin,
        to_rule: "q".into(),
        why: OverrideReason::Same,
    };
    let rule = RuleEvaluationInfo {
        rule: "r".into(),
        priority: 1,
        from: "f:1".into(),
        applies: true,
        matched: true,
        score: 0.5,
        conditions: vec![ConditionResultInfo { held: true, says: "s".into() }],
    };
    let recommendation = RecommendationInfo {
        cache: true,
        cache_priority: CachePriority::High,
        cache_policy: CopyPolicy::Lru,
        prefetch_depth: 1,
        prefetch_bytes: 1,
        prefetch_strategy: ReadAheadStrategy::Adaptive,
    };
    let explanation = Explanation {
        object: object(),
        kept: Some(CachedBlocksInfo { blocks: 1, kept: 1, pinned: 1, planned: 0 }),
        version: 1,
        facts: vec![FactInfo { property: "size".into(), value: "1B".into() }],
        rules: vec![rule],
        due: vec![action()],
        observed: vec![action()],
        overridden: vec![lost],
        scoped: vec![ScopedActionInfo {
            action: RuleActionKind::Pin,
            rule: "r".into(),
            of: "prefix p".into(),
        }],
        deletion: Some(PendingDeletionInfo::default()),
        recommendation,
        reason: "r".into(),
    };
    // Without the fields that only remote-backed buckets have.
    let mut document = serde_json::to_value(explanation).unwrap();
    document["object"]["origin"] = json!({
        "upstream": "u", "key": "k", "dirty": false, "contested": false, "validated_ms_ago": 1, "read": "r"
    });
    assert_schema_of("Explanation", &document);
}

pub(super) fn object() -> ObjectInfo {
    ObjectInfo {
        bucket: "b".into(),
        key: "k".into(),
        size: 1,
        etag: "e".into(),
        modified: "m".into(),
        storage_class: "STANDARD".into(),
        body_id: 1,
        parts: 0,
        tiers: vec![],
        nodes: vec![],
        extents: vec![],
        whole: true,
        origin: None,
    }
}

fn rule(id: &str) -> Value {
    let text = format!(
        "version: 1\nrules:\n- {{id: {id}, conditions: [{{type: file_pattern, property: name, \
         operator: matches, value: '*.a'}}], actions: [{{type: pin}}]}}\n"
    );
    json!([{"name": format!("{id}.yaml"), "text": text}])
}

#[tokio::test]
async fn each_change_is_a_version_and_a_line_of_the_audit_log() {
    let api = Api::open().await;
    let post = async |path: &str, body: Value| api.call(Method::POST, path, body).await;
    let (status, applied) = post("/v1/policy", json!({"files": rule("a"), "message": "first"})).await;
    assert_eq!(status, StatusCode::OK, "{applied}");
    assert_eq!((&applied["changed"], &applied["version"]["version"]), (&json!(true), &json!(1)));
    assert_eq!(applied["version"]["changes"], "1 rule added (a)");
    let (_, again) = post("/v1/policy", json!({"files": rule("a")})).await;
    assert_eq!((&again["changed"], &again["version"]["version"]), (&json!(false), &json!(1)));
    let (status, stale) = post("/v1/policy", json!({"files": rule("b"), "if_version": 0})).await;
    assert_eq!((status, &stale["code"]), (StatusCode::CONFLICT, &json!("PolicyChanged")));
    let (status, wrong) =
        post("/v1/policy", json!({"files": [{"name": "w.yaml", "text": "version: 2\n"}]})).await;
    assert_eq!((status, &wrong["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("InvalidPolicy")));
    assert!(
        wrong["message"].as_str().unwrap().starts_with("w.yaml is invalid:\nw.yaml:1:10: version:"),
        "{wrong}"
    );
    post("/v1/policy/freeze", json!({})).await;
    let (_, back) = post("/v1/policy/rollback", json!({})).await;
    assert_eq!((&back["version"]["version"], &back["version"]["back_to"]), (&json!(3), &json!(0)));
    assert_eq!(back["version"]["frozen"], true);
    let (_, history) = api.call(Method::GET, "/v1/policy/history", Value::Null).await;
    let kinds: Vec<_> = history["versions"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["rollback", "freeze", "apply"]);
    let actions: Vec<_> = api.audit().into_iter().map(|line| (line.action, line.outcome)).collect();
    let done: Vec<_> =
        actions.iter().filter(|(_, outcome)| outcome == "done").map(|(a, _)| a.as_str()).collect();
    assert_eq!(done, ["policy.apply", "policy.apply", "policy.freeze", "policy.rollback"]);
    assert_eq!(actions.iter().filter(|(_, outcome)| outcome.starts_with("refused: ")).count(), 2);
}

#[tokio::test]
async fn files_that_are_too_many_or_too_long_are_refused() {
    let api = Api::open().await;
    let post = async |body: Value| api.call(Method::POST, "/v1/policy", body).await;
    let file = json!({"name": "n.yaml", "text": "version: 1\n"});
    let (status, response) = post(json!({"files": vec![file.clone(); 17]})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(response["message"], "There are 17 policies; at most 16 are allowed.");
    let large = json!({"name": "n.yaml", "text": format!("version: 1\n#{}", "x".repeat(1 << 20))});
    let (status, response) = post(json!({"files": [large]})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{response}");
    let (status, response) = post(json!({"files": vec![large; 5]})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{response}");
    let (status, _) = post(json!({"files": [file], "message": "x".repeat(1025)})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn outcomes_match_their_schema() {
    let api = Api::open().await;
    let (status, response) = api.call(Method::GET, "/v1/policy/outcomes", Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{response}");
    assert_schema_of("PolicyOutcomes", &response);
    assert_eq!(response["rules"][0]["rule"], "engine");
    assert_eq!(response["ahead"]["depth"], 64);
    assert_schema_of("DatasetOutcomes", &DatasetOutcomes::default());
}

#[tokio::test]
async fn a_plan_lists_every_pending_deletion_of_a_running_rule_even_if_the_engine_does_not_know_it() {
    let api = Api::open().await;
    let text = concat!(
        "version: 1\nrules:\n- id: few\n  conditions: [{type: file_pattern, property: name, \
         operator: matches, value: '*.distcp'}]\n",
        "  actions: [{type: retain, parameters: {keep_last: 1, delete: true, grace: 1d}}]\n",
    );
    let (status, applied) =
        api.call(Method::POST, "/v1/policy", json!({"files": [{"name": "few.yaml", "text": text}]})).await;
    assert_eq!(status, StatusCode::OK, "{applied}");
    let waits = |prefix: &str, rule: &str| ExpiredCheckpoint {
        bucket: 3,
        prefix: prefix.into(),
        rule: rule.into(),
        grace: std::time::Duration::from_hours(24),
        last_used_ms: 0,
        files: 2,
        bytes: 5,
        seq: 0,
        guards: Vec::new(),
    };
    let now_ms = api.admin.clock.now().as_millis();
    // No object was ever written, so the engine knows no checkpoint at all.
    api.admin
        .retention
        .record_expired(now_ms, &[waits("run/step-1/", "few"), waits("run/step-2/", "gone")])
        .unwrap();
    let (_, mut page) = api.call(Method::POST, "/v1/policy/plan", json!({})).await;
    while let Some(next) = page["next"].as_u64() {
        (_, page) = api.call(Method::POST, "/v1/policy/plan", json!({"plan": next})).await;
    }
    let prefixes: Vec<_> = page["deletions"].as_array().unwrap().iter().map(|one| &one["objects"]).collect();
    assert_eq!(prefixes, ["s3:///run/step-1/"], "the rule of the other policy does not run: {page}");
}
