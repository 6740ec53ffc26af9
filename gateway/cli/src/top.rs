//! The command `mlgw top`: the load of a server, or of all nodes of a cluster, refreshed until `q`.
//!
//! On a terminal the page is drawn again after each interval and after a change of its size. The terminal is
//! restored at the end, also after a signal or a panic. Without a terminal each interval prints a line. While
//! a server does not answer, the page shows the error and requests continue.

mod gauges;
mod page;
mod sections;
mod terminal;

use super::client::{Client, ServerTarget};
use super::output::{Out, json_line};
use super::status::{SETTINGS, metrics_client};
use super::stdout::StdoutStream;
use super::{CliError, Global, OutputForm, discover};
use clap::Args;
use gauges::ScrapedFigures;
use http::Method;
use mlgw_api::{JobInfo, JobList, SettingList, Status};
use mlgw_common::ByteSize;
use mlgw_common::time::Instant;
use mlgw_config::SettingType as _;
use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::Duration;
use terminal::{Terminal, TerminalEvent};

/// Time limit of an answer with metrics.
const FIGURES_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two refreshes.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
    /// Number of refreshes. Default: until `q`.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Parses an interval of 0.1 to 3600 seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("not between 0.1 and 3600".to_owned()) }
}

pub(super) async fn run(args: TopArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let mut poller = StatusPoller::new(discover::target(global)?, &args)?;
    if out.form == OutputForm::Json {
        return poller.lines(|look| json_line(&look.now), StdoutStream::open()?).await;
    }
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        poller.has_figures = true;
        return poller.pages(Terminal::open()?).await;
    }
    poller.lines(|look| Ok(page::line(look)), StdoutStream::open()?).await
}

/// A status, the one before it, and the jobs.
struct StatusPair {
    now: Status,
    before: Option<(Status, Duration)>,
    /// Jobs that have not ended, the newest first.
    jobs: Vec<JobInfo>,
    /// Figures of the metrics, if they were requested and answered.
    figures: Option<ScrapedFigures>,
    figures_before: Option<ScrapedFigures>,
}

impl StatusPair {
    /// Returns the status before, and the time since then.
    fn before(&self) -> Option<(&Status, Duration)> {
        self.before.as_ref().map(|(before, over)| (before, *over))
    }

    /// Returns a status without one before it.
    #[cfg(test)]
    const fn first(now: Status) -> Self {
        Self { now, before: None, jobs: Vec::new(), figures: None, figures_before: None }
    }
}

/// Requests the status of a server repeatedly.
struct StatusPoller {
    client: Client,
    interval: Duration,
    left: Option<u64>,
    /// True if the metrics are requested as well.
    has_figures: bool,
    last: Option<(Status, Option<ScrapedFigures>, Instant)>,
}

impl StatusPoller {
    fn new(target: ServerTarget, args: &TopArgs) -> Result<Self, CliError> {
        let client = Client::new(target)?;
        let interval = Duration::from_secs_f64(args.interval);
        Ok(Self { client, interval, left: args.count, has_figures: false, last: None })
    }

    async fn poll(&mut self) -> Result<StatusPair, CliError> {
        let now: Status = self.client.get("/v1/status").await?;
        let jobs = self.client.get("/v1/jobs?active=true").await;
        let JobList { jobs } = match now.duty_node {
            // The duty node of the cluster may be lost. The page has the other figures meanwhile.
            Some(_) => jobs.unwrap_or(JobList { jobs: Vec::new() }),
            None => jobs?,
        };
        let at = Instant::now();
        // The page has no gauges of metrics while these do not answer.
        let figures = if self.has_figures { self.figures().await.ok() } else { None };
        let before = self.last.replace((now.clone(), figures, at));
        // Counters of another process cannot be compared.
        let before = before.filter(|(before, ..)| before.started == now.started);
        let figures_before = before.as_ref().and_then(|(_, figures, _)| *figures);
        let before = before.map(|(before, _, then)| (before, at - then));
        Ok(StatusPair { now, before, jobs, figures, figures_before })
    }

    /// Requests the figures that only the metrics contain.
    async fn figures(&self) -> Result<ScrapedFigures, CliError> {
        let settings: SettingList = self.client.get(SETTINGS).await?;
        let client = metrics_client(&self.client, &settings)?.with_patience(FIGURES_PATIENCE);
        let text = client.send(Method::GET, "/metrics", None::<&()>).await?;
        let budget = settings.settings.iter().find(|setting| setting.key == "hot.flash_bytes_per_day");
        let budget = budget.and_then(|setting| ByteSize::from_text(setting.value.trim_matches('"')).ok());
        Ok(ScrapedFigures::parse(&String::from_utf8_lossy(&text), budget.map_or(0, |budget| budget.0)))
    }

