//! Output of `mlgw top`: a page for a terminal, or one line.
//!
//! Pure: the same two statuses make the same page. Figures cover the time between two refreshes. Those of the
//! first one cover the last minute. In a cluster they are those of all nodes that answer.

use super::super::CliError;
use super::super::figures::{age, byte_rate, findings, operations, rate, time};
use super::super::job::progress_line;
use super::super::load::IntervalLoad;
use super::super::nodes::{answered, named_findings, nodes_table};
use super::super::status::{all_tiers, headline};
use super::StatusPair;
use super::gauges::gauges;
use super::sections::{BOLD, CRITICAL, PageSection, WARNING, draw};
use mlgw_api::{Health, JobInfo, Status, TierStatus};
use mlgw_common::ByteSize;
use ratatui::Frame;
use ratatui::style::Style;
use ratatui::text::Line;

/// Draws the page of a server.
pub(super) fn page(frame: &mut Frame<'_>, look: &StatusPair) {
    let (now, load) = (&look.now, IntervalLoad::of(&look.now, look.before()));
    let mut head =
        vec![Line::styled(headline(now) + ", up " + &age(now.uptime_seconds), of_health(now.health))];
    head.extend(findings(&named_findings(now)).into_iter().map(|line| {
        let style = match line.split_once(' ') {
            Some(("", _)) | None => Style::new(),
            Some(("CRITICAL", _)) => CRITICAL,
            Some(_) => WARNING,
        };
        Line::styled(line, style)
    }));
    let mut figures = vec![(requests(&load), BOLD)];
    if now.nodes.is_empty() {
        figures.push((machine(now, &load), Style::new()));
    }
    let nodes = (!now.nodes.is_empty())
        .then(|| PageSection::Columns(nodes_table(&IntervalLoad::of_nodes(&now.nodes, look.before()))));
    let first = [PageSection::Lines(head), PageSection::Figures(figures)];
    let rest = [
        PageSection::Gauges(gauges(look)),
        PageSection::Columns(all_tiers(now)),
        PageSection::Lines(jobs(&look.jobs)),
        PageSection::Columns(operations(&load.operations, load.seconds)),
    ];
    draw(frame, first.into_iter().chain(nodes).chain(rest));
}

/// Draws the page that is shown while the server does not answer.
pub(super) fn unreachable(frame: &mut Frame<'_>, error: &CliError) {
    let head = Line::styled("No answer from the server; retrying.", CRITICAL);
    draw(frame, [PageSection::Lines(vec![head]), PageSection::Prose(error.to_string())]);
}

fn requests(load: &IntervalLoad) -> Vec<String> {
    let total = load.total();
    vec![
        format!("requests {}/s", rate(total.requests, load.seconds)),
        format!("failed {}", total.errors),
        format!("refused {}", total.refused),
        format!("p50 {}", time(total.p50_seconds)),
        format!("p99 {}", time(total.p99_seconds)),
        format!("in {}", byte_rate(total.bytes_in, load.seconds)),
        format!("out {}", byte_rate(total.bytes_out, load.seconds)),
    ]
}

fn machine(now: &Status, load: &IntervalLoad) -> Vec<String> {
    let cpu =
        load.cpu_seconds.map_or_else(|| "-".to_owned(), |cpu| format!("{:.0} %", 100.0 * cpu / load.seconds));
    vec![
        format!("cpu {cpu}"),
        format!("memory {}", ByteSize(now.process.resident_bytes).human()),
        format!("connections {}", now.s3.connections),
        format!("in flight {}", now.s3.inflight_requests),
        format!("syncs {}/s", rate(load.syncs, load.seconds)),
        format!("log {}", ByteSize(now.catalogue.log_bytes).human()),
        format!("waiting {}", now.catalogue.queued_commands),
    ]
}

/// Formats running and queued jobs, one per line. Empty if there are none.
fn jobs(jobs: &[JobInfo]) -> Vec<Line<'static>> {
    let line = |job: &JobInfo| Line::raw(format!("{}  {}", job.dataset, progress_line(job)));
    let head = (!jobs.is_empty()).then(|| Line::styled("JOBS", BOLD));
    head.into_iter().chain(jobs.iter().map(line)).collect()
}

const fn of_health(health: Health) -> Style {
    match health {
        Health::Ok => BOLD,
        Health::Warning => WARNING,
        Health::Critical => CRITICAL,
    }
}

