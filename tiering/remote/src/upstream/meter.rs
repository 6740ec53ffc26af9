//! Admission of requests to one store: every request passes the budget and the gate of the store, and is
//! counted.
//!
//! The budget comes first and the gate second, so that a request that waits for its budget does not block
//! others. A request that is dropped on the way releases its slot and is not counted.

use mlgw_common::time::Instant;
use std::sync::Arc;

use super::gate::{GatePermit, StoreLoad, UpstreamGate};
use super::metrics::{UpstreamCounters, UpstreamMetrics, UpstreamOp, UpstreamOutcome, add};
use super::rate_budget::UpstreamBudget;

/// State shared by all requests to one store.
#[derive(Debug)]
pub(super) struct UpstreamMeter {
    pub(super) budget: Arc<UpstreamBudget>,
    gate: UpstreamGate,
    pub(super) metrics: UpstreamCounters,
}

/// Request in flight.
#[derive(Debug)]
pub(super) struct MeteredRequest<'a> {
    meter: &'a UpstreamMeter,
    op: UpstreamOp,
    pass: GatePermit,
    begun: Instant,
    requested_bytes: u64,
}

impl UpstreamMeter {
    pub(super) fn new(budget: Arc<UpstreamBudget>) -> Self {
        Self { budget, gate: UpstreamGate::default(), metrics: UpstreamCounters::default() }
    }

    /// Waits until a request that sends and requests these numbers of bytes may be sent.
    pub(super) async fn begin(
        &self,
        op: UpstreamOp,
        sent_bytes: u64,
        requested_bytes: u64,
    ) -> MeteredRequest<'_> {
        self.budget.wait_for_request(sent_bytes.saturating_add(requested_bytes)).await;
        let pass = self.gate.acquire().await;
        add(&self.metrics.sent_bytes, sent_bytes);
        MeteredRequest { meter: self, op, pass, begun: Instant::now(), requested_bytes }
    }

    pub(super) fn snapshot(&self) -> UpstreamMetrics {
        let (limit, under_way) = (self.gate.limit() as u64, self.gate.in_flight() as u64);
        UpstreamMetrics { limit, in_flight: under_way, ..self.metrics.snapshot() }
    }
}

impl MeteredRequest<'_> {
    /// Ends the request; its response had `received_bytes` bytes.
    pub(super) fn finish(self, outcome: UpstreamOutcome, received_bytes: u64) {
        let metrics = &self.meter.metrics;
        metrics.record_request(self.op, outcome, self.begun.elapsed());
        add(&metrics.received_bytes, received_bytes);
        self.meter.budget.charge(received_bytes.saturating_sub(self.requested_bytes));
        self.pass.finish(match outcome {
            UpstreamOutcome::Ok | UpstreamOutcome::Missing => StoreLoad::Answered,
            UpstreamOutcome::SlowDown => StoreLoad::SlowDown,
            UpstreamOutcome::Refused | UpstreamOutcome::Failed => StoreLoad::Unknown,
        });
    }
}
