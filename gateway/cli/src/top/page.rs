//! Output of `mlgw top`: a page of rows that fits a width and a height, or one line.
//!
//! Pure: the same two statuses make the same page. Figures cover the time between two refreshes. Those of the
//! first one cover the last minute.

use super::super::CliError;
use super::super::figures::{age, byte_rate, findings, operations, rate, tiers, time};
use super::super::job::progress_line;
use super::super::status::headline;
use super::StatusPair as TwoStatuses;
use mlgw_api::{Health, JobInfo, OperationStatus, Status};
use mlgw_common::ByteSize;
use mlgw_common::histogram::{BUCKETS, Durations};

/// Style of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowStyle {
    Plain,
    Head,
    Warning,
    Critical,
}

/// A row of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRow {
    pub(super) text: String,
    pub(super) style: RowStyle,
}

/// Load between two refreshes.
struct IntervalLoad {
    seconds: f64,
    operations: Vec<OperationStatus>,
    syncs: u64,
    cpu_seconds: Option<f64>,
}

impl IntervalLoad {
    fn of(look: &TwoStatuses) -> Self {
        let now = &look.now;
        let Some((before, over)) = &look.before else {
            let recent = &now.recent;
            return Self {
                seconds: recent.seconds,
                operations: recent.operations.clone(),
                syncs: recent.syncs,
                cpu_seconds: None,
            };
        };
        let syncs = |status: &Status| status.syncs.iter().map(|sync| sync.count).sum::<u64>();
        let grown = now.s3.operations.iter().map(|done| since(done, before));
        Self {
            seconds: over.as_secs_f64(),
            operations: grown.filter(|done| done.requests > 0).collect(),
            syncs: syncs(now).saturating_sub(syncs(before)),
            cpu_seconds: Some((now.process.cpu_seconds - before.process.cpu_seconds).max(0.0)),
        }
    }

    /// Returns the sum over all operations.
    fn total(&self) -> OperationStatus {
        let sum = |of: fn(&OperationStatus) -> u64| self.operations.iter().map(of).sum();
        let mut all = Durations::default();
        self.operations.iter().for_each(|done| all.add(&durations(done)));
        of_durations(
            "all",
            all,
            [sum(|d| d.requests), sum(|d| d.errors), sum(|d| d.refused)],
            [sum(|d| d.bytes_in), sum(|d| d.bytes_out)],
        )
    }
}

fn durations(done: &OperationStatus) -> Durations {
    let mut buckets = [0; BUCKETS];
    buckets.iter_mut().zip(&done.duration_buckets).for_each(|(bucket, count)| *bucket = *count);
    Durations { buckets, nanos: 0 }
}

fn of_durations(
    name: &str,
    durations: Durations,
    [requests, errors, refused]: [u64; 3],
    [bytes_in, bytes_out]: [u64; 2],
) -> OperationStatus {
    let quantile = |q| durations.quantile(q).map(|duration| duration.as_secs_f64());
    OperationStatus {
        operation: name.to_owned(),
        requests,
        errors,
        refused,
        bytes_in,
        bytes_out,
        p50_seconds: quantile(0.5),
        p99_seconds: quantile(0.99),
        duration_buckets: durations.buckets.to_vec(),
    }
}

/// Returns the difference of an operation to its counters in `before`.
fn since(done: &OperationStatus, before: &Status) -> OperationStatus {
    let Some(then) = before.s3.operations.iter().find(|then| then.operation == done.operation) else {
        return done.clone();
    };
    let counts = [
        done.requests.saturating_sub(then.requests),
        done.errors.saturating_sub(then.errors),
        done.refused.saturating_sub(then.refused),
    ];
    let bytes = [done.bytes_in.saturating_sub(then.bytes_in), done.bytes_out.saturating_sub(then.bytes_out)];
    of_durations(&done.operation, durations(done).since(&durations(then)), counts, bytes)
}

