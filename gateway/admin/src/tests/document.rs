//! Consistency of docs/openapi.json with the code: it is generated, and describes what is serialized.

use super::schema::{document, violations};
use mlgw_api::{
    AccessKeyRole, AdminErrorBody, BackupState, BackupStatus, BadRange, BindRequest, BindingInfo,
    BindingMode, BucketInfo, BucketPage, CheckInfo, ClusterAuthorityChange, ClusterCopiesInfo,
    ClusterDutyPhase, ClusterGroupInfo, ClusterInfo, ClusterLeavingInfo, ClusterMemberInfo,
    ClusterMemberPart, ClusterNodeChange, ClusterNodeInfo, ClusterNodeReport, ClusterNodeRole,
    ClusterNodeState, ClusterRebalanceChange, ClusterRebalanceInfo, ClusterRowsInfo, ClusterSetInfo,
    ClusterUpgradeInfo, CompactRequest, CompactionInfo, CreatedKey, DatasetInfo, DatasetJobKind,
    DatasetJobState, DatasetList, DatasetReadiness, DecisionAction, DecisionInfo, DecisionList,
    DecisionLocation, DecisionResult, DecisionTrigger, DirtyInfo, DiscardResult, DrainNodeRequest,
    ExtentInfo, ExtentState, Health, HealthFinding, JobInfo, JobList, JobRequest, KeyChange, KeyInfo,
    KeyList, KeyRangeInfo, MigrationTarget, MovesInfo, NewBackup, NewBucketRequest, NewDataset,
    NewJoinTokenInfo, NewKey, ObjectInfo, ObjectLocation, ObjectNodeInfo, ObjectTierInfo, OriginObjectInfo,
    PinRequest, QuotaInfo, QuotaRequest, RefreshRequest, RefreshResult, RemoveNodeRequest, ReplacedDiskInfo,
    ResidencyInfo, ResidencyTier, ScheduleInfo, ScheduleRequest, SettingInfo, SettingList, SilentNode,
    SourceInfo, TierDetail, TierInfo, TierList, TraceFileInfo, TraceInfo, TraceList, UpstreamCheckStep,
    UpstreamInfo, UpstreamList, UpstreamOwner, UpstreamProtocol, UsedInfo,
};
use mlgw_common::Tier;
use mlgw_testing::printed::assert_file_is;
use mlgw_testing::sample_status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn the_document_is_generated_from_the_routes_and_types() {
    let text = serde_json::to_string_pretty(document()).unwrap() + "\n";
    assert_file_is("docs/openapi.json", &text);
}

/// Asserts that everything that can be referred to is described, and that all of it is referred to.
#[test]
fn every_schema_is_used_and_everything_has_a_description() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|field| references(field, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let (document, mut found) = (document(), BTreeSet::new());
    references(document, &mut found);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let known: BTreeSet<_> = schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
    assert_eq!(found, known);
    for (name, schema) in schemas {
        assert!(schema["description"].is_string(), "{name}");
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            assert!(schema["description"].is_string(), "{name}.{field}");
        }
    }
    for operation in
        document["paths"].as_object().unwrap().values().flat_map(|of| of.as_object().unwrap().values())
    {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{parameter}");
        }
    }
}

#[test]
fn violations_are_found() {
    let document = document();
    let schema = json!({"$ref": "#/components/schemas/CompactRequest"});
    let count = |value: Value| violations(document, &schema, &value, "").len();
    assert_eq!((count(json!({})), count(json!({"dead_percent": 5}))), (0, 0));
    for wrong in [json!({"dead_percent": 0}), json!({"dead_percent": "5"}), json!({"percent": 5}), json!([])]
    {
        assert_eq!(count(wrong.clone()), 1, "{wrong}");
    }
    let schema = json!({"$ref": "#/components/schemas/MigrationTarget"});
    assert_eq!(violations(document, &schema, &json!({}), "at"), ["at.upstream is missing"]);
    let schema = json!({"$ref": "#/components/schemas/Tier"});
    assert_eq!(violations(document, &schema, &json!("warm"), "at").len(), 1);
}

/// Asserts that `value` satisfies the schema with the name of a type.
pub(super) fn assert_schema_of(name: &str, value: &impl Serialize) {
    let schema = json!({"$ref": format!("#/components/schemas/{name}")});
    let value = serde_json::to_value(value).unwrap();
    assert_eq!(violations(document(), &schema, &value, name), [""; 0]);
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
            mode: BindingMode::ReadThrough,
            ttl: None,
        }),
        quota: QuotaInfo::default(),
        used: UsedInfo::default(),
        ranges: vec![KeyRangeInfo { from: String::new(), group: 1 }],
    }
}

