//! The command `mlgw tier …`.

use super::client::Client;
use super::output::{Out, columns, pairs};
use super::progress::CommandProgress;
use super::server_name::ServerName;
use super::{CliError, Global, discover, path_segment};
use clap::Subcommand;
use http::Method;
use mlgw_api::{BadRange, CompactRequest, CompactionInfo, MovesInfo, TierDetail, TierInfo, TierList};
use mlgw_common::ByteSize;
use std::time::Duration;

/// Interval between requests for the state of awaited work.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

const COMPACTION: &str = "/v1/tiers/hot/compaction";

#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// List all tiers.
    List,
    /// Show a tier: its usage, the progress of its scrub, and damage.
    Show {
        /// Name of the tier.
        #[arg(add = ServerName::Tier)]
        tier: String,
    },
    /// Read all data of a tier from the disk and verify it.
    Scrub {
        /// Name of the tier.
        #[arg(add = ServerName::Tier)]
        tier: String,
        /// Wait for the end of the pass. Exit status 1 if damage is found.
        #[arg(long)]
        wait: bool,
    },
    /// Move all data out of a tier, as before its disk is removed: hot to the next lower tier, cold or
    /// upstream to hot.
    Drain {
        /// Name of the tier.
        #[arg(add = ServerName::Tier)]
        tier: String,
        /// Wait for the end. Exit status 1 if a segment could not be moved.
        #[arg(long)]
        wait: bool,
    },
    /// Reclaim the space of deleted data now: release dead segments, and compact those with enough dead bytes
    /// after moving their live data.
    Compact {
        /// Percentage of a segment's bytes that must be dead. Default: the server's setting.
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
        dead_percent: Option<u64>,
        /// Wait for the end.
        #[arg(long)]
        wait: bool,
    },
}

pub(super) async fn run(command: TierCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        TierCommand::List => out.document(&client.get::<TierList>("/v1/tiers").await?, list),
        TierCommand::Show { tier } => out.document(&client.get::<TierDetail>(&path(&tier)).await?, show),
        TierCommand::Scrub { tier, wait } => {
            let begin = format!("{}/scrub", path(&tier));
            let begun: TierDetail = client.call(Method::POST, &begin, None::<&()>).await?;
            if wait {
                return scrub(&client, &tier, begun, out).await;
            }
            let next = format!("Started a scrub of {tier}; see its progress with `mlgw tier show {tier}`.");
            out.done(&begun, &next)
        }
        TierCommand::Drain { tier, wait } => {
            let begun: MovesInfo =
                client.call(Method::POST, &format!("{}/drain", path(&tier)), None::<&()>).await?;
            if wait {
                return drain(&client, &tier, begun, out).await;
            }
            out.done(&begun, &format!("Started to drain {tier}; see the rest with `mlgw tier list`."))
        }
        TierCommand::Compact { dead_percent, wait } => {
            let request = CompactRequest { dead_percent };
            let begun: CompactionInfo = client.call(Method::POST, COMPACTION, Some(&request)).await?;
            if wait {
                return compact(&client, begun, out).await;
            }
            out.done(&begun, "Started a compaction; see the remaining garbage with `mlgw status`.")
        }
    }
}

/// Waits for the end of a scrub.
async fn scrub(client: &Client, tier: &str, mut found: TierDetail, out: Out) -> Result<(), CliError> {
    let progress = CommandProgress::new(out.quiet);
    while let Some(scrub) = found.scrub.as_ref().filter(|scrub| scrub.running) {
        progress.step("scrubbing", scrub.read_bytes, scrub.total_bytes);
        mlgw_common::time::sleep(POLL_INTERVAL).await;
        found = client.get(&path(tier)).await?;
    }
    progress.done();
    out.document(&found, show)?;
    match found.bad.len() {
        0 => Ok(()),
        count => Err(CliError::Failed(format!(
            "{tier} has bad blocks ({count}): reads of these bytes fail; restore the objects from a copy, \
             or delete them"
        ))),
    }
}

/// Waits for the end of a drain.
async fn drain(client: &Client, tier: &str, before: MovesInfo, out: Out) -> Result<(), CliError> {
    let drain = format!("{}/drain", path(tier));
    let progress = CommandProgress::new(out.quiet);
    let mut now = before.clone();
    while now.orders_done < before.until_orders.unwrap_or(0) {
        let moved = moved_bytes(&now) - moved_bytes(&before);
        progress.step("moving", moved, moved + now.waiting_bytes);
        mlgw_common::time::sleep(POLL_INTERVAL).await;
        now = client.get(&drain).await?;
    }
    progress.done();
    out.document(&now, |now| drained(&before, now))?;
    match now.failed - before.failed {
        0 => Ok(()),
        failed => Err(CliError::Failed(format!(
            "{failed} segments could not be moved and remain where they were; the server's log has the \
             reasons"
        ))),
    }
}

