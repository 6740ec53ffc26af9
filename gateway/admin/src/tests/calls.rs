//! Calls over a real catalogue and hot tier, signed as the command line signs them.

use super::schema::{assert_described, document};
use crate::Admin;
use crate::routes::{PROBE_ROUTES, ROUTES};
use crate::serve::{ServedRoutes, router};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use mlgw_api::{AccessKeyRole, NewKey};
use mlgw_background::access_plans::AccessPlans;
use mlgw_background::access_traces::AccessTraces;
use mlgw_background::jobs::Jobs;
use mlgw_background::stored_objects::StoredObjects;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::writeback::{WriteBack, WriteBackParts};
use mlgw_cli::client::{ServerTarget, signed};
use mlgw_common::Secret;
use mlgw_common::histogram::Durations;
use mlgw_common::{CheckedClock, Clock, Lineage, NodeId, SegmentId, SegmentTier, SystemClock};
use mlgw_config::{ConfigSources, LoadedConfig, MachineSizes};
use mlgw_credentials::{Keyring, Sealer};
use mlgw_formats::command::{Change, Command, CreateSegment, Reply, SealSegment};
use mlgw_formats::decision_entry::{DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_formats::schema::{Replica, SegmentRecord};
use mlgw_metadata::{Catalogue, CatalogueOptions};
use mlgw_policy_runtime::{self, Policies, WatchedPolicyFiles};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::{HotOptions, HotTier};
use mlgw_segments::hot::{Scrub, ScrubOptions, SegmentDirs};
use mlgw_segments::memory::MemoryTier;
use mlgw_segments::tiers::Tiers;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::audit::{AuditLine, AuditLog};
use mlgw_telemetry::recent::{CounterSnapshot, RecentCounters};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tower::ServiceExt as _;

pub(super) struct Api {
    pub(super) admin: Arc<Admin>,
    dir: tempfile::TempDir,
}

/// Options under which no scrub starts on its own.
fn scrub_options(dir: &std::path::Path, clock: Arc<dyn Clock>) -> ScrubOptions {
    ScrubOptions {
        segments: SegmentDirs::new(dir.join("segments"), vec![]),
        state: dir.join("scrub.json"),
        bytes_per_second: 0,
        search_interval: std::time::Duration::from_secs(60),
        clock,
        proofs: None,
    }
}

async fn open_storage(dir: &std::path::Path, clock: &Arc<dyn Clock>) -> (Catalogue, HotTier) {
    let options = CatalogueOptions::new(dir.join("catalogue"), clock.clone());
    let catalogue = Catalogue::open(options).await.unwrap();
    let options = HotOptions::new(dir.join("segments"), 1 << 30, clock.clone());
    let hot = HotTier::open(options, catalogue.clone()).await.unwrap();
    (catalogue, hot)
}

impl Api {
    pub(super) async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (catalogue, hot) = open_storage(dir.path(), &clock).await;
        let scrub = scrub_options(dir.path(), clock.clone());
        let scrub = Arc::new(Scrub::start(scrub, catalogue.clone(), hot.clone()).unwrap());
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        let keyring = Keyring::open(catalogue.clone(), sealer, clock.clone(), None).await.unwrap();
        let loaded = LoadedConfig::load(&ConfigSources::default()).unwrap();
        let metrics = Arc::new(GatewayMetrics::new(0));
        let tiers = Tiers::new(MemoryTier::new(1 << 20), hot);
        let bound = mlgw_cache::remote_backed::RemoteBackedBuckets::default();
        let decisions = Decisions::new(clock.clone());
        let jobs = {
            let (decisions, clock) = (decisions.clone(), CheckedClock::alone(clock.clone()));
            Jobs::new(catalogue.clone(), tiers.clone(), bound.clone(), decisions, clock, None)
        };
        let audit = AuditLog::open(&dir.path().join("audit"), &loaded.config.audit).unwrap();
        let (profile, watched) =
            (mlgw_policy_runtime::ServerProfile::default(), WatchedPolicyFiles::default());
        let policies = Policies::open(catalogue.clone(), clock.clone(), profile, watched).await.unwrap();
        let means = WriteBackParts {
            catalogue: catalogue.clone(),
            remote_backed: bound.clone(),
            clock: clock.clone(),
            bytes_max: 1 << 20,
            budgets: std::collections::HashMap::new(),
            duty_term: None,
        };
        let program = Arc::new(mlgw_policies::language::Program::compile_built_in().unwrap());
        let policy_driver = PolicyDriver::new(1 << 16, program, &*clock);
        let admin = Admin {
            stored: StoredObjects { catalogue, tiers, remote_backed: bound },
            jobs,
            policies,
            compressor: Arc::default(),
            writeback: WriteBack::open(means).unwrap().0,
            upstreams: mlgw_segments::hot::Upstreams::default(),
            traces: AccessTraces::new(dir.path(), policy_driver.clone(), clock.clone()),
            plans: AccessPlans::open(dir.path(), Lineage::default(), policy_driver.clone(), clock.clone())
                .unwrap(),
            policy_plans: crate::PolicyPlans::default(),
            retention: Arc::new(
                mlgw_background::reconciler::RetentionState::open(dir.path(), Lineage::default()).unwrap(),
            ),
            policy_driver,
            decisions,
            keyring,
            recent: Arc::new(RecentCounters::new(CounterSnapshot::take(&metrics, Durations::default()))),
            metrics,
            audit: Arc::new(audit),
            started: clock.now(),
            clock,
            loaded: Arc::new(ArcSwap::from_pointee(loaded)),
            machine: MachineSizes { memory_bytes: 1 << 30, disk_bytes: Some(1 << 30) },
            connections_max: 10_000,
            node: "n".into(),
            endpoint: "http://127.0.0.1:9000".into(),
            rules: Admin::rules(),
            ready: Arc::new(AtomicBool::new(true)),
            backups: crate::Backups::default(),
            simulating: tokio::sync::Mutex::default(),
            scrub,
            cluster: None,
            is_recovered: false,
        };
        Self { admin: Arc::new(admin), dir }
    }

    fn local(&self) -> ServerTarget {
        let local = self.admin.keyring.local();
        ServerTarget {
            endpoint: "http://127.0.0.1:9001".into(),
            access_key: local.principal.access_key.clone(),
            secret: local.secret.clone(),
        }
    }

    async fn send(&self, request: http::Request<axum::body::Body>) -> (StatusCode, Value) {
        let answer = router(&self.admin, ServedRoutes::All).oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))))
    }

    async fn call_as(
        &self,
        who: &ServerTarget,
        method: Method,
        path: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let url = format!("{}{path}", who.endpoint);
        let request = signed(who, self.admin.clock.now(), method.clone(), &url, bytes).unwrap();
        let mut request = request.map(axum::body::Body::new);
        // As received over the wire: the target is a path, the host a header.
        request.headers_mut().insert("host", http::HeaderValue::from_static("127.0.0.1:9001"));
        *request.uri_mut() = path.parse().unwrap();
        let (status, answer) = self.send(request).await;
        assert_described(&method, path, &body, (status, &answer));
        (status, answer)
    }

    pub(super) async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        self.call_as(&self.local(), method, path, body).await
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(super) fn audit(&self) -> Vec<AuditLine> {
        let text = std::fs::read_to_string(self.dir.path().join("audit/audit.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(super) async fn close(self) {
        self.admin.scrub.stop();
        let (hot, catalogue) = (self.admin.stored.tiers.hot.clone(), self.admin.stored.catalogue.clone());
        hot.shutdown().await;
        catalogue.shutdown().await;
    }
}

#[tokio::test]
async fn an_unknown_kind_of_job_is_refused_alike_by_all_routes_of_schedules() {
    let api = Api::open().await;
    api.call(Method::POST, "/v1/buckets", json!({"name": "data"})).await;
    let (status, made) = api.call(Method::POST, "/v1/datasets", json!({"name": "d", "bucket": "data"})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let path = |kind: &str| format!("/v1/datasets/d/schedules/{kind}");
    let cron = json!({"cron": "0 3 * * *"});
    for (method, body) in [(Method::PUT, cron.clone()), (Method::DELETE, Value::Null)] {
        let (status, refused) = api.call(method.clone(), &path("nap"), body).await;
        assert_eq!((status, &refused["code"]), (StatusCode::BAD_REQUEST, &json!("InvalidRequest")));
        let message = refused["message"].as_str().unwrap();
        assert!(message.starts_with("Unknown kind of job \"nap\": expected one of"), "{method}: {message}");
    }
    let (status, absent) = api.call(Method::DELETE, &path("warm"), Value::Null).await;
    assert_eq!((status, &absent["code"]), (StatusCode::NOT_FOUND, &json!("NoSuchSchedule")));
    assert_eq!(api.call(Method::PUT, &path("warm"), cron).await.0, StatusCode::OK);
    assert_eq!(api.call(Method::DELETE, &path("warm"), Value::Null).await.0, StatusCode::OK);
    api.close().await;
}

/// Creates a segment with this length in the catalogue and returns its record.
async fn sealed_segment(catalogue: &Catalogue, length: u64) -> SegmentRecord {
    let create = CreateSegment {
        class: 0,
        node: NodeId::SINGLE.0,
        location: "d".into(),
        created_ms: 0,
        stamp: 1,
        ..CreateSegment::default()
    };
    let made = catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap();
    let Reply::Segment(SegmentRecord { id, .. }) = made else { panic!("{made:?}") };
    let seal = SealSegment { segment: id, length, ..SealSegment::default() };
    catalogue.propose(Command::from(Change::SealSegment(seal))).await.unwrap();
    catalogue.segment_record(SegmentId(id)).unwrap().unwrap()
}

#[tokio::test]
async fn a_scrub_has_the_bytes_of_local_segments_in_total() {
    let api = Api::open().await;
    let catalogue = &api.admin.stored.catalogue;
    sealed_segment(catalogue, 1000).await;
    for (length, tier) in [(300, SegmentTier::Cold), (70_000, SegmentTier::Upstream)] {
        let record = sealed_segment(catalogue, length).await;
        let from = record.replicas[0].clone();
        let to = Replica { tier: tier.number(), ..from.clone() };
        catalogue.place_segment(record.segment_id(), record.changes, from, to).await.unwrap();
    }
    let (_, tier) = api.call(Method::GET, "/v1/tiers/hot", Value::Null).await;
    assert_eq!((&tier["segments"], &tier["scrub"]["total_bytes"]), (&json!(1), &json!(1300)), "{tier}");
    api.close().await;
}

/// Every call of these tests is compared with the document; here those that need no parameter.
#[tokio::test]
async fn every_list_and_document_is_answered_as_described() {
    let api = Api::open().await;
    let plain = ROUTES.iter().filter(|(method, path)| *method == "get" && !path.contains('{'));
    // The one requires parameters, the other a cluster.
    for (_, path) in plain.filter(|(_, path)| !["/v1/policy/explain", "/v1/cluster"].contains(path)) {
        let (status, answer) = api.call(Method::GET, path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    }
    let (_, served) = api.call(Method::GET, "/v1/openapi.json", Value::Null).await;
    assert_eq!(served, *document(), "the served document is the generated one");
    api.close().await;
}

#[tokio::test]
async fn every_route_but_the_probes_requires_a_signature() {
    let api = Api::open().await;
    let status = async |(method, path): (&str, &str)| {
        let request = http::Request::builder().method(method.to_uppercase().as_str());
        let request = request.uri(path.replace(['{', '}'], "")).body(axum::body::Body::empty()).unwrap();
        api.send(request).await.0
    };
    for route in ROUTES {
        assert_eq!(status(*route).await, StatusCode::FORBIDDEN, "{route:?}");
    }
    for route in PROBE_ROUTES {
        let probed = status(*route).await;
        assert!(probed != StatusCode::FORBIDDEN && probed != StatusCode::NOT_FOUND, "{route:?}: {probed}");
    }
    api.close().await;
}

#[tokio::test]
async fn keys_are_managed_and_every_change_leaves_one_line_without_secrets() {
    let api = Api::open().await;
    let new = json!({"role": "write", "buckets": ["team-*"], "description": "ci"});
    let (status, created) = api.call(Method::POST, "/v1/access/keys", new).await;
    assert_eq!(status, StatusCode::CREATED, "{created}");
    let key = created["key"]["access_key"].as_str().unwrap().to_owned();
    let path = format!("/v1/access/keys/{key}");
    let (status, changed) = api.call(Method::PATCH, &path, json!({"disabled": true})).await;
    assert_eq!((status, &changed["disabled"]), (StatusCode::OK, &json!(true)));
    let (_, list) = api.call(Method::GET, "/v1/access/keys", Value::Null).await;
    assert_eq!(list["keys"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(api.call(Method::DELETE, &path, Value::Null).await.0, StatusCode::OK);
    assert_eq!(api.call(Method::GET, &path, Value::Null).await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.call(Method::DELETE, &path, Value::Null).await.0, StatusCode::NOT_FOUND);

    let lines = api.audit();
    let outcomes: Vec<_> = lines.iter().map(|l| (l.action.as_str(), l.outcome == "done")).collect();
    let expected = [
        ("access.key.create", true),
        ("access.key.update", true),
        ("access.key.delete", true),
        ("access.key.delete", false),
    ];
    assert_eq!(outcomes, expected);
    assert!(lines.iter().all(|line| line.resource == key && line.who == api.local().access_key));
    assert_eq!((&lines[1].before["disabled"], &lines[1].after["disabled"]), (&json!(false), &json!(true)));
    let text = serde_json::to_string(&lines).unwrap();
    assert!(!text.contains(created["secret_access_key"].as_str().unwrap()));
    api.close().await;
}

#[tokio::test]
async fn buckets_are_managed() {
    let api = Api::open().await;
    let (status, made) = api.call(Method::POST, "/v1/buckets", json!({"name": "data"})).await;
    assert_eq!((status, &made["name"]), (StatusCode::CREATED, &json!("data")), "{made}");
    let (status, again) = api.call(Method::POST, "/v1/buckets", json!({"name": "data"})).await;
    assert_eq!((status, &again["code"]), (StatusCode::CONFLICT, &json!("BucketAlreadyOwnedByYou")));
    let (status, _) = api.call(Method::POST, "/v1/buckets", json!({"name": "A"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let unsorted = json!({"name": "more", "split_keys": ["p", "g"]});
    let (status, refused) = api.call(Method::POST, "/v1/buckets", unsorted).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(refused["message"].as_str().unwrap().contains("split key 2"), "{refused}");
    let split = json!({"name": "more", "split_keys": ["g", "p"]});
    assert_eq!(api.call(Method::POST, "/v1/buckets", split).await.0, StatusCode::CREATED);
    let (_, page) = api.call(Method::GET, "/v1/buckets?max=1", Value::Null).await;
    assert_eq!((&page["buckets"][0]["name"], &page["next"]), (&json!("data"), &json!("data")));
    let (_, page) = api.call(Method::GET, "/v1/buckets?after=data&max=5", Value::Null).await;
    assert_eq!((&page["buckets"][0]["name"], &page["next"]), (&json!("more"), &Value::Null));
    assert_eq!(api.call(Method::DELETE, "/v1/buckets/data", Value::Null).await.0, StatusCode::OK);
    assert_eq!(api.call(Method::GET, "/v1/buckets/data", Value::Null).await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.audit().len(), 6);
    api.close().await;
}

#[tokio::test]
async fn quotas_are_set_shown_and_audited() {
    let api = Api::open().await;
    api.call(Method::POST, "/v1/buckets", json!({"name": "data"})).await;
    let path = "/v1/buckets/data/quota";
    let (status, response) = api.call(Method::PATCH, path, json!({"bytes": "1KiB", "objects": "5"})).await;
    assert_eq!(
        (status, &response["quota"]),
        (StatusCode::OK, &json!({"bytes": 1024, "objects": 5})),
        "{response}"
    );
    let (_, response) = api.call(Method::PATCH, path, json!({"bytes": "none"})).await;
    assert_eq!(response["quota"], json!({"bytes": null, "objects": 5}));
    assert_eq!(response["used"], json!({"bytes": 0, "objects": 0}));
    assert_eq!(api.call(Method::GET, "/v1/buckets/data", Value::Null).await.1, response);
    for (path, body, status) in [
        (path, json!({"bytes": "many"}), StatusCode::BAD_REQUEST),
        (path, json!({"objects": "-1"}), StatusCode::BAD_REQUEST),
        (path, json!({"size": "1"}), StatusCode::BAD_REQUEST),
        ("/v1/buckets/none/quota", json!({"objects": "1"}), StatusCode::NOT_FOUND),
    ] {
        assert_eq!(api.call(Method::PATCH, path, body).await.0, status);
    }
    let (_, metrics) = {
        let get = http::Request::get("/metrics").body(axum::body::Body::empty()).unwrap();
        api.send(get).await
    };
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("mlgw_bucket_quota_objects{bucket=\"data\"} 5"), "{metrics}");
    assert!(!metrics.contains("mlgw_bucket_quota_bytes{"), "no byte quota");

    let new = json!({"access_key": "tenant", "quota": {"bytes": "2KiB"}});
    let (status, made) = api.call(Method::POST, "/v1/access/keys", new).await;
    let limits = |bytes, objects| json!({"bytes": bytes, "objects": objects});
    assert_eq!((status, &made["key"]["quota"]), (StatusCode::CREATED, &limits(Some(2048), None)));
    let path = "/v1/access/keys/tenant";
    let change = json!({"disabled": true, "quota": {"objects": "7"}});
    let (_, response) = api.call(Method::PATCH, path, change).await;
    assert_eq!((&response["quota"], &response["disabled"]), (&limits(Some(2048), Some(7)), &json!(true)));
    let (_, response) = api.call(Method::PATCH, path, json!({"disabled": false})).await;
    assert_eq!(response["quota"], limits(Some(2048), Some(7)), "omitted limits are kept");
    let (status, _) = api.call(Method::PATCH, path, json!({"quota": {"bytes": "x"}})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let root = api.admin.keyring.root().principal.access_key.clone();
    let path = format!("/v1/access/keys/{root}");
    let (status, response) = api.call(Method::PATCH, &path, json!({"quota": {"bytes": "1"}})).await;
    assert_eq!((status, &response["code"]), (StatusCode::CONFLICT, &json!("AccessKeyFixed")));
    assert_eq!(api.call(Method::GET, &path, Value::Null).await.1["used"], Value::Null);

    let lines = api.audit();
    let of = |action: &str| lines.iter().filter(|line| line.action == action).collect::<Vec<_>>();
    let quota = of("bucket.quota");
    assert_eq!(quota.len(), 3, "a refused request leaves no line");
    assert_eq!(
        (&quota[0].before["quota"], &quota[0].after["quota"]),
        (&limits(None, None), &limits(Some(1024), Some(5)))
    );
    assert!(quota[2].outcome.starts_with("refused: NoSuchBucket"), "{}", quota[2].outcome);
    assert_eq!(of("access.key.update")[0].after["quota"], limits(Some(2048), Some(7)));
    api.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_pass_is_requested_and_can_be_waited_for() {
    let api = Api::open().await;
    let path = "/v1/tiers/hot/compaction";
    let (status, before) = api.call(Method::GET, path, Value::Null).await;
    assert_eq!((status, &before["until_rounds"]), (StatusCode::OK, &Value::Null), "{before}");
    let (status, response) = api.call(Method::POST, path, json!({"dead_percent": 5})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{response}");
    let until = response["until_rounds"].as_u64().unwrap();
    assert!(until > before["rounds"].as_u64().unwrap());
    while api.call(Method::GET, path, Value::Null).await.1["rounds"].as_u64() < Some(until) {
        mlgw_common::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    for wrong in [json!({"dead_percent": 0}), json!({"dead_percent": 101}), json!({"percent": 5})] {
        let (status, response) = api.call(Method::POST, path, wrong).await;
        assert_eq!(
            (status, &response["code"]),
            (StatusCode::BAD_REQUEST, &json!("InvalidRequest")),
            "{response}"
        );
    }
    let (status, response) = api.call(Method::POST, "/v1/tiers/cold/compaction", Value::Null).await;
    assert_eq!((status, &response["code"]), (StatusCode::NOT_FOUND, &json!("NoSuchTier")));
    let lines = api.audit();
    assert_eq!(lines.len(), 1, "a refused request leaves no line");
    assert_eq!((lines[0].action.as_str(), lines[0].resource.as_str()), ("tier.compact", "hot"));
    api.close().await;
}

#[tokio::test]
async fn decisions_are_listed_and_filtered() {
    let api = Api::open().await;
    api.call(Method::POST, "/v1/buckets", json!({"name": "data"})).await;
    let bucket = api.admin.stored.catalogue.bucket("data").unwrap().bucket_id();
    let decided = |kind, subject, outcome| PlacementDecision {
        kind,
        subject,
        from: DecisionPlace::Hot,
        to: DecisionPlace::Cold,
        bytes: 5,
        cause: DecisionReason::Watermark.into(),
        outcome,
    };
    let log = &api.admin.decisions;
    log.record(&decided(DecisionKind::Spill, DecisionSubject::Segment(SegmentId(3)), DecisionOutcome::Done));
    let failed =
        decided(DecisionKind::Spill, DecisionSubject::Segment(SegmentId(4)), DecisionOutcome::Failed);
    log.record_because(&failed, &"the disk");
    log.record(&decided(DecisionKind::Keep, DecisionSubject::Object(bucket, "a/b"), DecisionOutcome::NoRoom));
    let (status, all) = api.call(Method::GET, "/v1/decisions", Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{all}");
    let all = all["decisions"].as_array().unwrap().clone();
    assert_eq!((&all[0]["bucket"], &all[0]["key"]), (&json!("data"), &json!("a/b")));
    assert_eq!((&all[1]["error"], &all[1]["segment"]), (&json!("the disk"), &json!(4)));
    assert_eq!((all.len(), &all[2]["reason"], &all[2]["outcome"]), (3, &json!("watermark"), &json!("done")));
    for (query, expected) in
        [("limit=1", json!([all[0]])), ("kind=spill", json!(all[1..])), ("bucket=data", json!(all[..1]))]
    {
        let (_, found) = api.call(Method::GET, &format!("/v1/decisions?{query}"), Value::Null).await;
        assert_eq!(found["decisions"], expected, "{query}");
    }
    for (query, status) in [
        ("limit=0", StatusCode::BAD_REQUEST),
        ("kind=sideways", StatusCode::BAD_REQUEST),
        ("bucket=none", StatusCode::NOT_FOUND),
    ] {
        let (got, why) = api.call(Method::GET, &format!("/v1/decisions?{query}"), Value::Null).await;
        assert_eq!(got, status, "{query}: {why}");
    }
    let gone = api.call(Method::DELETE, "/v1/buckets/data", Value::Null).await.0;
    assert_eq!(gone, StatusCode::OK);
    let (_, left) = api.call(Method::GET, "/v1/decisions?limit=1", Value::Null).await;
    assert_eq!(left["decisions"][0]["bucket"], json!(format!("#{}", bucket.0)));
    api.close().await;
}

#[tokio::test]
async fn only_an_unrestricted_admin_key_is_accepted_and_only_with_the_signed_body() {
    let api = Api::open().await;
    for role in [AccessKeyRole::Write, AccessKeyRole::Admin] {
        // An admin key restricted by a glob could create an unrestricted one.
        let new = NewKey { role: Some(role), buckets: vec!["b*".into()], ..NewKey::default() };
        let (info, secret) = api.admin.keyring.create(new).await.unwrap();
        let narrow = ServerTarget { access_key: info.access_key, secret, ..api.local() };
        let (status, response) = api.call_as(&narrow, Method::GET, "/v1/status", Value::Null).await;
        assert_eq!((status, &response["code"]), (StatusCode::FORBIDDEN, &json!("AccessDenied")), "{role:?}");
    }
    let wrong = ServerTarget { secret: Secret::new("not the secret"), ..api.local() };
    let (status, response) = api.call_as(&wrong, Method::GET, "/v1/status", Value::Null).await;
    assert_eq!((status, &response["code"]), (StatusCode::FORBIDDEN, &json!("SignatureDoesNotMatch")));

    let unsigned = http::Request::get("/v1/status").body(axum::body::Body::empty()).unwrap();
    assert_eq!(api.send(unsigned).await.0, StatusCode::FORBIDDEN);

    let url = "http://127.0.0.1:9001/v1/buckets";
    let body = Bytes::from_static(b"{\"name\": \"signed\"}");
    let request = signed(&api.local(), api.admin.clock.now(), Method::POST, url, body).unwrap();
    let mut request = request.map(|_| axum::body::Body::from("{\"name\": \"forged\"}"));
    request.headers_mut().insert("host", http::HeaderValue::from_static("127.0.0.1:9001"));
    assert_eq!(api.send(request).await.0, StatusCode::BAD_REQUEST);
    assert!(api.admin.stored.catalogue.bucket("forged").is_none());
    api.close().await;
}

#[tokio::test]
async fn probes_and_metrics_need_no_signature_and_status_reports_the_state() {
    let api = Api::open().await;
    let get = |path: &str| http::Request::get(path).body(axum::body::Body::empty()).unwrap();
    assert_eq!(api.send(get("/healthz")).await.0, StatusCode::OK);
    assert_eq!(api.send(get("/readyz")).await.0, StatusCode::OK);
    let (status, metrics) = api.send(get("/metrics")).await;
    assert_eq!(status, StatusCode::OK);
    for name in
        ["mlgw_inflight_requests 0", "mlgw_sync_total{file=\"log\"}", "mlgw_tier_limit_bytes{tier=\"hot\"}"]
    {
        assert!(metrics.as_str().unwrap().contains(name), "{name} is missing in\n{metrics}");
    }
    let (_, response) = api.call(Method::GET, "/v1/status", Value::Null).await;
    assert_eq!(response["state"], json!("ready"));
    api.admin.ready.store(false, Relaxed);
    assert_eq!(api.send(get("/readyz")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(api.send(get("/healthz")).await.0, StatusCode::OK);
    let (_, settings) = api.call(Method::GET, "/v1/config", Value::Null).await;
    assert_eq!(settings["settings"].as_array().unwrap().len(), mlgw_config::SETTINGS.len());
    let (status, response) = api.call(Method::GET, "/v1/nothing", Value::Null).await;
    assert_eq!((status, &response["code"]), (StatusCode::NOT_FOUND, &json!("NoSuchRoute")));
    // Malformed path segments and query parameters are refused in the same way as a malformed body.
    for path in
        ["/v1/policy/explain?bucket=b", "/v1/decisions?limit=many", "/v1/jobs/%ff", "/v1/traces/t/files/x"]
    {
        let (status, response) = api.call(Method::GET, path, Value::Null).await;
        assert_eq!(
            (status, &response["code"]),
            (StatusCode::BAD_REQUEST, &json!("InvalidRequest")),
            "{path}"
        );
    }
    api.close().await;
}

#[tokio::test]
async fn a_recovered_server_adopts_no_prefix_before_it_takes_over() {
    let mut api = Api::open().await;
    for (is_recovered, refused) in
        [(true, (StatusCode::CONFLICT, "NotTakenOver")), (false, (StatusCode::NOT_FOUND, "NoSuchUpstream"))]
    {
        Arc::get_mut(&mut api.admin).expect("no request is in progress").is_recovered = is_recovered;
        let (status, answer) = api.call(Method::POST, "/v1/upstreams/far/adopt", Value::Null).await;
        assert_eq!((status, &answer["code"]), (refused.0, &json!(refused.1)), "{answer}");
    }
    api.close().await;
}