#[test]
fn objects_match_their_schemas() {
    let extent = ExtentInfo {
        first: 0,
        bytes: 1,
        stored_bytes: 1,
        encoding: "raw".into(),
        tier: ObjectLocation::Hot,
        nodes: vec![1, 2],
        segment: 1,
        segment_state: ExtentState::Open,
        offset: 1,
    };
    let on_node = ObjectNodeInfo { node: 1, tier: ObjectLocation::Hot, bytes: 1, suspect_bytes: 1 };
    let object = ObjectInfo {
        nodes: vec![on_node],
        tiers: vec![ObjectTierInfo { tier: ObjectLocation::Hot, bytes: 1, stored_bytes: 1, segments: 1 }],
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
    assert_schema_of("OriginObjectInfo", &origin);
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
        kind: UpstreamProtocol::S3,
        endpoint: None,
        bucket: "b".into(),
        prefix: String::new(),
        encrypt: false,
        bound: vec!["b".into()],
        spilled_to: true,
        segments: 1,
        segment_bytes: 2,
        owner: UpstreamOwner::Foreign,
        marked_by: Some("i".into()),
        advice: None,
        conditions: Some(true),
    };
    assert_schema_of("UpstreamList", &UpstreamList { upstreams: vec![upstream] });
    let step = CheckInfo { step: UpstreamCheckStep::List, fault: Some("f".into()), missing: None };
    assert_schema_of("CheckInfo", &step);
    assert_schema_of("BucketInfo", &BucketInfo { binding: None, ..bucket() });
    assert_schema_of("AdminErrorBody", &AdminErrorBody { code: "c".into(), message: "m".into() });
    let info = TierInfo { tier: Tier::Hot, capacity_bytes: 2, used_bytes: 1, segments: 1, bad_blocks: 1 };
    assert_schema_of("TierList", &TierList { tiers: vec![info.clone()] });
    let bad = BadRange { part: Some(1), ..BadRange::default() };
    assert_schema_of(
        "TierDetail",
        &TierDetail { info, scrub: None, hits: None, misses: None, bad: vec![bad] },
    );
    let backup =
        BackupStatus { state: BackupState::Done, error: Some("e".into()), ..BackupStatus::default() };
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
    let name = || "n".to_owned();
    status.nodes = vec![
        ClusterNodeReport {
            node: 1,
            name: name(),
            own: true,
            silent: None,
            figures: Some(status.clone().into()),
        },
        ClusterNodeReport { node: 2, name: name(), own: false, silent: Some("s".into()), figures: None },
    ];
    assert_schema_of("Status", &status);
}

fn cluster_node() -> ClusterNodeInfo {
    ClusterNodeInfo {
        id: 1,
        name: "n".into(),
        address: "h:1".into(),
        role: ClusterNodeRole::Storage,
        state: ClusterNodeState::Active,
        build: "b".into(),
        cluster_version: 2,
        joined: "j".into(),
        own: true,
        duty: true,
        reachable: Some(true),
        serves: Some(true),
        used_bytes: Some(1),
        free_bytes: Some(2),
        applied: Some(3),
        clock_skew_ms: Some(-4),
        differing_settings: vec!["s".into()],
    }
}

/// A cluster in which nothing is in progress.
fn idle_cluster() -> ClusterInfo {
    let node = cluster_node();
    let other = ClusterNodeInfo {
        role: ClusterNodeRole::Gateway,
        reachable: None,
        serves: None,
        used_bytes: None,
        free_bytes: None,
        applied: None,
        clock_skew_ms: None,
        ..node.clone()
    };
    ClusterInfo {
        cluster: "c".into(),
        node: 1,
        duty: None,
        duty_term: 0,
        duty_phase: ClusterDutyPhase::Waiting,
        waits: None,
        certificate_expires: "e".into(),
        authority_change: None,
        cluster_version: 5,
        upgrade: None,
        findings: vec![],
        copies: ClusterCopiesInfo::default(),
        leaving: vec![],
        sets: vec![],
        rebalance: None,
        moving_groups: vec![],
        sets_wait: None,
        rows: vec![],
        nodes: vec![node, other],
        groups: vec![ClusterGroupInfo { id: 0, leader: None, members: vec![] }],
    }
}

#[test]
fn a_cluster_matches_its_schema() {
    assert_schema_of("ClusterInfo", &idle_cluster());
    let member = ClusterMemberInfo { node: 1, part: ClusterMemberPart::Voter, lag_bytes: 3 };
    let led = ClusterGroupInfo { id: 0, leader: Some(1), members: vec![member] };
    let finding = HealthFinding { severity: Health::Warning, what: "w".into(), advice: "a".into() };
    let leaving = ClusterLeavingInfo {
        node: 1,
        segments: 3,
        copied_segments: 2,
        open_segments: 1,
        sets: 2,
        votes: 1,
        done: false,
        replaced_by: Some(4),
    };
    let rotation =
        ClusterAuthorityChange { authority: 2, without_trust: vec![3], without_certificate: vec![1, 3] };
    let rows = ClusterRowsInfo {
        group: 1,
        index: 9,
        compared: "t".into(),
        differing: vec![3],
        undecided: true,
        without: vec![2],
    };
    let whole = ClusterInfo {
        authority_change: Some(rotation),
        upgrade: Some(ClusterUpgradeInfo { version: 6, without: vec![3] }),
        leaving: vec![leaving],
        sets: vec![ClusterSetInfo { id: 0, nodes: vec![1, 2, 3], groups: vec![1], guests: vec![2] }],
        rebalance: Some(ClusterRebalanceInfo { requested: "t".into(), by: "AK".into() }),
        moving_groups: vec![1],
        sets_wait: Some("w".into()),
        rows: vec![rows],
        duty: Some(1),
        duty_term: 4,
        duty_phase: ClusterDutyPhase::Ended,
        waits: Some("w".into()),
        findings: vec![finding],
        groups: vec![led],
        ..idle_cluster()
    };
    assert_schema_of("ClusterInfo", &whole);
}