fn moved_bytes(moves: &MovesInfo) -> u64 {
    moves.spilled_bytes + moves.promoted_bytes
}

fn drained(before: &MovesInfo, after: &MovesInfo) -> String {
    pairs(&[
        ("moved", ByteSize(moved_bytes(after) - moved_bytes(before)).human()),
        ("draining", format!("{} segments, in use by a backup", after.draining_segments)),
    ])
}

/// Waits for the end of a compaction.
async fn compact(client: &Client, before: CompactionInfo, out: Out) -> Result<(), CliError> {
    let progress = CommandProgress::new(out.quiet);
    let mut now = before.clone();
    while now.rounds < before.until_rounds.unwrap_or(0) {
        // Progress relative to the garbage that was known at the beginning.
        let freed = now.freed_bytes.saturating_sub(before.freed_bytes);
        progress.step("freeing", freed.min(before.garbage_bytes), before.garbage_bytes);
        mlgw_common::time::sleep(POLL_INTERVAL).await;
        now = client.get(COMPACTION).await?;
    }
    progress.done();
    out.document(&now, |now| compacted(&before, now))
}

fn bad_blocks(count: usize) -> String {
    if count == 1 { "1 block of an object".to_owned() } else { format!("{count} blocks of objects") }
}

fn path(tier: &str) -> String {
    format!("/v1/tiers/{}", path_segment(tier))
}

fn list(list: &TierList) -> String {
    let row = |tier: &TierInfo| {
        vec![
            tier.tier.to_string(),
            ByteSize(tier.used_bytes).human(),
            capacity(tier),
            tier.segments.to_string(),
            tier.bad_blocks.to_string(),
        ]
    };
    let rows: Vec<_> = list.tiers.iter().map(row).collect();
    columns(&["TIER", "USED", "CAPACITY", "SEGMENTS", "BAD BLOCKS"], &rows)
}

/// Formats the capacity of a tier. That of an upstream is unknown.
fn capacity(tier: &TierInfo) -> String {
    if tier.capacity_bytes == 0 { "-".to_owned() } else { ByteSize(tier.capacity_bytes).human() }
}

fn show(tier: &TierDetail) -> String {
    let Some(scrub) = &tier.scrub else {
        return if tier.hits.is_some() { show_copies(tier) } else { show_remote(tier) };
    };
    let state = if scrub.running {
        let (read, total) = (ByteSize(scrub.read_bytes).human(), ByteSize(scrub.total_bytes).human());
        format!("pass started {}: {read} of {total} read", scrub.began)
    } else {
        match &scrub.ended {
            Some(ended) => format!("pass {} ended {ended}", scrub.passes),
            None => "no completed pass; start one with `mlgw tier scrub`".to_owned(),
        }
    };
    let (used, capacity) =
        (ByteSize(tier.info.used_bytes).human(), ByteSize(tier.info.capacity_bytes).human());
    let head = pairs(&[
        ("tier", tier.info.tier.to_string()),
        ("used", format!("{used} of {capacity}, {} segments", tier.info.segments)),
        ("scrub", state),
        ("bad", if tier.bad.is_empty() { "none".to_owned() } else { bad_blocks(tier.bad.len()) }),
    ]);
    if tier.bad.is_empty() {
        return head;
    }
    let row = |bad: &BadRange| {
        let part = bad.part.map_or_else(String::new, |part| part.to_string());
        let object = format!("s3://{}/{}", bad.bucket, bad.key);
        vec![
            object,
            part,
            format!("{}-{}", bad.first, bad.last),
            format!("{} at {}", bad.segment, bad.offset),
            bad.what.clone(),
        ]
    };
    let rows: Vec<_> = tier.bad.iter().map(row).collect();
    head + "\n" + &columns(&["OBJECT", "PART", "BYTES", "SEGMENT", "DAMAGE"], &rows)
}

/// Formats the remote tier.
fn show_remote(tier: &TierDetail) -> String {
    let used = ByteSize(tier.info.used_bytes).human();
    pairs(&[
        ("tier", tier.info.tier.to_string()),
        ("used", format!("{used}, {} segments; see `mlgw upstream list`", tier.info.segments)),
    ])
}

/// Formats a tier of copies.
fn show_copies(tier: &TierDetail) -> String {
    let (used, capacity) =
        (ByteSize(tier.info.used_bytes).human(), ByteSize(tier.info.capacity_bytes).human());
    let (hits, misses) = (tier.hits.unwrap_or(0), tier.misses.unwrap_or(0));
    let percent = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
    pairs(&[
        ("tier", tier.info.tier.to_string()),
        ("used", format!("{used} of {capacity}, copies only")),
        ("reads", format!("{hits} hits of {}: {percent:.1} %", hits + misses)),
    ])
}

fn compacted(before: &CompactionInfo, after: &CompactionInfo) -> String {
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
