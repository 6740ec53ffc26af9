//! The beginning of a stop: the server announces it and serves on, so that clients and other nodes choose
//! another node before this one refuses them.
//!
//! Invariant: the announcement precedes the wait, and until the wait has ended every request is accepted.

use super::start::ClusterPart;
use mlgw_common::time::timeout;
use mlgw_config::Config;
use mlgw_node::ClusterNode;
use std::time::Duration;

/// Delay of a node of a cluster if it is not configured. Load balancers that check `/readyz` each second have
/// noticed the announcement by then.
const CLUSTER_DELAY: Duration = Duration::from_secs(5);

/// Reason for a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// A signal.
    Signal,
    /// A peer has recorded a later start of this node, or its removal, so it must not serve.
    Superseded,
    /// A task has ended without which the node cannot do its part.
    Broken,
}

/// Returns the time for which a stopping server accepts requests after the announcement.
pub(super) fn shutdown_delay(config: &Config, part: ClusterPart) -> Duration {
    config.s3.shutdown_delay.or_else(|| match part {
        ClusterPart::Alone | ClusterPart::Recovered => Duration::ZERO,
        ClusterPart::Storage | ClusterPart::Gateway => CLUSTER_DELAY,
    })
}

/// Waits until a peer has recorded a later start of this node, or its removal. Never returns on a server
/// without peers.
pub(super) async fn until_superseded(cluster: Option<&ClusterNode>) {
    match cluster {
        Some(cluster) => cluster.until_superseded().await,
        None => std::future::pending().await,
    }
}

/// Returns the reason whose future ends first.
pub(super) async fn first_reason(
    signal: impl Future<Output = ()>,
    superseded: impl Future<Output = ()>,
) -> StopReason {
    tokio::select! {
        () = signal => StopReason::Signal,
        () = superseded => StopReason::Superseded,
    }
}

/// Announces a stop, then waits for `delay` while requests are accepted. A further reason ends the wait.
pub(super) async fn announce_stop(
    reason: StopReason,
    delay: Duration,
    announce: impl FnOnce(),
    further: impl Future<Output = StopReason>,
) {
    announce();
    match reason {
        StopReason::Signal if !delay.is_zero() => {
            tracing::info!(?delay, "stopping: not ready any more, requests are still accepted");
            match timeout(delay, further).await {
                Ok(StopReason::Signal) => tracing::info!("a further signal ends the shutdown delay"),
                Ok(StopReason::Superseded | StopReason::Broken) => {
                    tracing::warn!("the other nodes refuse this node: the shutdown delay ends");
                }
                Err(_) => {}
            }
        }
        StopReason::Signal | StopReason::Superseded | StopReason::Broken => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{CLUSTER_DELAY, ClusterPart, StopReason, announce_stop, first_reason, shutdown_delay};
    use mlgw_common::time::{Instant, sleep};
    use mlgw_config::{ConfigSources, LoadedConfig};
    use std::cell::Cell;
    use std::future::pending;
    use std::time::Duration;

    const DELAY: Duration = Duration::from_secs(7);

    #[tokio::test(start_paused = true)]
    async fn requests_are_accepted_for_the_delay_after_the_announcement() {
        let (begin, announced) = (Instant::now(), Cell::new(false));
        let stop = announce_stop(StopReason::Signal, DELAY, || announced.set(true), pending());
        let observe = async {
            sleep(DELAY / 2).await;
            assert!(announced.get(), "the announcement does not wait");
        };
        tokio::join!(stop, observe);
        assert_eq!(begin.elapsed(), DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_further_signal_ends_the_delay() {
        let begin = Instant::now();
        let further = first_reason(sleep(DELAY / 2), pending());
        announce_stop(StopReason::Signal, DELAY, || (), further).await;
        assert_eq!(begin.elapsed(), DELAY / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_start_of_the_node_ends_the_delay() {
        let begin = Instant::now();
        let further = first_reason(pending(), sleep(DELAY / 2));
        announce_stop(StopReason::Signal, DELAY, || (), further).await;
        assert_eq!(begin.elapsed(), DELAY / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_must_not_serve_stops_at_once() {
        let (begin, announced) = (Instant::now(), Cell::new(false));
        announce_stop(StopReason::Superseded, DELAY, || announced.set(true), pending()).await;
        assert!(announced.get() && begin.elapsed().is_zero());
    }

    #[test]
    fn only_nodes_of_a_cluster_wait_unless_the_delay_is_configured() {
        let config = |text: &str| {
            let flags = vec![("s3.shutdown_delay", "test", text.to_owned())];
            LoadedConfig::load(&ConfigSources { flags, ..ConfigSources::default() }).unwrap().config
        };
        let delays = |text: &str| {
            [ClusterPart::Alone, ClusterPart::Gateway].map(|part| shutdown_delay(&config(text), part))
        };
        assert_eq!(delays("auto"), [Duration::ZERO, CLUSTER_DELAY]);
        assert_eq!(delays("7s"), [DELAY; 2]);
        assert_eq!(delays("0s"), [Duration::ZERO; 2]);
    }
}
