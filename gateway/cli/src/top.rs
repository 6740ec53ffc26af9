//! The command `mlgw top`: a server's load, refreshed until `q`.
//!
//! On a terminal the page is drawn again after each interval and after a change of its size. The terminal is
//! restored at the end, also after a signal. Without a terminal each interval prints a line. While a server
//! does not answer, the page shows the error and requests continue.

mod page;
mod terminal;

use super::client::Client;
use super::output::Out;
use super::{CliError, Global, OutputForm, discover};
use clap::Args;
use mlgw_api::{JobInfo, JobList, Status};
use mlgw_common::time::Instant;
use std::io::IsTerminal as _;
use std::time::Duration;
use terminal::{Terminal, TerminalEvent};

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
    let mut poller = StatusPoller::new(Client::new(discover::target(global)?)?, &args);
    if out.form == OutputForm::Json {
        return poller.lines(|look| serde_json::to_string(&look.now).unwrap_or_default() + "\n", out).await;
    }
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return poller.pages(Terminal::open()?).await;
    }
    poller.lines(page::line, out).await
}

/// A status, the one before it, and the jobs.
struct StatusPair {
    now: Status,
    before: Option<(Status, Duration)>,
    /// Jobs that have not ended, the newest first.
    jobs: Vec<JobInfo>,
}

/// Requests the status of a server repeatedly.
struct StatusPoller {
    client: Client,
    interval: Duration,
    left: Option<u64>,
    last: Option<(Status, Instant)>,
}

impl StatusPoller {
    fn new(client: Client, args: &TopArgs) -> Self {
        Self { client, interval: Duration::from_secs_f64(args.interval), left: args.count, last: None }
    }

    async fn poll(&mut self) -> Result<StatusPair, CliError> {
        let now: Status = self.client.get("/v1/status").await?;
        let JobList { jobs } = self.client.get("/v1/jobs?active=true").await?;
        let at = Instant::now();
        let before = self.last.replace((now.clone(), at));
        // Counters of another process cannot be compared.
        let before = before.filter(|(before, _)| before.started == now.started);
        Ok(StatusPair { now, before: before.map(|(before, then)| (before, at - then)), jobs })
    }

    /// Counts a refresh. Returns true if it was the last one.
    fn was_last(&mut self) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }

    /// Prints one line per refresh. The first error ends the command, because no one watches it.
    async fn lines(&mut self, line: impl Fn(&StatusPair) -> String, out: Out) -> Result<(), CliError> {
        loop {
            let look = self.poll().await?;
            out.text(&line(&look))?;
            if self.was_last() {
                return Ok(());
            }
            mlgw_common::time::sleep(self.interval).await;
        }
    }

    /// Draws one page per refresh until the reader quits.
    async fn pages(&mut self, mut terminal: Terminal) -> Result<(), CliError> {
        loop {
            let shown = tokio::select! {
                shown = self.poll() => shown,
                () = terminal.quit() => return Ok(()),
            };
            let next = Instant::now() + self.interval;
            loop {
                terminal.draw(|width, height| match &shown {
                    Ok(look) => page::page(look, width, height),
                    Err(error) => page::unreachable(error, width, height),
                })?;
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
