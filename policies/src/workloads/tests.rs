//! Tests of workload tracking against labeled traffic, and of its bounds.

mod bounds;
mod cost;
mod epochs;
mod lifecycles;
mod numbers;
mod without_passes;
mod written;