/// Returns the page of a server.
pub(super) fn page(look: &TwoStatuses, width: usize, height: usize) -> Vec<PageRow> {
    let (now, load) = (&look.now, IntervalLoad::of(look));
    let total = load.total();
    let mut rows = vec![row(headline(now) + ", up " + &age(now.uptime_seconds), of_health(now.health))];
    for line in findings(now) {
        let is_what = !line.starts_with(' ');
        let look = if line.starts_with("CRITICAL") { RowStyle::Critical } else { RowStyle::Warning };
        rows.push(row(line, if is_what { look } else { RowStyle::Plain }));
    }
    rows.push(row(String::new(), RowStyle::Plain));
    rows.push(row(
        format!(
            "requests {}/s  failed {}  refused {}  p50 {}  p99 {}  in {}  out {}",
            rate(total.requests, load.seconds),
            total.errors,
            total.refused,
            time(total.p50_seconds),
            time(total.p99_seconds),
            byte_rate(total.bytes_in, load.seconds),
            byte_rate(total.bytes_out, load.seconds),
        ),
        RowStyle::Head,
    ));
    rows.push(row(machine(now, &load), RowStyle::Plain));
    rows.push(row(String::new(), RowStyle::Plain));
    push_table(&mut rows, &tiers(&now.tiers));
    push_table(&mut rows, &jobs(&look.jobs));
    push_table(&mut rows, &operations(&load.operations, load.seconds));
    fit(rows, width, height)
}

/// Formats running and queued jobs, one per line. Empty if there are none.
fn jobs(jobs: &[JobInfo]) -> String {
    if jobs.is_empty() {
        return String::new();
    }
    let line = |job: &JobInfo| format!("{}  {}\n", job.dataset, progress_line(job));
    format!("JOBS\n{}", jobs.iter().map(line).collect::<String>())
}

fn machine(now: &Status, load: &IntervalLoad) -> String {
    let cpu =
        load.cpu_seconds.map_or_else(|| "-".to_owned(), |cpu| format!("{:.0} %", 100.0 * cpu / load.seconds));
    format!(
        "cpu {cpu}  memory {}  connections {}  in flight {}  syncs {}/s  log {}  waiting {}",
        ByteSize(now.process.resident_bytes).human(),
        now.s3.connections,
        now.s3.inflight_requests,
        rate(load.syncs, load.seconds),
        ByteSize(now.catalogue.log_bytes).human(),
        now.catalogue.queued_commands,
    )
}

const fn of_health(health: Health) -> RowStyle {
    match health {
        Health::Ok => RowStyle::Head,
        Health::Warning => RowStyle::Warning,
        Health::Critical => RowStyle::Critical,
    }
}

/// Appends a table and an empty row. An empty table is omitted.
fn push_table(rows: &mut Vec<PageRow>, table: &str) {
    if table.is_empty() {
        return;
    }
    for (at, line) in table.lines().enumerate() {
        rows.push(row(line.to_owned(), if at == 0 { RowStyle::Head } else { RowStyle::Plain }));
    }
    rows.push(row(String::new(), RowStyle::Plain));
}

/// Returns the page that is shown while the server does not answer.
pub(super) fn unreachable(error: &CliError, width: usize, height: usize) -> Vec<PageRow> {
    let rows = vec![
        row("No answer from the server; retrying.".to_owned(), RowStyle::Critical),
        row(error.to_string(), RowStyle::Plain),
    ];
    fit(rows, width, height)
}

/// Formats one line for a file or a pipe.
pub(super) fn line(look: &TwoStatuses) -> String {
    let (now, load) = (&look.now, IntervalLoad::of(look));
    let total = load.total();
    let used: u64 = now.tiers.iter().filter(|tier| tier.is_authoritative()).map(|tier| tier.used_bytes).sum();
    format!(
        "{} {} requests/s={} failed={} refused={} p50={} p99={} in={} out={} syncs/s={} used={} memory={}\n",
        now.state,
        now.health.name(),
        rate(total.requests, load.seconds),
        total.errors,
        total.refused,
        time(total.p50_seconds),
        time(total.p99_seconds),
        byte_rate(total.bytes_in, load.seconds),
        byte_rate(total.bytes_out, load.seconds),
        rate(load.syncs, load.seconds),
        ByteSize(used).human(),
        ByteSize(now.process.resident_bytes).human(),
    )
}

