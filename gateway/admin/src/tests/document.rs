//! Consistency of docs/openapi.json with the code: its routes, and the fields of its documents.

use crate::openapi::DOCUMENT;
use crate::{PROBES, ROUTES};
use mlgw_api::{
    AccessKeyRole, AdminErrorBody, BackupStatus, BadRange, BindRequest, BindingInfo, BucketInfo, BucketPage,
    CheckInfo, CompactRequest, CompactionInfo, CreatedKey, DatasetInfo, DatasetList, DecisionInfo,
    DecisionList, DirtyInfo, DiscardResult, ExtentInfo, Health, HealthFinding, JobInfo, JobList, JobRequest,
    KeyChange, KeyInfo, KeyList, MigrateRequest, MovesInfo, NewBackup, NewBucketRequest, NewDataset, NewKey,
    ObjectInfo, ObjectTierInfo, OriginObjectInfo, PinRequest, QuotaInfo, QuotaRequest, RefreshRequest,
    RefreshResult, ResidencyInfo, ScheduleInfo, ScheduleRequest, SettingInfo, SettingList, SourceInfo,
    TierDetail, TierInfo, TierList, TraceFileInfo, TraceInfo, TraceList, UpstreamInfo, UpstreamList,
    UsedInfo,
};
use mlgw_testing::sample_status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let document = document();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|m| (m.clone(), path.clone())))
        .collect();
    let routes = ROUTES.iter().copied().chain(PROBES.iter().map(|path| ("get", *path)));
    let routes: BTreeSet<_> = routes.map(|(method, path)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(described, routes);
}

#[test]
fn only_the_probes_need_no_signature() {
    for (path, methods) in document()["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let open = operation["security"] == json!([]);
            assert_eq!(open, PROBES.contains(&&**path), "{method} {path}");
        }
    }
}

