//! Kinds of names that a server lists. Arguments of commands carry them, so that shells can complete the
//! names (`completion.rs`).

use clap::builder::ArgExt;

/// A kind of name.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerName {
    Bucket,
    Dataset,
    /// Number of a job.
    Job,
    /// Access key id.
    AccessKey,
    Upstream,
    Tier,
    /// Version of the policy.
    PolicyVersion,
    /// Id of a workload.
    WorkloadId,
    /// Name under which a workload identifies itself.
    WorkloadName,
    /// Id of an access plan.
    AccessPlan,
    Trace,
}

impl ArgExt for ServerName {}
