//! The server: start, reload and shutdown.
//!
//! Parts start in the order of their dependencies and stop in the reverse order. Listeners open last, so the
//! first answer already includes everything that was acknowledged before the restart. After SIGTERM or SIGINT
//! `/readyz` reports the stop, the server accepts requests for the shutdown delay, then it stops accepting,
//! requests in flight are answered, all data is synced, and the process exits with 0. A further signal ends
//! the delay, and another one the wait for requests. SIGHUP reloads the settings that can change while the
//! server runs. A storage node of a cluster that waits for a majority of the voters listens meanwhile, and
//! refuses what it cannot forward. A process that is killed loses no acknowledged write, because the next
//! start replays the log.
//!
//! The data directory decides what starts: a server without peers, a storage node of a cluster, or a gateway,
//! which has no objects. The first two have the same engine. A server without peers and the duty node of a
//! cluster run jobs, rules and write-back over it, and have the whole admin API.

mod admin_calls;
mod banner;
mod bring_up;
mod duty;
mod edge;
mod error;
pub mod files;
mod forwarded;
mod gateway_node;
mod huge_pages;
mod listeners;
pub mod logging;
mod member;
pub mod notify;
mod object_keys;
mod reload;
mod remote_backed;
mod running;
mod running_member;
mod segment_store;
mod shared_settings;
mod signals;
mod start;
mod stopping;
mod telemetry;
mod waiting;

pub use error::ServeError;

use bring_up::{ServerEngine, open_catalogue};
use error::io_error;
use files::FileBudget;
use gateway_node::GatewayNode;
use logging::LogControl;
use mlgw_common::SystemClock;
use mlgw_config::{ConfigSources, LoadedConfig, SettingOrigin};
use mlgw_node::ClusterNode;
use mlgw_segments::hot::HotOpenError;
use running::RunningServer;
use running_member::RunningMember;
use signals::{SignalAction, Signals};
use start::{ClusterPart, StartResources};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use stopping::{StopReason, until_superseded};
use tokio_util::task::AbortOnDropHandle;
use waiting::{WaitingParts, listen_until};

/// The setting that names the upstream of segments.
const UPSTREAM_SETTING: &str = "cold.upstream";

/// Time that the exit waits for threads that wait for a disk, after all parts are closed.
const THREADS_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until a signal ends the server. `sources` are read again on SIGHUP.
///
/// # Errors
/// When the server does not start.
pub fn run(loaded: LoadedConfig, sources: ConfigSources) -> Result<(), ServeError> {
    let config = &loaded.config;
    let log = logging::start(config.log.format, config.log.level)
        .map_err(|error| io_error("starting the log")(io::Error::other(error)))?;
    huge_pages::turn_off();
    let files = FileBudget::of_process(config.limits.connections)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("mlgw").enable_all().build();
    let runtime = runtime.map_err(io_error("starting the runtime"))?;
    let served = runtime.block_on(serve(loaded, sources, log, files));
    // A thread that waits for a disk that never answers is abandoned.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    served
}

async fn serve(
    loaded: LoadedConfig,
    sources: ConfigSources,
    log: LogControl,
    files: FileBudget,
) -> Result<(), ServeError> {
    let mut signals = Signals::install().map_err(io_error("signals"))?;
    let node = tokio::select! {
        node = OpenNode::open(&loaded, files) => node?,
        // No request is served yet, so a start can be interrupted at any point without loss.
        () = signals.stop() => return Ok(()),
    };
    let running = match node.start(loaded).await {
        Ok(running) => running,
        Err(error) => {
            node.close().await;
            return Err(error);
        }
    };
    notify::notify(notify::ServiceState::Ready);
    let _report = AbortOnDropHandle::new(tokio::spawn(log.clone().report_left_out()));
    let superseded = node.cluster().cloned();
    let reason = loop {
        tokio::select! {
            action = signals.next() => match action {
                SignalAction::Reload => running.reload(&sources, &log),
                SignalAction::Stop => break StopReason::Signal,
            },
            () = until_superseded(superseded.as_ref()) => break StopReason::Superseded,
            () = running.until_broken() => break StopReason::Broken,
        }
    };
    notify::notify(notify::ServiceState::Stopping);
    running.drain(reason, &mut signals).await;
    node.close().await;
    match reason {
        StopReason::Signal => Ok(()),
        StopReason::Superseded => Err(ServeError::Superseded),
        StopReason::Broken => Err(ServeError::DutyEnded),
    }
}