    /// Counts a refresh. Returns true if it was the last one.
    fn was_last(&mut self) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }

    /// Prints one line per refresh, until the reader closes the pipe. The first error ends the command,
    /// because no one watches it.
    async fn lines(
        &mut self,
        line: impl Fn(&StatusPair) -> Result<String, CliError>,
        mut stdout: StdoutStream,
    ) -> Result<(), CliError> {
        loop {
            let look = self.poll().await?;
            if stdout.write(line(&look)?.as_bytes())?.is_break() || self.was_last() {
                return Ok(());
            }
            mlgw_common::time::sleep(self.interval).await;
        }
    }

    /// Draws one page per refresh until the reader quits.
    async fn pages(&mut self, mut terminal: Terminal) -> Result<(), CliError> {
        let mut shown = None;
        loop {
            let answer = {
                let mut poll = pin!(self.poll());
                loop {
                    let event = tokio::select! {
                        answer = &mut poll => break answer,
                        event = terminal.interruption() => event,
                    };
                    match (event, &shown) {
                        (TerminalEvent::Quit, _) => return Ok(()),
                        (_, Some(shown)) => draw(&mut terminal, shown)?,
                        (_, None) => {}
                    }
                }
            };
            let answer = shown.insert(answer);
            let next = Instant::now() + self.interval;
            loop {
                draw(&mut terminal, answer)?;
                match terminal.event(next).await {
                    TerminalEvent::Quit => return Ok(()),
                    TerminalEvent::Resized => {}
                    TerminalEvent::Due => break,
                }
            }
            if self.was_last() {
                return Ok(());
            }
        }
    }
}

/// Draws the answer of a server.
fn draw(terminal: &mut Terminal, answer: &Result<StatusPair, CliError>) -> Result<(), CliError> {
    terminal.draw(|frame| match answer {
        Ok(look) => page::page(frame, look),
        Err(error) => page::unreachable(frame, error),
    })
}

#[cfg(test)]
mod tests {
    use super::{StatusPoller, TopArgs, page};
    use crate::canned_server::{CannedServer, response};
    use crate::client::ServerTarget;
    use crate::stdout::StdoutStream;
    use mlgw_api::{JobList, Status};
    use mlgw_common::Secret;
    use mlgw_testing::sample_status::healthy;
    use serde::Serialize;
    use std::fs::File;
    use std::io::pipe;
    use std::os::fd::OwnedFd;

    fn json(document: &impl Serialize) -> String {
        let body = serde_json::to_string(document).unwrap();
        response("200 OK", &[("content-length", &body.len().to_string())], &body)
    }

    #[tokio::test]
    async fn a_node_whose_duty_node_is_lost_shows_no_jobs() {
        let status = Status { duty_node: Some("node 1".into()), ..healthy() };
        let lost = response("503 Service Unavailable", &[("content-length", "0")], "");
        let server = CannedServer::start(vec![json(&status), lost]);
        let (endpoint, secret) = (server.endpoint(), Secret::new("secret"));
        let target = ServerTarget { endpoint, access_key: "AK".into(), secret };
        let mut poller = StatusPoller::new(target, &TopArgs { interval: 0.1, count: Some(1) }).unwrap();
        assert_eq!(poller.poll().await.unwrap().jobs.len(), 0);
        assert_eq!(server.requests().len(), 2);
    }

    #[tokio::test]
    async fn lines_end_when_the_reader_closes_the_pipe() {
        let server = CannedServer::start(vec![json(&healthy()), json(&JobList { jobs: vec![] })]);
        let (endpoint, secret) = (server.endpoint(), Secret::new("secret"));
        let target = ServerTarget { endpoint, access_key: "AK".into(), secret };
        let mut poller = StatusPoller::new(target, &TopArgs { interval: 0.1, count: Some(3) }).unwrap();
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let stdout = StdoutStream::to(File::from(OwnedFd::from(writer)));
        // A second refresh would meet no server.
        poller.lines(|look| Ok(page::line(look)), stdout).await.unwrap();
        let requests = server.requests();
        assert!(requests[0].starts_with("get /v1/status "), "{requests:?}");
    }
}
