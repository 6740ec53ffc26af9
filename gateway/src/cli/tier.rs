//! `mlgw tier …`

use super::client::Client;
use super::output::{Out, pairs};
use super::{CliError, Global, discover};
use crate::admin::{CompactRequest, CompactionInfo};
use crate::config::ByteSize;
use clap::Subcommand;
use http::Method;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often a round that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(500);

const COMPACTION: &str = "/v1/tiers/hot/compaction";

#[derive(Debug, Subcommand)]
pub(super) enum TierCommand {
    /// Give back the space of what is gone, now: whole segments that are dead, and those that are dead
    /// enough, after what lives in them was moved.
    Compact {
        /// Percent of a segment's bytes that must be dead; the server's setting when not given.
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
        dead_percent: Option<u64>,
        /// Wait until it is done.
        #[arg(long)]
        wait: bool,
    },
}

pub(super) async fn run(command: TierCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        TierCommand::Compact { dead_percent, wait } => {
            let asked: CompactionInfo =
                client.call(Method::POST, COMPACTION, Some(&CompactRequest { dead_percent })).await?;
            if !wait {
                return out.done(&asked, "Compaction was asked for; `mlgw status` shows what is left.");
            }
            let done = wait_for(&client, &asked, out).await?;
            out.document(&done, |done| show(&asked, done))
        }
    }
}

/// Looks until the round has ended, and says on a terminal how far it is.
async fn wait_for(client: &Client, asked: &CompactionInfo, out: Out) -> Result<CompactionInfo, CliError> {
    let begun = Instant::now();
    let until = asked.until_rounds.unwrap_or(0);
    let shows = !out.quiet && std::io::stderr().is_terminal();
    loop {
        let now: CompactionInfo = client.get(COMPACTION).await?;
        if shows {
            let moved = now.moved_bytes.saturating_sub(asked.moved_bytes);
            let rate = moved as f64 / begun.elapsed().as_secs_f64().max(0.1);
            let line = format!(
                "{} moved, {} freed, {}/s",
                ByteSize(moved).human(),
                ByteSize(now.freed_bytes.saturating_sub(asked.freed_bytes)).human(),
                ByteSize(rate as u64).human()
            );
            // Progress that cannot be shown is not missed.
            drop(write!(std::io::stderr(), "\r\x1b[K{line}"));
        }
        if now.rounds >= until {
            if shows {
                drop(writeln!(std::io::stderr()));
            }
            return Ok(now);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn show(before: &CompactionInfo, after: &CompactionInfo) -> String {
    let grown = |after: u64, before: u64| ByteSize(after.saturating_sub(before)).human();
    pairs(&[
        ("moved", grown(after.moved_bytes, before.moved_bytes)),
        ("freed", grown(after.freed_bytes, before.freed_bytes)),
        ("segments", format!("{} released", after.freed_segments.saturating_sub(before.freed_segments))),
        ("garbage", format!("{} left", ByteSize(after.garbage_bytes).human())),
        ("held back", format!("{} segments, damaged", after.held_back_segments)),
        ("draining", format!("{} segments, being read", after.draining_segments)),
    ])
}
