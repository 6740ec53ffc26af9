//! Request and answer types of the admin API, shared by its handlers, the command line and tests.
//!
//! The package depends on serde alone: it imports neither protocol nor engine. Conversions from engine types
//! are in the package of the handlers. Every type is described in docs/openapi.json, and tests of the
//! handlers compare the two. Nothing is stored, so a power failure has no effect.

mod admin_file;
mod bindings;
mod buckets;
mod datasets;
mod decisions;
mod dirty;
mod drain;
mod error;
mod health;
mod jobs;
mod keys;
mod migrations;
mod objects;
mod policy;
mod policy_explain;
mod policy_figures;
mod policy_outcomes;
mod policy_plan;
mod policy_trials;
mod quota;
mod settings;
mod status;
mod store;
pub mod tier_names;
mod tiers;
mod traces;
mod upstreams;
mod workload_plans;
mod workloads;

pub use admin_file::{ADMIN_FILE, AdminFile};
pub use bindings::{BindRequest, BindingInfo, RefreshRequest, RefreshResult};
pub use buckets::{BucketInfo, BucketPage, NewBucketRequest};
pub use datasets::{
    DatasetInfo, DatasetList, NewDataset, PinRequest, ResidencyInfo, ScheduleInfo, ScheduleRequest,
    SourceInfo,
};
pub use decisions::{DecisionInfo, DecisionList};
pub use dirty::{DirtyInfo, DiscardResult};
pub use drain::MovesInfo;
pub use error::AdminErrorBody;
pub use health::{Health, HealthFinding};
pub use jobs::{JobInfo, JobList, JobRequest};
pub use keys::{AccessKeyRole, CreatedKey, KeyChange, KeyInfo, KeyList, NewKey};
pub use migrations::MigrateRequest;
pub use objects::{ExtentInfo, ObjectInfo, ObjectTierInfo, OriginObjectInfo};
pub use policy::{
    ApplyRequest, EffectivePolicy, FreezeRequest, PolicyChange, PolicyHistory, PolicyInfo, PolicyText,
    PolicyVersionInfo, RollbackRequest,
};
pub use policy_explain::{
    ActionInfo, CachedBlocksInfo, ConditionResultInfo, Explanation, FactInfo, OverriddenAction,
    RecommendationInfo, RuleEvaluationInfo, ScopedActionInfo,
};
pub use policy_figures::PolicyStatus;
pub use policy_outcomes::{DatasetOutcomes, PolicyOutcomes, ReadAheadOutcomes, RuleOutcomes};
pub use policy_plan::{
    ExpiredCheckpointInfo, PendingDeletionInfo, PlanExample, PlanPage, PlanRequest, PlannedActionInfo,
    PlannedSettingInfo, UndeterminedRule,
};
pub use policy_trials::{
    DiagnosticInfo, EpochOrderName, KeyTestResult, PolicyTestResult, RuleTestResult, SimulateRequest,
    SimulationRow, TestRequest, TestedRuleMatch, UndecidedRuleMatch, ValidateRequest, ValidationResult,
};
pub use quota::{QuotaInfo, QuotaRequest, UsedInfo};
pub use settings::{SettingInfo, SettingList};
pub use status::{
    CatalogueStatus, JobStatus, OperationStatus, ProcessStatus, RecentStatus, S3Status, Shortage, Status,
    SyncStatus, TierStatus,
};
pub use store::{BackupStatus, NewBackup};
pub use tiers::{BadRange, CompactRequest, CompactionInfo, ScrubInfo, TierDetail, TierInfo, TierList};
pub use traces::{NewTrace, TraceFileInfo, TraceInfo, TraceList};
pub use upstreams::{CheckInfo, UpstreamInfo, UpstreamList};
pub use workload_plans::{AccessPlanInfo, AccessPlanList, NewAccessPlan};
pub use workloads::{PhaseCount, TreatmentInfo, WorkloadDataset, WorkloadInfo, WorkloadList, WorkloadTotals};

/// Service name in the SigV4 signatures of admin API requests.
pub const SERVICE: &str = "mlgw";
