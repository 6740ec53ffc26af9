//! Workloads beside the truth, and within their bounds.

mod bounds;
mod cost;
mod epochs;
mod numbers;
mod told;
mod without_passes;
mod written;
