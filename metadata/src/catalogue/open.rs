//! Opening a catalogue: opens the stores, replays the log, writes the first rows, resumes interrupted sagas
//! and starts the background jobs.
//!
//! Layout: `log/` is the node's log store; `group-N/` holds the state of group N. A member with peers opens
//! the groups that it has, and creates nothing but an empty member of the system group, which the leader
//! fills.

use super::allotments::{self, Allotments};
use super::checkpoints::Checkpoints;
use super::copies;
use super::groups::{Groups, SYSTEM_GROUP};
use super::heartbeats;
use super::inner::CatalogueInner;
use super::jobs;
use super::known_comparisons::RowComparisons;
use super::known_usage::UsageElsewhere;
use super::leader_work;
use super::log_bound::LogBound;
use super::opener::GroupOpener;
use super::options::{CatalogueOptions, CheckpointOptions, OpenError, ProposeError};
use super::reader_nodes::ReaderQuestions;
use super::resident::Resident;
use crate::durability::Durability;
use crate::identity::{ExpectedServer, StateFacts, StatesByGroup, judge, judge_fit};
use crate::raft::heartbeats::Heartbeats;
use crate::store::behind;
use crate::store::floor::Floor;
use crate::store::group_dirs::{group_dir, stored_groups};
use crate::store::log::LogStore;
use crate::store::log_facts::LogFacts;
use crate::store::options::Cache;
use crate::store::saved_log::SavedLog;
use crate::store::state::StateStore;
use crate::store::{links, options, wal};
use crate::store_error::StoreError;
use mlgw_common::limits::MEMTABLE_BYTES_MIN;
use mlgw_common::{Lineage, NodeId};
use mlgw_formats::command::{BeginIncarnation, Change, Command, PutNode, PutPartition};
use mlgw_formats::schema::Node;
use mlgw_formats::schema::meta::Timeline;
use mlgw_formats::store_files;
use parking_lot::Mutex as SyncMutex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Divisor of the file system's size that bounds the log before it is purged: 8 MiB on a file system of 256
/// MiB.
const LOG_DISK_SHARE: u64 = 32;

/// Divisor of the cache memory that gives the object cache's share; the rest caches table blocks. The block
/// cache holds two or three times as many objects in the same memory, but a lookup in a block costs ten times
/// as much.
const OBJECTS_SHARE: usize = 4;

/// Minimum number of body and segment ids that a new timeline skips: more than a server allocates in years. A
/// random number is added, so that timelines restored from the same copy do not collide either.
const SKIPPED_IDS_MIN: u64 = 1 << 32;

pub(super) async fn open(options: CatalogueOptions) -> Result<Arc<CatalogueInner>, OpenError> {
    let dir = &options.dir;
    let io = |source| OpenError::Directory { path: dir.clone(), source };
    store_files::make_dir(dir).map_err(io)?;
    let disk_bytes = store_files::file_system_bytes(dir).map_err(io)?;
    let log_bytes_max = options.log_bytes_max.min(disk_bytes / LOG_DISK_SHARE);
    let objects_bytes = options.cache_bytes / OBJECTS_SHARE;
    let cache = options::cache(options.cache_bytes - objects_bytes);
    let durability = options.durability;
    let fatal = Arc::clone(&options.fatal);
    check_parts(dir)?;
    prepare_dir(&options).map_err(io)?;
    let ids = groups_to_open(&options);
    let memtable_bytes = (options.memtable_bytes / ids.len()).max(MEMTABLE_BYTES_MIN);
    let states = open_states(dir, &ids, &cache, memtable_bytes).map_err(store)?;
    check_fit(&options, &states)?;
    let writer = options.expected.as_ref().map(|expected| expected.lineage.own.incarnation);
    let log = LogStore::open(&dir.join("log"), &cache, durability, writer, move |why| fatal(why));
    let log = log.map_err(store)?;
    if durability == Durability::Full {
        log.start_synced_count(&log.facts().map_err(store)?);
    }
    let resident = Arc::new(Resident::new(options.node, options.cluster_version, objects_bytes));
    let opener = opener(&options, cache, memtable_bytes, &log, &resident);
    let groups = open_groups(&opener, states).await.map_err(|error| OpenError::Raft(error.0))?;
    let inner = Arc::new(CatalogueInner {
        groups,
        opener,
        log,
        resident,
        clock: options.clock,
        lease_reads: options.lease_reads,
        readers: ReaderQuestions::default(),
        usage_elsewhere: UsageElsewhere::default(),
        row_comparisons: RowComparisons::default(),
        fatal: options.fatal,
        log_bound: Arc::new(LogBound::new(log_bytes_max)),
        checkpoints: Checkpoints::new(options.checkpoints.clone()),
        copying: Mutex::default(),
        saga: Mutex::new(()),
        allotments: Allotments::default(),
        bodies: SyncMutex::new(0..0),
        leasing: Mutex::new(()),
        stop: Arc::default(),
        jobs: SyncMutex::default(),
    });
    if inner.groups.system().is_alone() {
        write_initial_rows(&inner, options.node, options.partitions).await.map_err(propose)?;
    }
    if let Some(ExpectedServer { lineage, .. }) = options.expected {
        mark(&inner, &lineage).await?;
        if durability == Durability::Full {
            // The floor is written again at the first raise in any case: an existing file may be of another
            // timeline.
            let floor = Floor::new(&options.dir, lineage.own.incarnation, 0);
            let job = jobs::raise_floor(Arc::downgrade(&inner), Arc::clone(&inner.stop), floor);
            inner.jobs.lock().push(tokio::spawn(job));
        }
    }
    // Members with peers leave this to the leader of the system group.
    if inner.groups.are_alone() {
        inner.resume_sagas().await.map_err(propose)?;
        inner.resume_quotas().await.map_err(propose)?;
    }
    inner.log_bound.purging_began();
    start_jobs(&inner, options.tombstone_check, options.checkpoints);
    Ok(inner)
}

