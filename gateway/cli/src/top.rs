//! `mlgw top`: a server's load, refreshed until `q`.
//!
//! On a terminal the page is drawn anew after each interval, a change of its size and nothing else;
//! it is left as it was found, also when this ends by a signal. Elsewhere each interval is a line.
//! A server that goes away is said and asked again.

mod page;
mod terminal;

use super::client::Client;
use super::output::Out;
use super::{CliError, Global, OutputForm, discover};
use clap::Args;
use mlgw_api::{JobInfo, JobList, Status};
use std::io::IsTerminal as _;
use std::time::Duration;
use terminal::{Event, Terminal};
use tokio::time::Instant;

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two looks.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
    /// How many looks; without it, until `q`.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// An interval that a server and a reader can bear.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("not within 0.1 and 3600".to_owned()) }
}

pub(super) async fn run(args: TopArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let mut looks = Looks::new(Client::new(discover::target(global)?)?, &args);
    if out.form == OutputForm::Json {
        return looks.lines(|look| serde_json::to_string(&look.now).unwrap_or_default() + "\n", out).await;
    }
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return looks.pages(Terminal::open()?).await;
    }
    looks.lines(page::line, out).await
}

/// A status and the one before it.
struct Look {
    now: Status,
    before: Option<(Status, Duration)>,
    /// Jobs that have not ended, the newest first.
    jobs: Vec<JobInfo>,
}

/// Looks at a server, one after the other.
struct Looks {
    client: Client,
    interval: Duration,
    left: Option<u64>,
    last: Option<(Status, Instant)>,
}

impl Looks {
    fn new(client: Client, args: &TopArgs) -> Self {
        Self { client, interval: Duration::from_secs_f64(args.interval), left: args.count, last: None }
    }

    async fn look(&mut self) -> Result<Look, CliError> {
        let now: Status = self.client.get("/v1/status").await?;
        let JobList { jobs } = self.client.get("/v1/jobs?active=true").await?;
        let at = Instant::now();
        let before = self.last.replace((now.clone(), at));
        // Counters of another process say nothing about this one.
        let before = before.filter(|(before, _)| before.started == now.started);
        Ok(Look { now, before: before.map(|(before, then)| (before, at - then)), jobs })
    }

    /// Whether that was the last one.
    fn was_last(&mut self) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }

    /// One line a look. The first failure ends it: nobody sits in front of it.
    async fn lines(&mut self, line: impl Fn(&Look) -> String, out: Out) -> Result<(), CliError> {
        loop {
            let look = self.look().await?;
            out.text(&line(&look))?;
            if self.was_last() {
                return Ok(());
            }
            tokio::time::sleep(self.interval).await;
        }
    }

    /// One page a look, until the reader has seen enough.
    async fn pages(&mut self, mut terminal: Terminal) -> Result<(), CliError> {
        loop {
            let shown = tokio::select! {
                shown = self.look() => shown,
                () = terminal.quit() => return Ok(()),
            };
            let next = Instant::now() + self.interval;
            loop {
                terminal.draw(|width, height| match &shown {
                    Ok(look) => page::page(look, width, height),
                    Err(error) => page::unreachable(error, width, height),
                })?;
                match terminal.event(next).await {
                    Event::Quit => return Ok(()),
                    Event::Resized => {}
                    Event::Due => break,
                }
            }
            if self.was_last() {
                return Ok(());
            }
        }
    }
}
