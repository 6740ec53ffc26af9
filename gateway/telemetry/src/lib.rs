//! Telemetry: counters of requests, and logs and traces of single requests.
//!
//! Recording a request takes a clock reading and a few atomic additions to counters that are laid out at
//! start by operation and status, without lookups by name and without allocation. Only a request that the
//! access log or a trace samples carries notes ([`observed`]). All counters are lost at a restart, as
//! Prometheus expects.

pub mod access_log;
pub mod audit;
pub mod exposition;
pub mod observed;
pub mod process;
pub mod recent;
pub mod request_record;
pub mod rotating;
pub mod slow_log;
pub mod table;
pub mod traces;

use access_log::AccessLog;
use exposition::{MetricFamily, MetricValue};
use mlgw_common::Tier;
use mlgw_common::histogram::{DurationHistogram, Durations};
use mlgw_forwarding::counters::ForwardCounters;
use mlgw_objects::ResourceShortage;
use mlgw_objects::metrics::{ObjectMetrics, QUOTAS};
use mlgw_wire::error::Code;
use mlgw_wire::operation::Operation;
use slow_log::SlowLog;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use table::{
    ACCESS_LOG_LINES, CONNECTIONS, FIRST_BYTE, FORWARDING, INFLIGHT_REQUESTS, QUOTA_REFUSED, REQUEST_BYTES,
    REQUEST_DURATION, REQUEST_ERROR_CODES, REQUEST_ERRORS, REQUESTS, THROTTLED,
};
use traces::Traces;

pub use observed::Observed;

/// Statuses of responses, in ascending order; any other status is counted as `other`.
const STATUSES: [u16; 24] = [
    100, 200, 204, 206, 301, 303, 304, 307, 400, 401, 403, 404, 405, 408, 409, 411, 412, 413, 416, 499, 500,
    501, 503, 507,
];
/// Status of a request whose client disconnected.
const CLIENT_GONE: u16 = 499;
/// Statuses of a server that is short of a resource, which is not counted as a server error.
const SHORTAGE_STATUSES: [u16; 2] = [503, 507];
/// Status of an operation that this server does not offer; not counted as a server error.
const NOT_IMPLEMENTED: u16 = 501;

const _: () = assert!(ascends(&STATUSES), "a status is found by a binary search");
const _: () = assert!(
    Operation::ALL[Operation::ALL.len() - 1] as usize == Operation::ALL.len() - 1
        && Code::ALL[Code::ALL.len() - 1] as usize == Code::ALL.len() - 1,
    "counters are found by the number of their operation or code"
);

