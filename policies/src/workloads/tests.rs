//! Workloads beside the truth, and within their bounds.

mod bounds;
mod cost;
mod told;
mod written;
