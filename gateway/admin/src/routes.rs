//! All routes of the API in one table: method, path, handler, and the description from which the OpenAPI
//! document is generated.

use super::openapi::{Binary, OpenMetrics, PlainText};
use super::{
    Admin, bindings, buckets, cluster, cluster_authority, cluster_leaving, cluster_rebalance, datasets,
    decisions, dirty, disks, drain, jobs, keys, migrations, objects, openapi, policy, policy_explain,
    policy_outcomes, policy_plan, policy_trials, probes, settings, status, store, tiers, traces, upstreams,
    workload_plans, workloads,
};
use axum::Router;
use mlgw_api::{
    AccessPlanInfo, AccessPlanList, ApplyRequest, BackupStatus, BindRequest, BucketInfo, BucketPage,
    CheckInfo, ClusterAuthorityChange, ClusterInfo, ClusterNodeChange, ClusterRebalanceChange,
    CompactRequest, CompactionInfo, CreatedKey, DatasetInfo, DatasetList, DecisionList, DirtyInfo,
    DiscardResult, DrainNodeRequest, EffectivePolicy, Explanation, FreezeRequest, JobInfo, JobList,
    JobRequest, KeyChange, KeyInfo, KeyList, MigrationTarget, MovesInfo, NewAccessPlan, NewBackup,
    NewBucketRequest, NewDataset, NewJoinTokenInfo, NewKey, NewTrace, ObjectInfo, PinRequest, PlanPage,
    PlanRequest, PolicyChange, PolicyHistory, PolicyInfo, PolicyOutcomes, PolicyTestResult, QuotaRequest,
    RefreshRequest, RefreshResult, RemoveNodeRequest, ReplaceDiskRequest, ReplaceNodeRequest,
    ReplacedDiskInfo, RollbackRequest, ScheduleRequest, SettingList, SimulateRequest, SimulationRow, Status,
    TestRequest, TierDetail, TierList, TraceInfo, TraceList, UpstreamInfo, UpstreamList, ValidateRequest,
    ValidationResult, WorkloadInfo, WorkloadList,
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Compiles only if requests can consist of the type.
const fn assert_request<T: DeserializeOwned + JsonSchema>() {}

/// Compiles only if responses can consist of the type.
const fn assert_answer<T: JsonSchema>() {}

/// Defines routes. The comment of a route is its summary and, after an empty line, its description. The
/// handler and what follows it: type of the query parameters, type of the body, status, type and description
/// of the response, and the status and code of errors.
macro_rules! routes {
    (
        $(#[doc = $doc:literal])+
        $ROUTES:ident, $router:ident, $operations:ident:
        $(
            $(#[doc = $text:literal])+
            $method:ident $path:literal => $handler:path,
            $(query $Query:ty,)?
            $(body $Body:ty,)?
            $(optional body $OptionalBody:ty,)?
            $status:literal $Answer:ty: $answer:literal
            $(, errors $($error_status:literal $error:literal),+)?;
        )*
    ) => {
        $(#[doc = $doc])+
        pub const $ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)*];

        /// Returns the routes with their handlers.
        pub(super) fn $router() -> Router<Arc<Admin>> {
            Router::new()$(.route($path, axum::routing::$method($handler)))*
        }

        const _: () = {
            $(
                $(assert_request::<$Query>();)?
                $(assert_request::<$Body>();)?
                $(assert_request::<$OptionalBody>();)?
                assert_answer::<$Answer>();
                assert!($status / 100 == 2, "the status is that of a success");
                $($(assert!($error_status / 100 >= 4, "the status is that of an error");)+)?
            )*
        };

        /// Returns the descriptions of the routes.
        #[cfg(test)]
        pub(super) fn $operations() -> Vec<openapi::Operation> {
            use openapi::{Operation, schema_of};
            vec![$(Operation {
                method: stringify!($method),
                path: $path,
                handler: stringify!($handler),
                doc: &[$($text),+],
                query: [$(schema_of::<$Query>())?].first().copied(),
                body: [$(schema_of::<$Body>())?].first().copied(),
                optional_body: [$(schema_of::<$OptionalBody>())?].first().copied(),
                status: $status,
                answer: schema_of::<$Answer>(),
                answer_doc: $answer,
                errors: &[$($(($error_status, $error)),+)?],
            }),*]
        }
    };
}

routes! {
    /// Method and path of all routes under `/v1`.
    ROUTES, api, api_operations:

    /// OpenAPI document of the admin API.
    get "/v1/openapi.json" => openapi::document,
        200 Map<String, Value>: "The document";
    /// Server health, findings and statistics; in a cluster with those of all nodes.
    ///
    /// A node that gives no answer within two seconds is listed with the reason.
    get "/v1/status" => status::show,
        200 Status: "The status";
    /// All effective settings, each with its source.
    get "/v1/config" => settings::list,
        200 SettingList: "The settings";
    /// Show nodes and Raft groups of the cluster, with findings, as the responding node knows them.
    get "/v1/cluster" => cluster::show,
        200 ClusterInfo: "The cluster",
        errors 404 "NotClustered";
    /// Create a token that admits one node to the cluster within an hour.
    post "/v1/cluster/tokens" => cluster::create_token,
        201 NewJoinTokenInfo: "The token, which is shown only once",
        errors 404 "NotClustered", 409 "TooManyJoinTokens";
    /// Begin to replace the certificate authority of the cluster.
    ///
    /// The nodes carry it out automatically. `GET /v1/cluster` has the progress. While a replacement is under
    /// way, this request begins no other one.
    post "/v1/cluster/authority/rotate" => cluster_authority::rotate,
        202 ClusterAuthorityChange: "The replacement is under way",
        errors 404 "NotClustered", 409 "ClusterVersion";
    /// Begin to rebalance the cluster: sets of nodes are created, and groups move to them.
    ///
    /// The leader of the system group carries it out and ends it. `GET /v1/cluster` has the progress. A
    /// rebalance that is under way goes on.
    post "/v1/cluster/rebalance" => cluster_rebalance::begin,
        202 ClusterRebalanceChange: "The rebalance is under way",
        errors 404 "NotClustered", 409 "ClusterVersion", 409 "NothingToMove", 503 "NotCurrent";
    /// Begin to drain a node of the cluster.
    ///
    /// Other nodes copy its segments and take its votes over. `GET /v1/cluster` has the progress.
    post "/v1/cluster/nodes/{node}/drain" => cluster_leaving::drain,
        optional body DrainNodeRequest,
        202 ClusterNodeChange: "The node is draining",
        errors 404 "NotClustered", 404 "NoSuchNode", 409 "ClusterVersion", 409 "SegmentsAtUpstream",
            409 "TooFewNodes", 409 "WrongNodeState";
    /// End the draining of a node.
    post "/v1/cluster/nodes/{node}/undrain" => cluster_leaving::undrain,
        202 ClusterNodeChange: "The node is active again",
        errors 404 "NotClustered", 404 "NoSuchNode", 409 "WrongNodeState";
    /// Remove a drained or lost node from the cluster for ever.
    post "/v1/cluster/nodes/{node}/remove" => cluster_leaving::remove,
        optional body RemoveNodeRequest,
        202 ClusterNodeChange: "The node is leaving its groups, and is removed then",
        errors 404 "NotClustered", 404 "NoSuchNode", 409 "ClusterVersion", 409 "SegmentsAtUpstream",
            409 "NodeNotDrained", 409 "NodeAnswers", 409 "WrongNodeState";
    /// Replace a storage node of the cluster by another one.
    ///
    /// The old node is drained, and removed automatically when no segment needs it.
    post "/v1/cluster/nodes/{node}/replace" => cluster_leaving::replace,
        body ReplaceNodeRequest,
        202 ClusterNodeChange: "The old node is draining, or leaving if it is lost",
        errors 404 "NotClustered", 404 "NoSuchNode", 409 "ClusterVersion", 409 "SegmentsAtUpstream",
            409 "NoReplacement", 409 "NodeAnswers", 409 "NodeSilent", 409 "WrongNodeRole",
            409 "WrongNodeState";
    /// Take an empty directory in place of a lost segment directory of the responding node.
    ///
    /// Its segments are copied from other nodes. `OnlyCopies` means that some have no other copy.
    post "/v1/disks/replace" => disks::replace,
        body ReplaceDiskRequest,
        202 ReplacedDiskInfo: "The directory, which is used from now on",
        errors 404 "NotClustered", 404 "NoSuchDisk", 409 "DiskNotEmpty", 409 "DiskFailed", 409 "OnlyCopies";
    /// List upstream object stores.
    get "/v1/upstreams" => upstreams::list,
        200 UpstreamList: "The upstreams, sorted by name";
    /// Show an upstream.
    get "/v1/upstreams/{upstream}" => upstreams::show,
        200 UpstreamInfo: "The upstream",
        errors 404 "NoSuchUpstream";
    /// Test an upstream: write, read and delete an object.
    post "/v1/upstreams/{upstream}/check" => upstreams::check,
        200 Vec<CheckInfo>: "The result of each step",
        errors 404 "NoSuchUpstream";
    /// Transfer the ownership of the prefix to this server.
    ///
    /// `ForeignUpstream` means that the prefix has the mark of another server.
    post "/v1/upstreams/{upstream}/adopt" => upstreams::adopt,
        200 UpstreamInfo: "The upstream, whose prefix now has this server's mark",
        errors 404 "NoSuchUpstream", 409 "ForeignUpstream", 409 "NotTakenOver", 421 "OtherNode",
            502 "UpstreamFailed";
    /// List tiers of the responding node.
    get "/v1/tiers" => tiers::list,
        200 TierList: "The tiers",
        errors 421 "OtherNode";
    /// Show a tier, its scrub and its damage.
    get "/v1/tiers/{tier}" => tiers::show,
        200 TierDetail: "The tier",
        errors 404 "NoSuchTier", 421 "OtherNode";
    /// Start a scrub of a tier.
    post "/v1/tiers/{tier}/scrub" => tiers::scrub,
        202 TierDetail: "Started, or already running",
        errors 404 "NoSuchTier", 421 "OtherNode";
    /// Show the latest backup of this process.
    get "/v1/store/backup" => store::show,
        200 BackupStatus: "Its progress";
    /// Start a backup of the data directory, or of the whole cluster.
    post "/v1/store/backup" => store::start,
        body NewBackup,
        202 BackupStatus: "Started",
        errors 409 "BackupRunning", 409 "NothingStored";
    /// List access keys, without their secrets.
    get "/v1/access/keys" => keys::list,
        200 KeyList: "The root key first, then sorted by access key id";
    /// Create an access key.
    post "/v1/access/keys" => keys::create,
        body NewKey,
        201 CreatedKey: "The key and its secret, which is shown only once",
        errors 409 "AccessKeyExists";
    /// Show an access key.
    get "/v1/access/keys/{access_key}" => keys::show,
        200 KeyInfo: "The key",
        errors 404 "NoSuchAccessKey";
    /// Change an access key; omitted properties are kept.
    patch "/v1/access/keys/{access_key}" => keys::update,
        body KeyChange,
        200 KeyInfo: "The key after the change",
        errors 404 "NoSuchAccessKey", 409 "AccessKeyFixed";
    /// Delete an access key.
    delete "/v1/access/keys/{access_key}" => keys::delete,
        200 KeyInfo: "The deleted key",
        errors 404 "NoSuchAccessKey", 409 "AccessKeyFixed";
    /// List buckets, sorted by name, in pages.
    get "/v1/buckets" => buckets::list,
        query buckets::PageQuery,
        200 BucketPage: "A page of buckets";
    /// Create a bucket.
    post "/v1/buckets" => buckets::create,
        body NewBucketRequest,
        201 BucketInfo: "The bucket",
        errors 400 "InvalidBucketName", 409 "BucketAlreadyOwnedByYou";
    /// Show a bucket and its usage.
    get "/v1/buckets/{bucket}" => buckets::show,
        200 BucketInfo: "The bucket",
        errors 404 "NoSuchBucket";
    /// Delete an empty bucket.
    delete "/v1/buckets/{bucket}" => buckets::delete,
        200 BucketInfo: "The deleted bucket",
        errors 404 "NoSuchBucket", 409 "BucketNotEmpty";
    /// Change the quota of a bucket; an omitted limit is kept, `none` removes it.
    patch "/v1/buckets/{bucket}/quota" => buckets::change_quota,
        body QuotaRequest,
        200 BucketInfo: "The bucket after the change",
        errors 404 "NoSuchBucket";
    /// Create a bucket backed by a bucket of an upstream.
    post "/v1/buckets/{bucket}/binding" => bindings::bind,
        body BindRequest,
        201 BucketInfo: "The bucket",
        errors 400 "InvalidBucketName", 409 "BucketAlreadyOwnedByYou", 502 "UpstreamFailed";
    /// Remove a remote-backed bucket; its objects stay at the origin.
    delete "/v1/buckets/{bucket}/binding" => bindings::unbind,
        200 BucketInfo: "The removed bucket",
        errors 404 "NoSuchBucket", 409 "BucketNotEmpty", 409 "BucketBusy";
    /// Expire cached responses of the origin.
    post "/v1/buckets/{bucket}/refresh" => bindings::refresh,
        optional body RefreshRequest,
        200 RefreshResult: "Number of expired objects",
        errors 404 "NoSuchBucket";
    /// Start a job that migrates the bucket to another upstream while it is served.
    post "/v1/buckets/{bucket}/migration" => migrations::begin,
        body MigrationTarget,
        202 JobInfo: "The job",
        errors 404 "NoSuchBucket", 409 "NotEmpty", 409 "Contested", 409 "DatasetBusy", 502 "UpstreamFailed";
    /// Show the writes that are not yet at the origin.
    get "/v1/buckets/{bucket}/dirty" => dirty::show,
        200 DirtyInfo: "Remaining writes",
        errors 404 "NoSuchBucket";
    /// Discard local writes to keys that another client has since written at the origin.
    post "/v1/buckets/{bucket}/discard" => dirty::discard,
        200 DiscardResult: "Number of discarded writes",
        errors 404 "NoSuchBucket";
    /// Show an object and the location of its data.
    get "/v1/buckets/{bucket}/object" => objects::show,
        query objects::KeyQuery,
        200 ObjectInfo: "The object",
        errors 400 "InvalidArgument", 404 "NoSuchBucket", 404 "NoSuchKey", 502 "UpstreamFailed";
    /// Show the progress of the compaction of a tier.
    get "/v1/tiers/{tier}/compaction" => tiers::compaction,
        200 CompactionInfo: "Completed and remaining work",
        errors 404 "NoSuchTier", 421 "OtherNode";
    /// Start a compaction of a tier.
    post "/v1/tiers/{tier}/compaction" => tiers::compact,
        optional body CompactRequest,
        202 CompactionInfo: "Started; it is complete when rounds reaches until_rounds",
        errors 404 "NoSuchTier", 421 "OtherNode";
    /// Show the progress of moves between tiers.
    get "/v1/tiers/{tier}/drain" => drain::show,
        200 MovesInfo: "Progress since the start of the server",
        errors 404 "NoSuchTier", 421 "OtherNode";
    /// Start to drain a tier.
    post "/v1/tiers/{tier}/drain" => drain::begin,
        202 MovesInfo: "Started",
        errors 404 "NoSuchTier", 421 "OtherNode";
    /// List recent moves, cached copies and evictions with their reasons, the newest first; in a cluster
    /// those of all nodes.
    ///
    /// A node that gives no answer within two seconds is listed with the reason.
    get "/v1/decisions" => decisions::list,
        query decisions::DecisionQuery,
        200 DecisionList: "The decisions",
        errors 404 "NoSuchBucket";
    /// List recorded access traces, the oldest first.
    get "/v1/traces" => traces::list,
        200 TraceList: "The traces";
    /// Start to record accesses, one trace at a time, until a stop request or the end of the server.
    post "/v1/traces" => traces::start,
        body NewTrace,
        201 TraceInfo: "The trace",
        errors 409 "TraceExists", 409 "TraceRunning";
    /// Stop the recording.
    post "/v1/traces/stop" => traces::stop,
        200 TraceInfo: "The complete trace, which is on disk",
        errors 409 "NoTraceRunning";
    /// Show a trace.
    get "/v1/traces/{trace}" => traces::show,
        200 TraceInfo: "The trace",
        errors 404 "NoSuchTrace";
    /// Read a file of a trace, which is itself a valid trace; see docs/FORMATS.md.
    get "/v1/traces/{trace}/files/{number}" => traces::file,
        200 Binary: "The bytes of the file",
        errors 404 "NoSuchTrace";
    /// Show the running policy, as it was applied.
    get "/v1/policy" => policy::show,
        200 PolicyInfo: "The policy";
    /// Apply policy files immediately, or refuse them as a whole.
    ///
    /// `InvalidPolicy` names file, line and column of every error; `PolicyChanged` means that another version
    /// runs than the expected one.
    post "/v1/policy" => policy::apply,
        body ApplyRequest,
        200 PolicyChange: "The version that runs now",
        errors 409 "PolicyChanged", 422 "InvalidPolicy";
    /// Show the merged layers, with the source of each value.
    get "/v1/policy/effective" => policy::effective,
        200 EffectivePolicy: "The merged policy";
    /// List the versions of the policy, the newest first.
    get "/v1/policy/history" => policy::history,
        query policy::HistoryQuery,
        200 PolicyHistory: "The versions";
    /// Return to the files of another version, as a new version.
    post "/v1/policy/rollback" => policy::roll_back,
        body RollbackRequest,
        200 PolicyChange: "The version that runs now",
        errors 404 "NoSuchVersion", 409 "PolicyChanged", 409 "NothingBefore", 409 "FilesGone",
            422 "InvalidPolicy";
    /// Stop the learning.
    post "/v1/policy/freeze" => policy::freeze,
        body FreezeRequest,
        200 PolicyChange: "The version that runs now",
        errors 409 "PolicyChanged";
    /// Resume the learning.
    post "/v1/policy/unfreeze" => policy::unfreeze,
        body FreezeRequest,
        200 PolicyChange: "The version that runs now",
        errors 409 "PolicyChanged";
    /// Show the effect of policy files on stored objects, compared with the running policy; at most 10,000
    /// objects per request.
    post "/v1/policy/plan" => policy_plan::plan,
        body PlanRequest,
        200 PlanPage: "The plan for the objects visited so far; continue with the value of next as plan",
        errors 409 "PlanInUse", 422 "InvalidPolicy";
    /// JSON Schema of policy files, or of framework plugins.
    get "/v1/policy/schema" => policy_trials::schema,
        query policy_trials::SchemaQuery,
        200 Map<String, Value>: "The schema";
    /// Validate policy files, each on its own; changes nothing.
    post "/v1/policy/validate" => policy_trials::validate,
        body ValidateRequest,
        200 Vec<ValidationResult>: "The result of each file, plugins last, also if some are invalid";
    /// Test which rules match which keys, as far as keys alone determine it; changes nothing.
    post "/v1/policy/test" => policy_trials::test,
        body TestRequest,
        200 PolicyTestResult: "The result of each key and each rule",
        errors 422 "InvalidPolicy";
    /// Simulate caches on a trace of the server or a generated workload; one simulation at a time, cancelled
    /// when the client disconnects.
    post "/v1/policy/simulate" => policy_trials::simulate,
        body SimulateRequest,
        200 Vec<SimulationRow>: "A row for each cache size and each cache policy",
        errors 404 "NoSuchTrace", 409 "SimulationRunning", 422 "InvalidPolicy", 422 "TraceUnreadable";
    /// Explain the decisions of the policy on an object.
    get "/v1/policy/explain" => policy_explain::explain,
        query policy_explain::ObjectQuery,
        200 Explanation: "The explanation",
        errors 400 "InvalidArgument", 404 "NoSuchBucket", 404 "NoSuchKey", 502 "UpstreamFailed";
    /// Show the outcomes of decisions, by rule and by dataset, compared with other caches.
    get "/v1/policy/outcomes" => policy_outcomes::show,
        200 PolicyOutcomes: "The outcomes";
    /// List workloads, the most recently active first, with totals.
    get "/v1/workloads" => workloads::list,
        query workloads::WorkloadQuery,
        200 WorkloadList: "The workloads";
    /// Show a workload: its phase with the evidence, its datasets and its progress.
    get "/v1/workloads/{workload}" => workloads::show,
        200 WorkloadInfo: "The workload",
        errors 404 "NoSuchWorkload";
    /// List access plans and their progress.
    get "/v1/workload-plans" => workload_plans::list,
        200 AccessPlanList: "The plans";
    /// Show an access plan and its progress.
    get "/v1/workload-plans/{plan}" => workload_plans::show,
        200 AccessPlanInfo: "The plan",
        errors 404 "NoSuchPlan";
    /// Create or replace an access plan: the future reads of the workloads with a name.
    ///
    /// `InvalidPlan` names file, line and column of every error; `ListingTooSlow` means that listing the keys
    /// of the prefix takes more than nine minutes.
    put "/v1/workload-plans/{plan}" => workload_plans::put,
        body NewAccessPlan,
        200 AccessPlanInfo: "The stored plan",
        errors 404 "NoSuchBucket", 409 "TooManyPlans", 422 "InvalidPlan", 502 "UpstreamFailed",
            504 "ListingTooSlow";
    /// Delete an access plan.
    delete "/v1/workload-plans/{plan}" => workload_plans::delete,
        200 AccessPlanInfo: "The deleted plan",
        errors 404 "NoSuchPlan";
    /// List datasets, with the most recent byte counts.
    get "/v1/datasets" => datasets::list,
        200 DatasetList: "The datasets";
    /// Create a dataset: a name for a bucket or a part of it.
    post "/v1/datasets" => datasets::create,
        body NewDataset,
        201 DatasetInfo: "The dataset",
        errors 404 "NoSuchBucket", 409 "DatasetExists", 409 "TooManyDatasets";
    /// Show a dataset: its size, its local part and its tiers.
    get "/v1/datasets/{dataset}" => datasets::show,
        200 DatasetInfo: "The dataset",
        errors 404 "NoSuchDataset";
    /// Delete a dataset; objects and copies are kept.
    delete "/v1/datasets/{dataset}" => datasets::delete,
        200 DatasetInfo: "The deleted dataset",
        errors 404 "NoSuchDataset", 409 "DatasetBusy";
    /// Pin a dataset: protect its copies from eviction.
    put "/v1/datasets/{dataset}/pin" => datasets::pin,
        optional body PinRequest,
        200 DatasetInfo: "The dataset",
        errors 404 "NoSuchDataset", 409 "TooMuchPinned", 409 "DatasetChanged";
    /// Unpin a dataset: allow eviction of its copies.
    delete "/v1/datasets/{dataset}/pin" => datasets::unpin,
        200 DatasetInfo: "The dataset",
        errors 404 "NoSuchDataset", 409 "DatasetChanged";
    /// Set the schedule of a kind of job.
    put "/v1/datasets/{dataset}/schedules/{kind}" => datasets::schedule,
        body ScheduleRequest,
        200 DatasetInfo: "The dataset",
        errors 400 "InvalidRequest", 404 "NoSuchDataset", 409 "DatasetChanged";
    /// Remove the schedule of a kind of job.
    delete "/v1/datasets/{dataset}/schedules/{kind}" => datasets::unschedule,
        200 DatasetInfo: "The dataset",
        errors 400 "InvalidRequest", 404 "NoSuchDataset", 404 "NoSuchSchedule", 409 "DatasetChanged";
    /// Start a job on a dataset; one job at a time.
    post "/v1/datasets/{dataset}/jobs" => jobs::create,
        body JobRequest,
        202 JobInfo: "The job",
        errors 404 "NoSuchDataset", 409 "DatasetBusy";
    /// List the known jobs, the newest first.
    get "/v1/jobs" => jobs::list,
        query jobs::JobQuery,
        200 JobList: "The jobs";
    /// Show a job and its progress.
    get "/v1/jobs/{job}" => jobs::show,
        200 JobInfo: "The job",
        errors 404 "NoSuchJob";
    /// Cancel a job; completed work is kept.
    post "/v1/jobs/{job}/cancel" => jobs::cancel,
        202 JobInfo: "The job",
        errors 404 "NoSuchJob", 409 "JobEnded";
}

routes! {
    /// Method and path of all routes that need no signature.
    PROBE_ROUTES, probe_api, probe_operations:

    /// Liveness probe.
    get "/healthz" => probes::healthz,
        200 PlainText: "The process is alive";
    /// Readiness probe.
    get "/readyz" => probes::readyz,
        200 PlainText: "The server is ready",
        errors 503 "The server is draining, or it forwards requests to a node that does not answer";
    /// Metrics in the OpenMetrics text format.
    get "/metrics" => probes::metrics,
        200 OpenMetrics: "The metrics of docs/METRICS.md";
}
