//! Background work: jobs, write-back, the policy reconciler, access journal and traces.

pub mod policy_plan;
pub mod reconciler;
pub mod diary;
pub mod proofs;
pub mod access_traces;
pub mod line_file;
pub mod trace_files;
pub mod stored_objects;
pub mod writeback;
pub mod jobs;
pub mod access_plans;