fn row(text: String, look: RowStyle) -> PageRow {
    PageRow { text, style: look }
}

/// Cuts rows and columns that do not fit. The last row shows the key to quit, if there is room for it.
fn fit(mut rows: Vec<PageRow>, width: usize, height: usize) -> Vec<PageRow> {
    rows.truncate(height.saturating_sub(1).max(1));
    if rows.len() < height {
        rows.push(row("q: quit".to_owned(), RowStyle::Plain));
    }
    for row in &mut rows {
        if row.text.chars().count() > width {
            row.text = row.text.chars().take(width).collect();
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::StatusPair as TwoStatuses;
    use super::{RowStyle, line, page, unreachable};
    use crate::CliError;
    use crate::job::tests::a_job;
    use mlgw_api::{Health, HealthFinding};
    use mlgw_testing::sample_status::{healthy, operation};
    use std::time::Duration;

    fn look() -> TwoStatuses {
        let (mut now, before) = (healthy(), healthy());
        now.s3.operations = vec![operation("GetObject", 1_002_000), operation("PutObject", 20)];
        now.process.cpu_seconds += 0.5;
        TwoStatuses { now, before: Some((before, Duration::from_secs(2))), jobs: Vec::new() }
    }

    fn text(look: &TwoStatuses, width: usize, height: usize) -> String {
        page(look, width, height).into_iter().map(|row| row.text + "\n").collect()
    }

    #[test]
    fn figures_cover_the_time_between_two_refreshes() {
        let text = text(&look(), 120, 40);
        assert!(text.contains("requests 1010/s  failed 0  refused 0  p50 75 us  p99 "), "{text}");
        assert!(text.contains("cpu 25 %"), "{text}");
        let operations: Vec<_> = text.lines().filter(|line| line.contains("Object ")).collect();
        assert!(operations[0].starts_with("GetObject  1000 "), "{text}");
        assert!(operations[1].starts_with("PutObject  10 "), "{text}");
    }

    #[test]
    fn the_first_refresh_shows_the_last_minute() {
        let first = TwoStatuses { now: healthy(), before: None, jobs: Vec::new() };
        assert!(text(&first, 120, 40).contains("requests 1000/s"));
        assert!(line(&first).starts_with("ready ok requests/s=1000 failed=0 "), "{}", line(&first));
    }

    #[test]
    fn a_page_fits_every_size() {
        for (width, height) in [(1, 1), (10, 2), (40, 5), (80, 24), (200, 60)] {
            let rows = page(&look(), width, height);
            assert!(rows.len() <= height && !rows.is_empty(), "{width} x {height}: {}", rows.len());
            assert!(rows.iter().all(|row| row.text.chars().count() <= width), "{width} x {height}");
        }
        assert_eq!(text(&look(), 80, 24).lines().last(), Some("q: quit"));
    }

    #[test]
    fn jobs_are_shown_while_they_run() {
        let idle = text(&look(), 120, 40);
        assert!(!idle.contains("JOBS"), "{idle}");
        let mut look = look();
        look.jobs = vec![a_job()];
        let busy = text(&look, 120, 40);
        assert!(busy.contains("JOBS\nimages  warm 7 (running): 3 of at least 10 objects"), "{busy}");
    }

    #[test]
    fn findings_are_highlighted() {
        let mut look = look();
        look.now.health = Health::Critical;
        look.now.findings = vec![HealthFinding {
            severity: Health::Critical,
            what: "Full.".into(),
            advice: "Delete.".into(),
        }];
        let rows = page(&look, 80, 24);
        assert_eq!(
            (rows[0].style, rows[1].style, rows[2].style),
            (RowStyle::Critical, RowStyle::Critical, RowStyle::Plain)
        );
        let rows = unreachable(&CliError::Unreachable("gone".into()), 80, 24);
        assert_eq!((rows[0].style, rows[1].text.as_str()), (RowStyle::Critical, "gone"));
    }
}
