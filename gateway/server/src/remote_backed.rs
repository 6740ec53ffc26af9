//! The parts of a start that concern other object stores: upstreams, remote-backed buckets and write-back.
//!
//! No request is sent to another store before the queues of dirty writes are open, which the catalogue
//! restores after a power loss.

use super::ServeError;
use super::error::io_error;
use super::files::FileBudget;
use mlgw_background::writeback::{Sender, SenderContext};
use mlgw_cache::copies::{Copies, CopiesOptions};
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::remote_backed::{Freshness, RemoteBackedBuckets};
use mlgw_cache::writeback::{WriteBack, WriteBackParts};
use mlgw_common::{Clock, Lineage, SystemClock};
use mlgw_config::{Config, MachineSizes};
use mlgw_remote::origin::s3::S3Origin;
use mlgw_remote::origin::{FencedOrigin, Origin, OriginFence};
use mlgw_remote::upstream::{Upstream, UpstreamKind, UpstreamSettings};
use mlgw_segments::decisions::Decisions;
use mlgw_segments::hot::Upstreams;
use mlgw_segments::tiers::Tiers;
use mlgw_store::data_dir::DataDir;
use std::collections::HashMap;
use std::sync::Arc;

/// Opens the clients of other object stores. No request is sent yet.
pub(super) fn upstreams(config: &Config, dir: &DataDir) -> Result<Upstreams, ServeError> {
    let open = |settings: &UpstreamSettings| {
        let upstream = Upstream::open(settings).map_err(|error| ServeError::Upstream(error.to_string()))?;
        let owned = upstream.owned_by(dir.lineage());
        let owned =
            owned.map_err(|error| ServeError::Upstream(format!("cannot read random bytes: {error}")))?;
        Ok((settings.name.clone(), owned))
    };
    Ok(Arc::new(config.upstreams.iter().map(open).collect::<Result<_, ServeError>>()?))
}

/// Parts of the engine that remote-backed buckets use.
pub(super) struct RemoteBackedParts<'a> {
    pub(super) machine: &'a MachineSizes,
    pub(super) files: FileBudget,
    pub(super) tiers: &'a Tiers,
    pub(super) upstreams: &'a Upstreams,
    pub(super) decisions: &'a Decisions,
    pub(super) policy_driver: &'a PolicyDriver,
}

/// Opens the origins of remote-backed buckets and the copies of their objects. Returns an empty value if no
/// upstream is configured. In a cluster the origins are behind the fence of a term of duty, and the copies
/// are those of an earlier term of this process, if there was one.
pub(super) async fn open_remote_backed(
    config: &Config,
    lineage: Lineage,
    parts: RemoteBackedParts<'_>,
    fence: Option<&OriginFence>,
    copies: &mut Option<Copies>,
) -> Result<RemoteBackedBuckets, ServeError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let origins = open_origins(config, parts.upstreams, &clock, fence)?;
    if origins.is_empty() {
        return Ok(RemoteBackedBuckets::default());
    }
    let (machine, policy_driver) = (parts.machine, parts.policy_driver);
    let copies = match copies {
        Some(open) => open.clone(),
        None => {
            let opened = open_copies(config, lineage, &parts, &clock).await?;
            policy_driver.start(&opened);
            copies.insert(opened).clone()
        }
    };
    let remote_backed =
        RemoteBackedBuckets::new(origins, copies, Some(policy_driver.clone()), freshness_of(config), clock);
    if let Some(fence) = fence {
        remote_backed.set_fence(fence.clone());
    }
    remote_backed.limit_fetches(config.fetch_blocks_max(machine));
    Ok(remote_backed)
}

/// Opens the clients of the origins, by upstream name.
fn open_origins(
    config: &Config,
    upstreams: &Upstreams,
    clock: &Arc<dyn Clock>,
    fence: Option<&OriginFence>,
) -> Result<HashMap<String, Arc<dyn Origin>>, ServeError> {
    let mut origins = HashMap::new();
    for settings in config.upstreams.iter().filter(|upstream| upstream.kind == UpstreamKind::S3) {
        // All users of a store share its budget.
        let budget = upstreams.get(&settings.name).map(Upstream::budget).unwrap_or_default();
        let origin = S3Origin::new(settings, budget, clock.clone(), fence).map_err(ServeError::Upstream)?;
        let origin: Arc<dyn Origin> = match fence {
            Some(fence) => Arc::new(FencedOrigin::new(Arc::new(origin), fence.clone())),
            None => Arc::new(origin),
        };
        origins.insert(settings.name.clone(), origin);
    }
    Ok(origins)
}

/// Opens the clean copies of a node.
async fn open_copies(
    config: &Config,
    lineage: Lineage,
    parts: &RemoteBackedParts<'_>,
    clock: &Arc<dyn Clock>,
) -> Result<Copies, ServeError> {
    let RemoteBackedParts { machine, files, tiers, decisions, policy_driver, .. } = parts;
    let options = CopiesOptions {
        dir: config.copies_dir(),
        lineage,
        capacity_bytes: config.copies_capacity_bytes(machine),
        // Copies never take the room that the hot tier needs.
        reserve_bytes: 2 * config.hot_reserve_bytes(machine),
        memory_bytes: usize::try_from(config.catalogue_cache_bytes(machine) / 2).unwrap_or(usize::MAX),
        clock: clock.clone(),
        decisions: (*decisions).clone(),
        // Copies and the hot tier are usually on the same disk.
        queues: tiers.hot.queues().clone(),
        flash: tiers.hot.flash().clone(),
        open_files_max: files.segment_files,
        listener: Some(policy_driver.lost_block_listener()),
    };
    Ok(Copies::open(options, tiers.memory.clone()).await?)
}

/// Returns the time for which answers of origins stay valid.
pub(super) fn freshness_of(config: &Config) -> Freshness {
    Freshness {
        positive: config.bound.ttl,
        negative: config.bound.negative_ttl,
        stale: config.bound.stale_max,
    }
}

/// Returns the budget of write-back in bytes per second, by upstream.
pub(super) fn persist_budgets(config: &Config) -> HashMap<String, u64> {
    config.upstreams.iter().map(|of| (of.name.clone(), of.persist_bytes_per_second)).collect()
}

/// Opens the queues of dirty writes and starts the task that sends them to the origins.
pub(super) fn start_write_back(
    parts: WriteBackParts,
    tiers: &Tiers,
    decisions: &Decisions,
) -> Result<(WriteBack, Sender), ServeError> {
    let catalogue = parts.catalogue.clone();
    let (writeback, new_queues) = WriteBack::open(parts).map_err(write_back_error)?;
    let (tiers, decisions) = (tiers.clone(), decisions.clone());
    let context = SenderContext { writeback: writeback.clone(), catalogue, tiers, decisions };
    Ok((writeback, Sender::start(context, new_queues)))
}

/// Opens the queues of dirty writes of a recovered server, and sends nothing.
pub(super) fn write_back_stopped(parts: WriteBackParts) -> Result<WriteBack, ServeError> {
    let (writeback, _) = WriteBack::open(parts).map_err(write_back_error)?;
    Ok(writeback)
}

/// Returns the write-back of a node that forwards requests for remote-backed buckets. It sends nothing.
pub(super) fn write_back_elsewhere(parts: WriteBackParts) -> Result<WriteBack, ServeError> {
    WriteBack::elsewhere(parts).map_err(write_back_error)
}

fn write_back_error(error: mlgw_metadata::ReadError) -> ServeError {
    io_error("write-back records")(std::io::Error::other(error))
}
