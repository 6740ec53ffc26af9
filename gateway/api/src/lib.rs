//! Request and response types of the admin API, shared by its handlers, the command line and tests.
//!
//! Of the workspace the package imports mlgw-common alone, neither protocol nor engine. Conversions from
//! engine types are in the package of the handlers. The schemas of docs/openapi.json are derived from these
//! types by schemars, descriptions included. These types are never written to disk, apart from [`AdminFile`]
//! and the JSON of changed resources in the audit log.

mod admin_file;
mod bindings;
mod buckets;
mod cluster;
mod datasets;
mod decisions;
mod dirty;
mod disks;
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
mod tiers;
mod traces;
mod upstreams;
mod words;
mod workload_plans;
mod workloads;

pub use admin_file::{ADMIN_FILE, AdminFile};
pub use bindings::{BindRequest, BindingInfo, BindingMode, RefreshRequest, RefreshResult};
pub use buckets::{BucketInfo, BucketPage, KeyRangeInfo, NewBucketRequest};
pub use cluster::{
    ClusterAuthorityChange, ClusterCopiesInfo, ClusterDutyPhase, ClusterGroupInfo, ClusterInfo,
    ClusterLeavingInfo, ClusterMemberInfo, ClusterMemberPart, ClusterNodeChange, ClusterNodeInfo,
    ClusterNodeRole, ClusterNodeState, ClusterRebalanceChange, ClusterRebalanceInfo, ClusterRowsInfo,
    ClusterSetInfo, ClusterUpgradeInfo, DrainNodeRequest, NewJoinTokenInfo, RemoveNodeRequest,
    ReplaceNodeRequest,
};
pub use datasets::{
    DatasetInfo, DatasetList, DatasetReadiness, NewDataset, PinRequest, ResidencyInfo, ResidencyTier,
    ScheduleInfo, ScheduleRequest, SourceInfo,
};
pub use decisions::{
    DecisionAction, DecisionInfo, DecisionList, DecisionLocation, DecisionResult, DecisionTrigger, SilentNode,
};
pub use dirty::{DirtyInfo, DiscardResult};
pub use disks::{ReplaceDiskRequest, ReplacedDiskInfo};
pub use drain::MovesInfo;
pub use error::AdminErrorBody;
pub use health::{Health, HealthFinding};
pub use jobs::{DatasetJobKind, DatasetJobState, JobInfo, JobList, JobRequest, WarmOrder};
pub use keys::{AccessKeyRole, CreatedKey, KeyChange, KeyInfo, KeyList, NewKey};
pub use migrations::MigrationTarget;
pub use objects::{
    ExtentInfo, ExtentState, ObjectInfo, ObjectLocation, ObjectNodeInfo, ObjectTierInfo, OriginObjectInfo,
};
pub use policy::{
    ApplyRequest, EffectivePolicy, FreezeRequest, PolicyChange, PolicyChangeKind, PolicyEnvironment,
    PolicyHistory, PolicyInfo, PolicyText, PolicyVersionInfo, RollbackRequest,
};
pub use policy_explain::{
    ActionInfo, CachePriority, CachedBlocksInfo, ConditionResultInfo, CopyPolicy, Explanation, FactInfo,
    OverriddenAction, OverrideReason, ReadAheadStrategy, RecommendationInfo, RuleActionKind,
    RuleEvaluationInfo, ScopedActionInfo,
};
pub use policy_figures::PolicyStatus;
pub use policy_outcomes::{DatasetOutcomes, PolicyOutcomes, ReadAheadOutcomes, RuleOutcomes};
pub use policy_plan::{
    ExpiredCheckpointInfo, PendingDeletionInfo, PlanExample, PlanPage, PlanRequest, PlannedActionInfo,
    PlannedChange, PlannedSettingInfo, RuleStance, UndeterminedRule,
};
pub use policy_trials::{
    CacheAlgorithm, DiagnosticInfo, EpochOrderName, KeyTestResult, PolicyFileKind, PolicyTestResult,
    RuleTestResult, SimulateRequest, SimulationProfile, SimulationRow, TestRequest, TestedRuleMatch,
    UndecidedRuleMatch, ValidateRequest, ValidationResult,
};
pub use quota::{QuotaInfo, QuotaRequest, UsedInfo};
pub use settings::{SettingInfo, SettingList};
pub use status::{
    CatalogueStatus, ClusterNodeReport, JobStatus, OperationStatus, ProcessStatus, RecentStatus,
    ReportedFigures, S3Status, ServerState, Shortage, Status, SyncStatus, TierStatus, WriteDurability,
};
pub use store::{BackupState, BackupStatus, NewBackup};
pub use tiers::{BadRange, CompactRequest, CompactionInfo, ScrubInfo, TierDetail, TierInfo, TierList};
pub use traces::{NewTrace, TraceFileInfo, TraceInfo, TraceList};
pub use upstreams::{
    CheckInfo, UpstreamCheckStep, UpstreamInfo, UpstreamList, UpstreamOwner, UpstreamProtocol,
};
pub use workload_plans::{AccessPlanInfo, AccessPlanList, NewAccessPlan, PlanSampler};
pub use workloads::{
    CountedPhase, OptimizationLevel, PhaseCount, TreatmentInfo, WorkloadDataset, WorkloadDatasetRole,
    WorkloadInfo, WorkloadList, WorkloadPhase, WorkloadTotals,
};

/// Service name in the SigV4 signatures of admin API requests.
pub const SERVICE: &str = "mlgw";
