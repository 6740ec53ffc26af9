//! Tests of the policy engine, of its workload tracking and of traces, on generated workloads.

mod detection;
mod engine_cost;
mod lifecycles;
mod planned;
mod retention;
mod same;
mod traces;
mod tracking_cost;