/// Makes what is there before any group.
fn prepare_dir(options: &CatalogueOptions) -> io::Result<()> {
    let dir = &options.dir;
    // A node that joins gets an empty member of the system group.
    if options.peers.is_some() && !stored_groups(dir).contains(&SYSTEM_GROUP) {
        behind::record(dir, SYSTEM_GROUP)?;
    }
    // A missing log directory later means that the log was lost.
    store_files::make_dir(&dir.join("log"))
}

/// Ids of the groups to open: those that are there, and always the system group. A server without peers
/// creates those of its setting. The ids may have gaps: a node of a cluster has some groups only, and so may
/// the server that it becomes.
fn groups_to_open(options: &CatalogueOptions) -> BTreeSet<u32> {
    let mut ids: BTreeSet<u32> = stored_groups(&options.dir).into_iter().collect();
    ids.insert(SYSTEM_GROUP);
    if options.peers.is_none() {
        ids.extend(0..options.groups);
    }
    ids
}

/// States by group.
type States = Vec<(u32, StateStore)>;

/// Opens the state of each group, and creates those of new groups.
fn open_states(
    dir: &Path,
    ids: &BTreeSet<u32>,
    cache: &Cache,
    memtable_bytes: usize,
) -> Result<States, StoreError> {
    let open = |id: &u32| Ok((*id, StateStore::open(&group_dir(dir, *id), cache, memtable_bytes)?));
    ids.iter().map(open).collect()
}

fn opener(
    options: &CatalogueOptions,
    cache: Cache,
    memtable_bytes: usize,
    log: &LogStore,
    resident: &Arc<Resident>,
) -> GroupOpener {
    GroupOpener {
        dir: options.dir.clone(),
        cache,
        memtable_bytes,
        node: options.node.get(),
        log: log.clone(),
        resident: Arc::clone(resident),
        cluster_version: options.cluster_version,
        fatal: Arc::clone(&options.fatal),
        peers: options.peers.clone(),
        heartbeats: options.peers.clone().map(|peers| Arc::new(Heartbeats::new(peers))),
        digest_pace: Arc::default(),
        creating: Mutex::default(),
    }
}

/// Opens the groups. Each one applies its log before it is returned.
async fn open_groups(opener: &GroupOpener, states: States) -> Result<Groups, StoreError> {
    let mut groups = Vec::new();
    for (id, store) in states {
        groups.push(opener.open(id, store).await?);
    }
    Groups::new(groups)
}

/// Refuses to open a catalogue whose log or state directory is missing: creating an empty one would hide the
/// loss.
fn check_parts(dir: &Path) -> Result<(), OpenError> {
    let lost = |part: &str| {
        Err(OpenError::Store(format!("{} has no {part}; run `mlgw store check`", dir.display())))
    };
    // The log is created before any group, and a group before the log has any entry.
    let stored = stored_groups(dir);
    if !stored.is_empty() && !dir.join("log").is_dir() {
        return lost("log");
    }
    if !stored.contains(&SYSTEM_GROUP) && has_entries(&dir.join("log")) {
        return lost("state");
    }
    Ok(())
}

/// Starts the jobs that run until the catalogue is shut down.
fn start_jobs(
    inner: &Arc<CatalogueInner>,
    tombstone_check: Duration,
    checkpoints: Option<CheckpointOptions>,
) {
    let shared = Arc::downgrade(inner);
    let mut running = inner.jobs.lock();
    running.push(tokio::spawn(jobs::release_bodies(shared.clone())));
    running.push(tokio::spawn(jobs::purge_logs(shared.clone())));
    running.push(tokio::spawn(allotments::keep_divided(shared.clone(), Arc::clone(&inner.stop))));
    running.push(tokio::spawn(jobs::flush_tombstones(shared.clone(), tombstone_check)));
    if let Some(heartbeats) = &inner.opener.heartbeats {
        let (stop, heartbeats) = (Arc::clone(&inner.stop), Arc::clone(heartbeats));
        running.push(tokio::spawn(heartbeats::send_heartbeats(shared.clone(), stop, heartbeats)));
        running.push(tokio::spawn(leader_work::run(shared.clone(), Arc::clone(&inner.stop))));
    }
    if let Some(checkpoints) = checkpoints {
        let job = copies::make_checkpoints(shared, Arc::clone(&inner.stop), checkpoints);
        running.push(tokio::spawn(job));
    }
}

