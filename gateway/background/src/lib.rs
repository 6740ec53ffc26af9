//! Background work: jobs, write-back, the policy reconciler, the access journal and access traces.

pub mod access_journal;
pub mod access_plans;
pub mod access_traces;
pub mod jobs;
pub mod line_file;
pub mod policy_plan;
pub mod proofs;
pub mod reconciler;
pub mod stored_objects;
pub mod trace_files;
pub mod writeback;