#[test]
fn changes_of_a_cluster_match_their_schemas() {
    let change = ClusterNodeChange { node: 1, state: ClusterNodeState::Draining };
    assert_schema_of("ClusterNodeChange", &change);
    let rotation =
        ClusterAuthorityChange { authority: 2, without_trust: vec![3], without_certificate: vec![1, 3] };
    assert_schema_of("ClusterAuthorityChange", &rotation);
    assert_schema_of("ClusterRebalanceChange", &ClusterRebalanceChange { already_running: true });
    let replaced = ReplacedDiskInfo { directory: "d".into(), copied_again: 2, lost: vec![7] };
    assert_schema_of("ReplacedDiskInfo", &replaced);
    let token = NewJoinTokenInfo { token: "t".into(), id: "i".into(), expires: "e".into() };
    assert_schema_of("NewJoinTokenInfo", &token);
}

#[test]
fn compaction_matches_its_schema() {
    let compaction = CompactionInfo {
        tier: Tier::Hot,
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
        kind: DecisionAction::Spill,
        from: DecisionLocation::Hot,
        to: DecisionLocation::Cold,
        reason: DecisionTrigger::Drain,
        outcome: DecisionResult::Done,
        ..DecisionInfo::default()
    };
    let other = DecisionInfo {
        node: Some(2),
        segment: Some(1),
        bucket: Some("b".into()),
        key: Some("k".into()),
        job: Some(1),
        rule: Some("r".into()),
        error: Some("e".into()),
        ..decision.clone()
    };
    let silent = vec![SilentNode { node: 3, name: "n3".into(), reason: "r".into() }];
    assert_schema_of("DecisionList", &DecisionList { decisions: vec![decision, other], silent });
    assert_schema_of("MovesInfo", &MovesInfo::default());
    assert_schema_of("MovesInfo", &MovesInfo { until_orders: Some(1), ..MovesInfo::default() });
}

#[test]
fn datasets_and_jobs_match_their_schemas() {
    let job = JobInfo {
        kind: DatasetJobKind::Warm,
        state: DatasetJobState::Running,
        bytes_per_second: Some(1),
        eta_seconds: Some(1),
        error: Some("e".into()),
        to: Some(MigrationTarget { upstream: "u".into(), prefix: "p/".into() }),
        ..JobInfo::default()
    };
    let dataset = DatasetInfo {
        slices: vec!["p/".into()],
        sources: vec![SourceInfo::default()],
        readiness: DatasetReadiness::Partial,
        bytes: Some(1),
        residency: vec![
            ResidencyInfo { node: 1, tier: ResidencyTier::Copies, bytes: 1 },
            ResidencyInfo { node: 2, tier: ResidencyTier::Hot, bytes: 2 },
        ],
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
    assert_taken::<DrainNodeRequest>("DrainNodeRequest", json!({"to_copies": 2}));
    assert_taken::<RemoveNodeRequest>("RemoveNodeRequest", json!({"lost": true}));
    assert_taken::<CompactRequest>("CompactRequest", json!({"dead_percent": 5}));
    assert_taken::<BindRequest>(
        "BindRequest",
        json!({"upstream": "u", "prefix": "p/", "mode": null, "ttl": "1h"}),
    );
    assert_taken::<RefreshRequest>("RefreshRequest", json!({"prefix": "p/"}));
    assert_taken::<MigrationTarget>("MigrationTarget", json!({"upstream": "u", "prefix": "p/"}));
    assert_schema_of("RefreshResult", &RefreshResult { objects: 1 });
    for some in [None, Some("x".to_owned())] {
        let foreign: Vec<String> = some.iter().cloned().collect();
        let unconfirmed = foreign.clone();
        let dirty =
            DirtyInfo { oldest: some.clone(), trouble: some, foreign, unconfirmed, ..DirtyInfo::default() };
        assert_schema_of("DirtyInfo", &dirty);
    }
    assert_schema_of("DiscardResult", &DiscardResult { writes: 1 });
    assert_taken::<NewBucketRequest>(
        "NewBucketRequest",
        json!({"name": "b", "region": null, "split_keys": ["g"]}),
    );
    assert_taken::<NewBackup>("NewBackup", json!({"out": "/backup", "leave_upstreams": true}));
    assert!(serde_json::from_value::<NewKey>(json!({})).is_ok(), "no field is required");
}