/// Asserts that `value` has exactly the properties of the schema, each of the given type.
fn assert_fits(schema: &Value, value: &Value, at: &str) {
    let document = document();
    let schema = match schema["$ref"].as_str() {
        Some(name) => &document.pointer(name.strip_prefix('#').unwrap()).unwrap().clone(),
        None => schema,
    };
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        other => panic!("{at}: the type is {other}"),
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(types.contains(&found), "{at}: {value} has none of the types {types:?}");
    match value {
        Value::Array(items) => items.iter().for_each(|item| assert_fits(&schema["items"], item, at)),
        Value::Object(fields) => {
            let properties = schema["properties"].as_object().unwrap();
            let (said, is): (BTreeSet<_>, BTreeSet<_>) =
                (properties.keys().collect(), fields.keys().collect());
            assert_eq!(said, is, "{at}");
            for (name, value) in fields {
                assert_fits(&properties[name], value, &format!("{at}.{name}"));
            }
        }
        Value::String(text) if schema["enum"].is_array() => {
            assert!(schema["enum"].as_array().unwrap().contains(&json!(text)), "{at}: {text}");
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

pub(super) fn assert_schema_of(name: &str, value: &impl Serialize) {
    let schema = json!({"$ref": format!("#/components/schemas/{name}")});
    assert_fits(&schema, &serde_json::to_value(value).unwrap(), name);
}

fn key() -> KeyInfo {
    KeyInfo {
        access_key: "AK".into(),
        role: AccessKeyRole::Write,
        buckets: vec!["b*".into()],
        prefixes: vec![],
        description: String::new(),
        created: None,
        disabled: false,
        root: false,
        quota: QuotaInfo { bytes: Some(1), objects: Some(1) },
        used: Some(UsedInfo::default()),
    }
}

fn bucket() -> BucketInfo {
    BucketInfo {
        name: "b".into(),
        owner: "o".into(),
        created: "c".into(),
        region: "r".into(),
        objects: 1,
        versions: 1,
        bytes: 1,
        uploads: 1,
        upload_bytes: 1,
        binding: Some(BindingInfo {
            upstream: "u".into(),
            prefix: "p/".into(),
            mode: "read-through".into(),
            ttl: None,
        }),
        quota: QuotaInfo::default(),
        used: UsedInfo::default(),
    }
}

#[test]
fn objects_match_their_schemas() {
    let extent = ExtentInfo {
        first: 0,
        bytes: 1,
        stored_bytes: 1,
        encoding: "raw".into(),
        tier: "hot".into(),
        segment: 1,
        segment_state: "open".into(),
        offset: 1,
    };
    let object = ObjectInfo {
        tiers: vec![ObjectTierInfo { tier: "hot".into(), bytes: 1, stored_bytes: 1, segments: 1 }],
        extents: vec![extent],
        ..super::policy::object()
    };
    let origin = OriginObjectInfo {
        upstream: "u".into(),
        key: "k".into(),
        dirty: false,
        contested: false,
        validated_ms_ago: Some(1),
        read: Some("r".into()),
    };
    assert_schema_of("AtOrigin", &origin);
    assert_schema_of("ObjectInfo", &ObjectInfo { origin: Some(origin), ..object });
}

#[test]
fn answers_match_their_schemas() {
    let root = KeyInfo { quota: QuotaInfo::default(), used: None, ..key() };
    assert_schema_of("KeyList", &KeyList { keys: vec![key(), root] });
    assert_schema_of("CreatedKey", &CreatedKey { secret_access_key: "s".into(), key: key() });
    assert_schema_of("BucketPage", &BucketPage { buckets: vec![bucket()], next: None });
    assert_schema_of("BucketPage", &BucketPage { buckets: vec![], next: Some("b".into()) });
    let upstream = UpstreamInfo {
        name: "u".into(),
        kind: "s3".into(),
        endpoint: None,
        bucket: "b".into(),
        prefix: String::new(),
        encrypt: false,
        bound: vec!["b".into()],
        spilled_to: true,
        segments: 1,
        segment_bytes: 2,
        owner: "foreign".into(),
        marked_by: Some("i".into()),
        advice: None,
        conditions: Some(true),
    };
    assert_schema_of("UpstreamList", &UpstreamList { upstreams: vec![upstream] });
    let step = CheckInfo { step: "list".into(), fault: Some("f".into()), missing: None };
    assert_schema_of("CheckInfo", &step);
    assert_schema_of("BucketInfo", &BucketInfo { binding: None, ..bucket() });
    assert_schema_of("ErrorDocument", &AdminErrorBody { code: "c".into(), message: "m".into() });
    assert_schema_of("TierList", &TierList { tiers: vec![TierInfo::default()] });
    let bad = BadRange { part: Some(1), ..BadRange::default() };
    assert_schema_of("TierDetail", &TierDetail { bad: vec![bad], ..TierDetail::default() });
    let backup = BackupStatus { state: "done".into(), error: Some("e".into()), ..BackupStatus::default() };
    assert_schema_of("BackupStatus", &backup);
    let trace =
        TraceInfo { files: vec![TraceFileInfo::default()], fell_behind: Some(true), ..TraceInfo::default() };
    assert_schema_of("TraceList", &TraceList { traces: vec![trace, TraceInfo::default()] });
    let setting =
        SettingInfo { key: "k".into(), value: "v".into(), derived: Some(1), origin: "o".into(), live: true };
    assert_schema_of("SettingList", &SettingList { settings: vec![setting] });
    let mut status = sample_status::healthy();
    assert_schema_of("Status", &status);
    status.findings =
        vec![HealthFinding { severity: Health::Critical, what: "w".into(), advice: "a".into() }];
    status.recent.sync_p99_seconds = None;
    assert_schema_of("Status", &status);
}

#[test]
fn every_word_of_a_decision_is_in_the_document() {
    use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
    let said = |property: &str| {
        let document = document();
        let words = &document["components"]["schemas"]["DecisionInfo"]["properties"][property]["enum"];
        words.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(said("kind"), DecisionKind::ALL.iter().map(|word| word.name()).collect::<Vec<_>>());
    assert_eq!(said("reason"), DecisionReason::ALL.iter().map(|word| word.name()).collect::<Vec<_>>());
    assert_eq!(said("outcome"), DecisionOutcome::ALL.iter().map(|word| word.name()).collect::<Vec<_>>());
    let places = DecisionPlace::ALL.iter().map(|word| word.name()).collect::<Vec<_>>();
    assert_eq!(
        (said("from"), said("to")),
        (said("to"), places.iter().map(|&word| word.to_owned()).collect())
    );
}

#[test]
fn compaction_matches_its_schema() {
    let compaction = CompactionInfo {
        tier: "hot".into(),
        garbage_bytes: 1,
        moved_bytes: 1,
        freed_bytes: 1,
        freed_segments: 1,
        held_back_segments: 1,
        draining_segments: 1,
        rounds: 1,
        until_rounds: None,
    };
    assert_schema_of("CompactionInfo", &compaction);
    assert_schema_of("CompactionInfo", &CompactionInfo { until_rounds: Some(2), ..compaction });
    let decision = DecisionInfo {
        kind: "spill".into(),
        from: "hot".into(),
        to: "cold".into(),
        reason: "drain".into(),
        outcome: "done".into(),
        ..DecisionInfo::default()
    };
    let other = DecisionInfo {
        segment: Some(1),
        bucket: Some("b".into()),
        key: Some("k".into()),
        job: Some(1),
        rule: Some("r".into()),
        error: Some("e".into()),
        ..decision.clone()
    };
    assert_schema_of("DecisionList", &DecisionList { decisions: vec![decision, other] });
    assert_schema_of("MovesInfo", &MovesInfo::default());
    assert_schema_of("MovesInfo", &MovesInfo { until_orders: Some(1), ..MovesInfo::default() });
}

#[test]
fn datasets_and_jobs_match_their_schemas() {
    let job = JobInfo {
        kind: "warm".into(),
        state: "running".into(),
        bytes_per_second: Some(1),
        eta_seconds: Some(1),
        error: Some("e".into()),
        to: Some(MigrateRequest { upstream: "u".into(), prefix: "p/".into() }),
        ..JobInfo::default()
    };
    let dataset = DatasetInfo {
        slices: vec!["p/".into()],
        sources: vec![SourceInfo::default()],
        readiness: "partial".into(),
        bytes: Some(1),
        residency: vec![ResidencyInfo { tier: "copies".into(), ..ResidencyInfo::default() }],
        schedules: vec![ScheduleInfo { next: Some("n".into()), ..ScheduleInfo::default() }],
        job: None,
        ..DatasetInfo::default()
    };
    let busy = DatasetInfo { job: Some(job.clone()), ..dataset.clone() };
    assert_schema_of("DatasetList", &DatasetList { datasets: vec![dataset, busy] });
    assert_schema_of("JobList", &JobList { jobs: vec![JobInfo { to: None, ..job.clone() }, job] });
    let source = json!({"upstream": "u", "prefix": "p", "into": "q"});
    assert_taken::<NewDataset>(
        "NewDataset",
        json!({"name": "d", "bucket": "b", "slices": ["p"], "sources": [source]}),
    );
    assert_taken::<PinRequest>("PinRequest", json!({"bytes_max": "1GiB"}));
    assert_taken::<ScheduleRequest>(
        "ScheduleRequest",
        json!({"cron": "@daily", "older_than": "7d", "delete": false, "prefix": "", "order": null}),
    );
    assert_taken::<JobRequest>(
        "JobRequest",
        json!({"kind": "warm", "older_than": null, "delete": false, "prefix": "p", "order": null}),
    );
}

/// Asserts that the type accepts all properties in the document's schema, and has no others.
pub(super) fn assert_taken<T: DeserializeOwned + Serialize>(name: &str, whole: Value) {
    let parsed: T = serde_json::from_value(whole.clone()).unwrap();
    assert_schema_of(name, &parsed);
    assert_eq!(serde_json::to_value(&parsed).unwrap(), whole);
    let mut more = whole;
    more["surprise"] = json!(1);
    assert!(serde_json::from_value::<T>(more).is_err(), "{name} accepts unknown fields");
}

#[test]
fn requests_are_taken_as_the_document_says() {
    let quota = json!({"bytes": "10GiB", "objects": null});
    assert_taken::<QuotaRequest>("QuotaRequest", quota.clone());
    assert_taken::<NewKey>(
        "NewKey",
        json!({
            "access_key": "AK", "secret_access_key": "s", "role": "read", "buckets": [], "prefixes": [],
            "description": "", "quota": quota
        }),
    );
    assert_taken::<KeyChange>(
        "KeyChange",
        json!({
            "role": "admin", "buckets": null, "prefixes": ["p"], "description": null, "disabled": true,
            "quota": quota
        }),
    );
    assert_taken::<CompactRequest>("CompactRequest", json!({"dead_percent": 5}));
    assert_taken::<BindRequest>(
        "BindRequest",
        json!({"upstream": "u", "prefix": "p/", "mode": null, "ttl": "1h"}),
    );
    assert_taken::<RefreshRequest>("RefreshRequest", json!({"prefix": "p/"}));
    assert_taken::<MigrateRequest>("MigrateRequest", json!({"upstream": "u", "prefix": "p/"}));
    assert_schema_of("Refreshed", &RefreshResult { objects: 1 });
    for some in [None, Some("x".to_owned())] {
        let foreign: Vec<String> = some.iter().cloned().collect();
        let unconfirmed = foreign.clone();
        let dirty =
            DirtyInfo { oldest: some.clone(), trouble: some, foreign, unconfirmed, ..DirtyInfo::default() };
        assert_schema_of("DirtyInfo", &dirty);
    }
    assert_schema_of("Discarded", &DiscardResult { writes: 1 });
    assert_taken::<NewBucketRequest>("NewBucketRequest", json!({"name": "b", "region": null}));
    assert_taken::<NewBackup>("NewBackup", json!({"out": "/backup", "leave_upstreams": true}));
    assert!(serde_json::from_value::<NewKey>(json!({})).is_ok(), "no field is required");
}