const fn ascends(statuses: &[u16]) -> bool {
    let mut at = 1;
    while at < statuses.len() {
        if statuses[at - 1] >= statuses[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Sources of a response's bytes: none, or a tier.
const TIERS: [&str; 2] = ["none", Tier::Hot.name()];

/// Counters of one operation.
#[derive(Debug, Default)]
struct OperationCounters {
    statuses: [AtomicU64; STATUSES.len() + 1],
    duration: DurationHistogram,
    first_byte: [DurationHistogram; TIERS.len()],
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// Counters of the gateway.
#[derive(Debug)]
pub struct GatewayMetrics {
    operations: Vec<OperationCounters>,
    /// Error responses, indexed by the position of their code in [`Code::ALL`].
    error_codes: Vec<AtomicU64>,
    inflight: AtomicI64,
    connections: AtomicI64,
    /// Counters of the object layer.
    pub objects: Arc<ObjectMetrics>,
    /// The slow-request log.
    pub slow_log: SlowLog,
    /// The access log.
    pub access_log: AccessLog,
    /// Exporter of traces, if traces are exported.
    pub traces: Option<Traces>,
    /// Counters of forwarded requests, on a node with peers.
    pub forwarding: Option<Arc<ForwardCounters>>,
}

/// Totals of one operation since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationTotals {
    /// Requests answered or abandoned.
    pub requests: u64,
    /// Requests that failed because of the server: status 5xx, except 501 and the statuses of a shortage.
    pub errors: u64,
    /// Requests answered with 503 or 507.
    pub refused: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Bytes of response bodies.
    pub bytes_out: u64,
    /// Time from head to last byte.
    pub duration: Durations,
}

impl OperationTotals {
    /// Returns the difference to the `earlier` totals.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            errors: self.errors.saturating_sub(earlier.errors),
            refused: self.refused.saturating_sub(earlier.refused),
            bytes_in: self.bytes_in.saturating_sub(earlier.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(earlier.bytes_out),
            duration: self.duration.since(&earlier.duration),
        }
    }
}

impl OperationCounters {
    fn totals(&self) -> OperationTotals {
        let sum_of_statuses = |wanted: &dyn Fn(u16) -> bool| {
            let counts = STATUSES.iter().zip(&self.statuses).filter(|(status, _)| wanted(**status));
            counts.map(|(_, count)| count.load(Relaxed)).sum()
        };
        let duration = self.duration.snapshot();
        OperationTotals {
            requests: duration.count(),
            errors: sum_of_statuses(&|status| {
                status >= 500 && status != NOT_IMPLEMENTED && !SHORTAGE_STATUSES.contains(&status)
            }),
            refused: sum_of_statuses(&|status| SHORTAGE_STATUSES.contains(&status)),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            duration,
        }
    }
}

impl GatewayMetrics {
    /// Returns counters at zero. Requests that take at least `slow_request_millis` are logged; 0 disables the
    /// slow log.
    #[must_use]
    pub fn new(slow_request_millis: u64) -> Self {
        Self {
            operations: Operation::ALL.iter().map(|_| OperationCounters::default()).collect(),
            error_codes: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            inflight: AtomicI64::new(0),
            connections: AtomicI64::new(0),
            objects: Arc::default(),
            slow_log: SlowLog::new(slow_request_millis),
            access_log: AccessLog::off(),
            traces: None,
            forwarding: None,
        }
    }

    fn count(&self, operation: Operation, status: u16, took: Duration) {
        let of = self.counters_of(operation);
        let at = STATUSES.binary_search(&status).unwrap_or(STATUSES.len());
        of.statuses[at].fetch_add(1, Relaxed);
        of.duration.record(took);
        let before = self.inflight.fetch_sub(1, Relaxed);
        assert!(before > 0, "a request that is counted was in flight");
    }

    fn count_error(&self, code: Code) {
        self.error_codes[code as usize].fetch_add(1, Relaxed);
    }

    fn counters_of(&self, operation: Operation) -> &OperationCounters {
        &self.operations[operation as usize]
    }

    /// Counts an open connection until the returned value is dropped.
    #[must_use]
    pub fn connection(self: &Arc<Self>) -> ConnectionCount {
        self.connections.fetch_add(1, Relaxed);
        ConnectionCount(Arc::clone(self))
    }

    /// Returns the number of requests begun and not yet answered completely.
    #[must_use]
    pub fn inflight_requests(&self) -> i64 {
        self.inflight.load(Relaxed)
    }

    /// Returns the number of open connections to the S3 endpoint.
    #[must_use]
    pub fn open_connections(&self) -> i64 {
        self.connections.load(Relaxed)
    }

    /// Returns the totals of each operation that was requested at least once.
    #[must_use]
    pub fn totals(&self) -> Vec<(Operation, OperationTotals)> {
        let all =
            Operation::ALL.iter().zip(&self.operations).map(|(operation, of)| (*operation, of.totals()));
        all.filter(|(_, done)| done.requests > 0).collect()
    }

    /// Returns the current values as metric families.
    #[must_use]
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut requests = MetricFamily::new(REQUESTS);
        let mut duration = MetricFamily::new(REQUEST_DURATION);
        let mut first_byte = MetricFamily::new(FIRST_BYTE);
        let mut bytes = MetricFamily::new(REQUEST_BYTES);
        let mut errors = 0;
        for (operation, of) in Operation::ALL.iter().zip(&self.operations) {
            let op = operation.name();
            let durations = of.duration.snapshot();
            if durations.count() == 0 {
                continue;
            }
            for (at, count) in of.statuses.iter().enumerate() {
                let count = count.load(Relaxed);
                if count > 0 {
                    let status = STATUSES.get(at).map_or_else(|| "other".to_owned(), u16::to_string);
                    requests.push(&[op, &status], MetricValue::Count(count));
                }
            }
            errors += of.totals().errors;
            duration.push(&[op], MetricValue::Durations(durations));
            for (tier, durations) in TIERS.iter().zip(of.first_byte.iter().map(DurationHistogram::snapshot)) {
                if durations.count() > 0 {
                    first_byte.push(&[op, tier], MetricValue::Durations(durations));
                }
            }
            bytes.push(&[op, "in"], MetricValue::Count(of.bytes_in.load(Relaxed)));
            bytes.push(&[op, "out"], MetricValue::Count(of.bytes_out.load(Relaxed)));
        }
        let mut codes = MetricFamily::new(REQUEST_ERROR_CODES);
        for (code, count) in Code::ALL.iter().zip(&self.error_codes) {
            let count = count.load(Relaxed);
            if count > 0 {
                codes.push(&[code.as_str()], MetricValue::Count(count));
            }
        }
        let mut over = MetricFamily::new(QUOTA_REFUSED);
        for (quota, count) in QUOTAS.iter().zip(self.objects.quota_refused()) {
            over.push(&[quota], MetricValue::Count(count));
        }
        let mut short = MetricFamily::new(THROTTLED);
        for (shortage, count) in ResourceShortage::ALL.iter().zip(self.objects.throttled()) {
            short.push(&[shortage.name()], MetricValue::Count(count));
        }
        let mut forwarding = MetricFamily::new(FORWARDING);
        for (outcome, count) in self.forwarding.iter().flat_map(|counters| counters.totals().named()) {
            forwarding.push(&[outcome], MetricValue::Count(count));
        }
        let inflight = MetricFamily::single(INFLIGHT_REQUESTS, MetricValue::Level(self.inflight_requests()));
        let connections = MetricFamily::single(CONNECTIONS, MetricValue::Level(self.open_connections()));
        let (written, dropped) = self.access_log.lines();
        let access_log = MetricFamily::new(ACCESS_LOG_LINES)
            .with(&["written"], MetricValue::Count(written))
            .with(&["dropped"], MetricValue::Count(dropped));
        let errors = MetricFamily::single(REQUEST_ERRORS, MetricValue::Count(errors));
        vec![
            requests,
            errors,
            codes,
            duration,
            first_byte,
            bytes,
            inflight,
            connections,
            short,
            over,
            forwarding,
            access_log,
        ]
    }
}

/// Guard that counts an open connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionCount(Arc<GatewayMetrics>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        let before = self.0.connections.fetch_sub(1, Relaxed);
        assert!(before > 0, "a connection that closes was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::STATUSES;

    #[test]
    fn statuses_are_sorted_for_binary_search() {
        assert!(STATUSES.is_sorted());
    }
}
