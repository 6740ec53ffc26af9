//! Formatting of figures: rates, times, sizes, and the tables of `status` and `top`.

use super::output::TextTable;
use mlgw_api::{HealthFinding, OperationStatus, SyncStatus, TierStatus};
use mlgw_common::ByteSize;

/// Formats a rate with up to three digits.
pub(super) fn rate(count: u64, seconds: f64) -> String {
    let rate = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    match rate {
        0.0 => "0".to_owned(),
        _ if rate < 10.0 => format!("{rate:.1}"),
        _ if rate < 100_000.0 => format!("{rate:.0}"),
        _ => format!("{:.0} k", rate / 1e3),
    }
}

/// Formats bytes per second.
pub(super) fn byte_rate(bytes: u64, seconds: f64) -> String {
    let rate = if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
    format!("{}/s", ByteSize(rate as u64).human())
}

/// Formats a duration in a suitable unit.
pub(super) fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

/// Formats a long duration in its two largest units.
pub(super) fn age(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let first = UNITS.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let mut rest = seconds;
    let parts = UNITS[first..].iter().take(2).map(|(name, unit)| {
        let count = rest / unit;
        rest %= unit;
        format!("{count} {name}")
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Returns the operations of `seconds` as a table, the busiest first.
pub(super) fn operations(done: &[OperationStatus], seconds: f64) -> TextTable {
    let mut done: Vec<&OperationStatus> = done.iter().collect();
    done.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.operation.cmp(&b.operation)));
    let rows: Vec<_> = done
        .iter()
        .map(|of| {
            vec![
                of.operation.clone(),
                rate(of.requests, seconds),
                of.errors.to_string(),
                of.refused.to_string(),
                byte_rate(of.bytes_in, seconds),
                byte_rate(of.bytes_out, seconds),
                time(of.p50_seconds),
                time(of.p99_seconds),
            ]
        })
        .collect();
    let head = vec!["OPERATION", "PER SECOND", "FAILED", "REFUSED", "IN", "OUT", "P50", "P99"];
    TextTable { head, rows }
}

/// Returns the tiers and their fill levels as a table.
pub(super) fn tiers(tiers: &[TierStatus]) -> TextTable {
    let size = |bytes: u64| ByteSize(bytes).human();
    let row = |tier: &TierStatus| {
        vec![
            tier.tier.to_string(),
            tier.objects.to_string(),
            size(tier.used_bytes),
            size(tier.capacity_bytes),
            size(tier.room_bytes),
            size(tier.garbage_bytes),
            tier.quarantined_blocks.to_string(),
        ]
    };
    let head = vec!["TIER", "OBJECTS", "USED", "CAPACITY", "ROOM", "GARBAGE", "BAD BLOCKS"];
    TextTable { head, rows: tiers.iter().map(row).collect() }
}

/// Returns the syncs since the start, by kind of file, as a table. Kinds without a sync are omitted.
pub(super) fn syncs(syncs: &[SyncStatus]) -> TextTable {
    let row = |sync: &SyncStatus| {
        vec![sync.file.clone(), sync.count.to_string(), time(sync.p50_seconds), time(sync.p99_seconds)]
    };
    let rows = syncs.iter().filter(|sync| sync.count > 0).map(row).collect();
    TextTable { head: vec!["SYNCS OF", "COUNT", "P50", "P99"], rows }
}

/// Returns the findings and the advice for each.
pub(super) fn findings(findings: &[HealthFinding]) -> Vec<String> {
    let finding = |finding: &HealthFinding| {
        let severity = finding.severity.name().to_uppercase();
        [format!("{severity}  {}", finding.what), format!("          {}", finding.advice)]
    };
    findings.iter().flat_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::{age, byte_rate, operations, rate, time};
    use mlgw_testing::sample_status::operation;

    #[test]
    fn figures_have_a_suitable_number_of_digits() {
        assert_eq!([rate(0, 60.0), rate(30, 60.0), rate(60_000, 60.0)], ["0", "0.5", "1000"]);
        assert_eq!(rate(12_000_000, 60.0), "200 k");
        assert_eq!(rate(5, 0.0), "0");
        assert_eq!(byte_rate(60 << 20, 60.0), "1.0 MiB/s");
        assert_eq!(
            [time(None), time(Some(0.000_075)), time(Some(0.0123)), time(Some(2.5))],
            ["-", "75 us", "12.3 ms", "2.5 s"]
        );
        assert_eq!([age(0), age(61), age(3_600), age(93_784)], ["0 s", "1 min 1 s", "1 h 0 min", "1 d 2 h"]);
    }

    #[test]
    fn the_busiest_operation_comes_first() {
        let table = operations(&[operation("PutObject", 60), operation("GetObject", 600)], 60.0).to_string();
        let names: Vec<_> = table.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, ["OPERATION", "GetObject", "PutObject"]);
        assert!(table.contains("40.0 KiB/s"), "{table}");
    }
}
