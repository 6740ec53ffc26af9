//! Admission of requests to one store: every request passes the budget and the gate of the store, and is
//! counted.
//!
//! The budget comes first and the gate second, so that a request that waits for its budget does not block
//! others. A request that is dropped on the way releases its slot and is not counted.

use std::sync::Arc;
use std::time::Instant;

use super::budget::Budget;
use super::gate::{Gate, Load, Pass};
use super::metrics::{Metrics, Op, Outcome, UpstreamMetrics, add};

/// State shared by all requests to one store.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) budget: Arc<Budget>,
    gate: Gate,
    pub(super) metrics: Metrics,
}

/// Request in flight.
#[derive(Debug)]
pub(super) struct Ticket<'a> {
    meter: &'a Meter,
    op: Op,
    pass: Pass,
    begun: Instant,
    asked_bytes: u64,
}

impl Meter {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, gate: Gate::default(), metrics: Metrics::default() }
    }

    /// Waits until a request that sends and requests these numbers of bytes may be sent.
    pub(super) async fn begin(&self, op: Op, sent_bytes: u64, asked_bytes: u64) -> Ticket<'_> {
        self.budget.spend(sent_bytes.saturating_add(asked_bytes)).await;
        let pass = self.gate.enter().await;
        add(&self.metrics.sent_bytes, sent_bytes);
        Ticket { meter: self, op, pass, begun: Instant::now(), asked_bytes }
    }

    pub(super) fn snapshot(&self) -> UpstreamMetrics {
        let (limit, under_way) = (self.gate.limit() as u64, self.gate.under_way() as u64);
        UpstreamMetrics { limit, under_way, ..self.metrics.snapshot() }
    }
}

impl Ticket<'_> {
    /// Ends the request; its response had `received_bytes` bytes.
    pub(super) fn end(self, outcome: Outcome, received_bytes: u64) {
        let metrics = &self.meter.metrics;
        metrics.request(self.op, outcome, self.begun.elapsed());
        add(&metrics.received_bytes, received_bytes);
        self.meter.budget.owe(received_bytes.saturating_sub(self.asked_bytes));
        self.pass.done(match outcome {
            Outcome::Ok | Outcome::Missing => Load::Borne,
            Outcome::SlowDown => Load::TooMuch,
            Outcome::Refused | Outcome::Failed => Load::Unknown,
        });
    }
}