/// Opens a server with objects. A node of a cluster waits until its rows are current.
async fn open_storage(loaded: &LoadedConfig, start: StartResources) -> Result<ServerEngine, ServeError> {
    let opened = open_catalogue(&loaded.config, &start).await?;
    if let Some(cluster) = &opened.cluster {
        let catalogue = &opened.catalogue;
        let parts = WaitingParts { loaded, start: &start, catalogue, cluster };
        let is_current = listen_until(parts, member::until_current(catalogue, cluster));
        member::unless_superseded(cluster, is_current).await?;
    }
    let opened = ServerEngine::open(&loaded.config, start, opened).await;
    opened.map_err(|error| with_place(loaded, error))
}

/// Adds the place of the setting to the error of one that contradicts the rows.
fn with_place(loaded: &LoadedConfig, error: ServeError) -> ServeError {
    let has_place = *loaded.origin(UPSTREAM_SETTING) != SettingOrigin::BuiltIn;
    match error {
        ServeError::Hot(missing @ HotOpenError::NoUpstream { .. }) if has_place => {
            loaded.contradiction(UPSTREAM_SETTING, missing.to_string()).into()
        }
        other => other,
    }
}

/// The open parts of a server, by its part in a cluster.
enum OpenNode {
    Storage(Box<ServerEngine>),
    Gateway(Box<GatewayNode>),
}

impl OpenNode {
    async fn open(loaded: &LoadedConfig, files: FileBudget) -> Result<Self, ServeError> {
        let config = &loaded.config;
        let start = StartResources::take(loaded, files, Arc::new(SystemClock))?;
        Ok(match start.part {
            ClusterPart::Alone | ClusterPart::Recovered | ClusterPart::Storage => {
                Self::Storage(Box::new(open_storage(loaded, start).await?))
            }
            ClusterPart::Gateway => Self::Gateway(Box::new(GatewayNode::open(config, start).await?)),
        })
    }

    async fn start(&self, loaded: LoadedConfig) -> Result<RunningNode, ServeError> {
        Ok(match self {
            Self::Storage(engine) => match &engine.parts.cluster {
                Some(cluster) => {
                    RunningNode::Member(Box::new(RunningMember::serve(&engine.parts, cluster, loaded).await?))
                }
                None => RunningNode::Server(Box::new(RunningServer::start(engine, loaded).await?)),
            },
            Self::Gateway(node) => RunningNode::Member(Box::new(RunningMember::forward(node, loaded).await?)),
        })
    }

    fn cluster(&self) -> Option<&ClusterNode> {
        match self {
            Self::Storage(engine) => engine.parts.cluster.as_ref(),
            Self::Gateway(node) => Some(&node.cluster),
        }
    }

    async fn close(self) {
        match self {
            Self::Storage(engine) => engine.close().await,
            Self::Gateway(node) => node.close().await,
        }
    }
}

/// The running parts of a server, over its open parts.
enum RunningNode {
    Server(Box<RunningServer>),
    Member(Box<RunningMember>),
}

impl RunningNode {
    fn reload(&self, sources: &ConfigSources, log: &LogControl) {
        match self {
            Self::Server(server) => server.reload(sources, log),
            Self::Member(member) => member.reload(sources, log),
        }
    }

    /// Waits until a task has ended without which the node cannot do its part.
    async fn until_broken(&self) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Member(member) => member.until_broken().await,
        }
    }

    async fn drain(self, reason: StopReason, signals: &mut Signals) {
        match self {
            Self::Server(server) => server.drain(reason, signals).await,
            Self::Member(member) => member.drain(reason, signals).await,
        }
    }
}
