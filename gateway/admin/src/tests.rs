//! Tests of the admin API: its OpenAPI document against the code, and its calls over a real engine.

mod calls;
mod cluster;
mod document;
mod figures;
mod policy;
mod policy_trials;
mod schema;
mod workloads;
