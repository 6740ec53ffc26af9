//! Conversions between enumerations of the engine and those of the API. Each is exhaustive: a new value of
//! the engine does not compile until the API has it.

use mlgw_api::{
    BindingMode, CachePriority, ClusterNodeRole, ClusterNodeState, CopyPolicy, CountedPhase, DatasetJobKind,
    DatasetJobState, DatasetReadiness, DecisionAction, DecisionLocation, DecisionResult, DecisionTrigger,
    OptimizationLevel, OverrideReason, PlanSampler, PolicyChangeKind, PolicyEnvironment, ReadAheadStrategy,
    ResidencyTier, RuleActionKind, RuleStance, UpstreamCheckStep, UpstreamProtocol, WarmOrder,
    WorkloadDatasetRole, WorkloadPhase, WriteDurability,
};
use mlgw_background::jobs::residency::{Readiness, ResidencyPlace};
use mlgw_config::Durability;
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_formats::schema::{BindMode, JobKind, JobOrder, JobState, NodeRole, NodeState, PolicyKind};
use mlgw_policies::language::{
    ActionKind, CachePolicy, DisplacementReason, Environment, Optimization, Phase, Priority, Stance, Strategy,
};
use mlgw_policies::plan::Sampler;
use mlgw_policies::workloads::DatasetRole;
use mlgw_remote::upstream::{CheckVerb, UpstreamKind};

/// Defines conversions between two enumerations with the same variants.
macro_rules! conversions {
    ($($name:ident: $From:ident => $To:ident { $($Variant:ident),+ $(,)? })+) => {
        $(
            pub(super) const fn $name(value: $From) -> $To {
                match value {
                    $($From::$Variant => $To::$Variant,)+
                }
            }
        )+
    };
}