/// Refuses a log or states that are not this server's, or that do not fit each other. Runs before anything is
/// applied and before the log is opened: opening the log removes tables that it no longer names, and a repair
/// may need them.
fn check_fit(options: &CatalogueOptions, states: &[(u32, StateStore)]) -> Result<(), OpenError> {
    let (dir, durability) = (&options.dir, options.durability);
    let log_dir = dir.join("log");
    // A first start has no log yet, or a crash interrupted its creation.
    let log = match log_dir.join("CURRENT").exists() {
        true => SavedLog::open(&log_dir).and_then(|log| log.facts()).map_err(store)?,
        false => LogFacts::default(),
    };
    let facts = state_facts(states, options.node).map_err(store)?;
    let checked = match &options.expected {
        Some(expected) => judge(expected, &log, &facts, durability),
        None => judge_fit(&log, &facts, durability),
    };
    let Err(source) = checked else { return Ok(()) };
    // Damage in the write-ahead log itself is reported by opening it, which names the position.
    let is_damaged = || wal::first_bad(&log_dir).is_ok_and(|bad| bad.is_some_and(|bad| bad.damage.is_some()));
    if durability == Durability::Full && is_damaged() {
        return Ok(());
    }
    Err(OpenError::Mismatch { path: dir.to_owned(), source })
}

/// Facts of the states, by group.
fn state_facts(states: &[(u32, StateStore)], node: NodeId) -> Result<StatesByGroup, StoreError> {
    let facts =
        |(id, state): &(u32, StateStore)| Ok((*id, StateFacts::read(&state.current())?.seen_by(node)));
    states.iter().map(facts).collect()
}

/// Writes this server's timeline into log and state, durably. A member with peers finds the timeline in the
/// rows that it receives.
async fn mark(inner: &CatalogueInner, lineage: &Lineage) -> Result<(), OpenError> {
    let system = inner.groups.system();
    if system.is_alone() {
        begin_incarnation(inner, lineage).await?;
    }
    if inner.log.facts().map_err(store)?.identity != Some(lineage.own) {
        inner.log.put_identity(&lineage.own).map_err(store)?;
    }
    if lineage.marking { system.state().flush().map_err(store) } else { Ok(()) }
}

/// Writes this server's timeline into the state. The first start of a timeline that descends from another
/// skips the ids that the other one may have allocated since.
async fn begin_incarnation(inner: &CatalogueInner, lineage: &Lineage) -> Result<(), OpenError> {
    let own = Timeline { cluster: lineage.own.cluster.0, incarnation: lineage.own.incarnation.0 };
    let found = StateFacts::read(&inner.groups.system().state()).map_err(store)?.timeline;
    if found == Some(own) {
        return Ok(());
    }
    let descends = found.is_some() || !lineage.earlier.is_empty();
    let skipped_ids = if descends { SKIPPED_IDS_MIN + u64::from(own.incarnation as u32) } else { 0 };
    let Timeline { cluster, incarnation } = own;
    let begin = Change::BeginIncarnation(BeginIncarnation { cluster, incarnation, skipped_ids });
    inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(begin))).await.map(drop).map_err(propose)
}

fn store(error: StoreError) -> OpenError {
    OpenError::Store(error.0)
}

fn propose(error: ProposeError) -> OpenError {
    OpenError::Raft(error.to_string())
}

/// True if the log has any entry. An unreadable log counts as one that has.
fn has_entries(log: &Path) -> bool {
    let mut files = std::fs::read_dir(log).into_iter().flatten().flatten();
    let is_table = |entry: std::fs::DirEntry| links::is_table(&entry.file_name().to_string_lossy());
    log.is_dir() && (files.any(is_table) || wal::has_entries(log).unwrap_or(true))
}

/// Proposes the initial rows of a new catalogue. The partition at the very beginning is written last and
/// marks the set as complete. After a crash the rows are proposed again.
async fn write_initial_rows(
    inner: &CatalogueInner,
    node: NodeId,
    partitions: Vec<(u64, Vec<u8>, u32)>,
) -> Result<(), ProposeError> {
    if inner.resident.is_partitioned() {
        return Ok(());
    }
    let node = Node { id: node.get(), joined_ms: inner.clock.now().as_millis(), ..Node::default() };
    let mut rows = vec![Change::PutNode(PutNode { node })];
    rows.extend(
        partitions
            .into_iter()
            .chain([(0, Vec::new(), 0)])
            .map(|(bucket_id, key, group)| Change::PutPartition(PutPartition { bucket_id, key, group })),
    );
    for change in rows {
        inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(change))).await?;
    }
    Ok(())
}