/// Formats one line for a file or a pipe.
pub(super) fn line(look: &StatusPair) -> String {
    let (now, load) = (&look.now, IntervalLoad::of(&look.now, look.before()));
    let total = load.total();
    let of_nodes = || answered(&now.nodes).map(|(_, figures)| figures);
    let (tiers, memory): (Vec<&TierStatus>, u64) = if now.nodes.is_empty() {
        (now.tiers.iter().collect(), now.process.resident_bytes)
    } else {
        let memory = of_nodes().map(|figures| figures.process.resident_bytes).sum();
        (of_nodes().flat_map(|figures| &figures.tiers).collect(), memory)
    };
    let used = tiers.iter().filter(|tier| tier.is_authoritative()).map(|tier| tier.used_bytes).sum();
    let nodes = match now.nodes.len() {
        0 => String::new(),
        all => format!(" nodes={}/{all}", of_nodes().count()),
    };
    format!(
        "{} {} requests/s={} failed={} refused={} p50={} p99={} in={} out={} syncs/s={} used={} \
         memory={}{nodes}\n",
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
        ByteSize(memory).human(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::StatusPair;
    use super::super::gauges::ScrapedFigures;
    use super::{line, page, unreachable};
    use crate::CliError;
    use crate::job::tests::a_job;
    use crate::nodes::tests::of_three;
    use mlgw_api::{Health, HealthFinding};
    use mlgw_testing::sample_status::{healthy, operation};
    use ratatui::backend::TestBackend;
    use ratatui::style::{Color, Modifier};
    use ratatui::{Frame, Terminal};
    use std::time::Duration;

    fn look() -> StatusPair {
        let (mut now, before) = (healthy(), healthy());
        now.s3.operations = vec![operation("GetObject", 1_002_000), operation("PutObject", 20)];
        now.process.cpu_seconds += 0.5;
        let metrics = "mlgw_tier_reads_total{tier=\"memory\",result=\"hit\"} 3\n\
                       mlgw_tier_reads_total{tier=\"memory\",result=\"miss\"} 1\n\
                       mlgw_flash_budget_left_bytes 524288\n";
        StatusPair {
            figures: Some(ScrapedFigures::parse(metrics, 24 << 20)),
            before: Some((before, Duration::from_secs(2))),
            ..StatusPair::first(now)
        }
    }

    fn screen(width: u16, height: u16, draw: impl FnOnce(&mut Frame<'_>)) -> Terminal<TestBackend> {
        let mut screen = Terminal::new(TestBackend::new(width, height)).unwrap();
        screen.draw(draw).unwrap();
        screen
    }

    fn rows(screen: &Terminal<TestBackend>) -> String {
        let buffer = screen.backend().buffer();
        let rows = buffer.content.chunks(buffer.area.width.into());
        let row =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
        rows.map(|cells| row(cells).trim_end().to_owned() + "\n").collect()
    }

    fn text(look: &StatusPair, width: u16, height: u16) -> String {
        rows(&screen(width, height, |frame| page(frame, look)))
    }

    #[test]
    fn a_page_of_a_usual_terminal() {
        let expected = "\
mlgw 0.1.0 on n: ready, no findings, up 1 d 2 h

requests 1010/s  failed 0  refused 0  p50 75 us  p99 100 us  in 0 B/s
out 3.9 MiB/s
cpu 25 %  memory 72.0 MiB  connections 32  in flight 3  syncs 0/s  log 1.0 MiB
waiting 0

hot tier       10 %  10.0 GiB of 100.0 GiB      ███░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
flash budget   50 %  512.0 KiB of 1.0 MiB left  ████████████████░░░░░░░░░░░░░░░░
memory hits    75 %  3 of 4 reads               ████████████████████████░░░░░░░░

TIER  OBJECTS  USED      CAPACITY   ROOM      GARBAGE  BAD BLOCKS
hot   1000     10.0 GiB  100.0 GiB  90.0 GiB  1.0 MiB  0

OPERATION  PER SECOND  FAILED  REFUSED  IN     OUT         P50    P99
GetObject  1000        0       0        0 B/s  3.9 MiB/s   75 us  100 us
PutObject  10          0       0        0 B/s  40.0 KiB/s  75 us  100 us






q: quit
";
        assert_eq!(text(&look(), 80, 24), expected);
    }

    #[test]
    fn a_page_of_a_small_terminal() {
        let expected = "\
mlgw 0.1.0 on n: ready, no findings, up
requests 1010/s  failed 0  refused 0
p50 75 us  p99 100 us  in 0 B/s
out 3.9 MiB/s
cpu 25 %  memory 72.0 MiB
connections 32  in flight 3  syncs 0/s
log 1.0 MiB  waiting 0
hot tier       10 %  █░░░░░░░░░░░░░░░░░░
flash budget   50 %  █████████░░░░░░░░░░
q: quit
";
        assert_eq!(text(&look(), 40, 10), expected);
    }

    #[test]
    fn the_first_refresh_shows_the_last_minute() {
        let first = StatusPair::first(healthy());
        assert!(text(&first, 120, 40).contains("requests 1000/s"));
        assert!(line(&first).starts_with("ready ok requests/s=1000 failed=0 "), "{}", line(&first));
    }

    #[test]
    fn the_page_of_a_cluster_has_all_nodes() {
        let look = StatusPair::first(of_three());
        let text = text(&look, 160, 40);
        for says in [
            "requests 2000/s  failed 0",
            "NODE  NAME  STATE  ",
            "2     n2    ready",
            "3     n3    no answer: it does not answer",
            "NODE  TIER  OBJECTS",
            "2     hot   1000",
        ] {
            assert!(text.contains(says), "{says:?} is missing in\n{text}");
        }
        let line = line(&look);
        assert!(line.contains(" requests/s=2000 ") && line.ends_with(" nodes=2/3\n"), "{line}");
        assert!(line.contains(" used=20.0 GiB memory=144.0 MiB"), "{line}");
    }

    #[test]
    fn a_page_fits_every_size() {
        for (width, height) in [(1, 1), (10, 2), (40, 5), (80, 24), (200, 60)] {
            let text = text(&look(), width, height);
            let widest = text.lines().map(|row| row.chars().count()).max();
            assert!(widest > Some(0) && widest <= Some(width.into()), "{width} x {height}: {text}");
        }
        let wide = text(&look(), 200, 60);
        assert!(wide.lines().any(|row| row.contains("hot tier") && row.contains("flash budget")), "{wide}");
    }

    #[test]
    fn a_page_follows_the_size_of_the_terminal() {
        let mut screen = screen(80, 24, |frame| page(frame, &look()));
        screen.backend_mut().resize(40, 10);
        screen.draw(|frame| page(frame, &look())).unwrap();
        assert_eq!(rows(&screen), text(&look(), 40, 10));
    }

    #[test]
    fn jobs_are_shown_while_they_run() {
        let idle = text(&look(), 120, 40);
        assert!(!idle.contains("JOBS"), "{idle}");
        let busy = text(&StatusPair { jobs: vec![a_job()], ..look() }, 120, 40);
        assert!(busy.contains("JOBS\nimages  warm 7 (running): 3 of at least 10 objects"), "{busy}");
    }

    #[test]
    fn wide_characters_are_aligned() {
        let job = |dataset: &str| mlgw_api::JobInfo { dataset: dataset.into(), ..a_job() };
        let mut look = StatusPair { jobs: vec![job("数据"), job("data")], ..look() };
        look.now.s3.operations = vec![operation("数据", 1_002_000), operation("data", 20)];
        let screen = screen(80, 40, |frame| page(frame, &look));
        let buffer = screen.backend().buffer();
        let column = |row: u16| buffer[(11, row)].symbol().to_owned();
        let at = |symbol: &str| (0..40).find(|row| buffer[(0, *row)].symbol() == symbol).unwrap();
        let table = at("O");
        let shown = [column(table + 1), column(table + 2)];
        assert_eq!(shown, ["5", "1"], "{}", rows(&screen));
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
        let shown = screen(80, 24, |frame| page(frame, &look));
        let (cells, plain) = (shown.backend().buffer(), (Color::Reset, Modifier::empty()));
        let style = |y| (cells[(0, y)].fg, cells[(0, y)].modifier);
        let critical = (Color::Red, Modifier::BOLD);
        assert_eq!([style(0), style(1), style(2)], [critical, critical, plain], "{}", rows(&shown));
        let error = CliError::Unreachable("cannot reach it: gone".into());
        let shown = screen(20, 24, |frame| unreachable(frame, &error));
        let text = rows(&shown);
        assert!(text.starts_with("No answer from the s\n\ncannot reach it:\ngone\n"), "{text}");
        assert_eq!(shown.backend().buffer()[(0, 0)].fg, Color::Red);
    }
}