conversions! {
    binding_mode: BindMode => BindingMode { ReadThrough, WriteThrough, WriteBack }
    bind_mode: BindingMode => BindMode { ReadThrough, WriteThrough, WriteBack }
    residency_tier: ResidencyPlace => ResidencyTier { Hot, Cold, Copies }
    readiness: Readiness => DatasetReadiness { Unknown, Ready, Partial, Cold, Broken }
    dataset_job_kind: JobKind => DatasetJobKind { Warm, Sync, Evict, Clear, Migrate }
    job_kind: DatasetJobKind => JobKind { Warm, Sync, Evict, Clear, Migrate }
    dataset_job_state: JobState => DatasetJobState { Queued, Running, Done, Failed, Cancelled }
    warm_order: JobOrder => WarmOrder { Sequential, Shuffled, ShardShuffled }
    job_order: WarmOrder => JobOrder { Sequential, Shuffled, ShardShuffled }
    decision_action: DecisionKind => DecisionAction {
        Spill, Promote, Relocate, Compress, Release, Keep, Evict, Clear, Delete, Import, Persist, Migrate,
    }
    decision_kind: DecisionAction => DecisionKind {
        Spill, Promote, Relocate, Compress, Release, Keep, Evict, Clear, Delete, Import, Persist, Migrate,
    }
    decision_location: DecisionPlace => DecisionLocation { Hot, Cold, Upstream, Copies, Origin, Nowhere }
    decision_trigger: DecisionReason => DecisionTrigger {
        Watermark, Drain, Compaction, Requested, Pressure, Dead, Heat, Pin, Read, Job, WriteBack, Policy,
        Rule, Rebalance,
    }
    decision_result: DecisionOutcome => DecisionResult { Done, NoRoom, OverBudget, Damaged, Foreign, Failed }
    policy_change_kind: PolicyKind => PolicyChangeKind { Apply, Rollback, Reload, Freeze, Unfreeze, Learn }
    policy_environment: Environment => PolicyEnvironment { Development, Staging, Production }
    environment: PolicyEnvironment => Environment { Development, Staging, Production }
    rule_action_kind: ActionKind => RuleActionKind {
        Cache, IntelligentCache, Prefetch, Stream, Coordinate, Compress, Prioritize, Promote, Pin, Unpin,
        Spill, Evict, Retain,
    }
    override_reason: DisplacementReason => OverrideReason { Same, Weaker, Contradicts }
    rule_stance: Stance => RuleStance { Observe, Act }
    cache_priority: Priority => CachePriority { Low, Normal, High, Urgent }
    copy_policy: CachePolicy => CopyPolicy { None, Lru, TrainingAware, Learned }
    read_ahead_strategy: Strategy => ReadAheadStrategy { Conservative, Balanced, Aggressive, Adaptive }
    optimization_level: Optimization => OptimizationLevel { Basic, Balanced, Aggressive, Maximum }
    workload_phase: Phase => WorkloadPhase {
        Initialization, Training, Validation, CheckpointSave, Evaluation, Inference, Tuning,
    }
    counted_phase: Phase => CountedPhase {
        Initialization, Training, Validation, CheckpointSave, Evaluation, Inference, Tuning,
    }
    workload_dataset_role: DatasetRole => WorkloadDatasetRole {
        Undecided, Training, Validation, Evaluation, Model, Small, Serving,
    }
    plan_sampler: Sampler => PlanSampler { Sequential, TorchDistributed, TorchRandom, NumpyPermutation }
    upstream_protocol: UpstreamKind => UpstreamProtocol { S3, Gcs, Azure, Oss, Cos, Obs, WebHdfs, Fs }
    upstream_check_step: CheckVerb => UpstreamCheckStep {
        Reach, Credentials, List, Write, Read, Range, Multipart, Abort, Delete,
    }
    write_durability: Durability => WriteDurability { Full, Os }
    cluster_node_role: NodeRole => ClusterNodeRole { Storage, Gateway }
    cluster_node_state: NodeState => ClusterNodeState { Active, Joining, Draining, Leaving, Removed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlgw_background::jobs::{KINDS, kind_name, state_name};
    use mlgw_config::SettingType as _;
    use mlgw_policies::language::Word;

    /// Asserts that the words of an enumeration of the policy language are those of the API.
    fn assert_words<T: Word>(name: impl Fn(T) -> &'static str) {
        T::ALL.iter().for_each(|one| assert_eq!(name(*one), one.name()));
    }

    #[test]
    fn words_of_the_policy_language_are_those_of_the_api() {
        assert_words(|one| policy_environment(one).name());
        assert_words(|one| rule_action_kind(one).name());
        assert_words(|one| override_reason(one).name());
        assert_words(|one| rule_stance(one).name());
        assert_words(|one| cache_priority(one).name());
        assert_words(|one| copy_policy(one).name());
        assert_words(|one| read_ahead_strategy(one).name());
        assert_words(|one| optimization_level(one).name());
        assert_words(|one| workload_phase(one).name());
        assert_words(|one| counted_phase(one).name());
    }

    #[test]
    fn words_of_decisions_are_those_of_the_api() {
        DecisionKind::ALL.iter().for_each(|one| assert_eq!(decision_action(*one).name(), one.name()));
        DecisionPlace::ALL.iter().for_each(|one| assert_eq!(decision_location(*one).name(), one.name()));
        DecisionReason::ALL.iter().for_each(|one| assert_eq!(decision_trigger(*one).name(), one.name()));
        DecisionOutcome::ALL.iter().for_each(|one| assert_eq!(decision_result(*one).name(), one.name()));
    }

    #[test]
    fn words_of_metrics_and_settings_are_those_of_the_api() {
        KINDS.iter().for_each(|one| assert_eq!(dataset_job_kind(*one).name(), kind_name(*one)));
        for state in [JobState::Queued, JobState::Running, JobState::Done, JobState::Failed] {
            assert_eq!(dataset_job_state(state).name(), state_name(state));
        }
        ResidencyPlace::ALL.iter().for_each(|one| assert_eq!(residency_tier(*one).name(), one.name()));
        Sampler::ALL.iter().for_each(|one| assert_eq!(plan_sampler(*one).name(), one.name()));
        for protocol in UpstreamProtocol::ALL {
            let kind = UpstreamKind::from_text(protocol.name()).unwrap();
            assert_eq!(upstream_protocol(kind), *protocol);
        }
        for durability in [Durability::Full, Durability::Os] {
            assert_eq!(write_durability(durability).name(), durability.to_text());
        }
    }
}
