//! The part of a start and of a stop that a node of a cluster has and a server without peers has not.
//!
//! The catalogue of a node opens with its peers, and the node connects to them before anything else reads a
//! row or proposes a command. A storage node goes on when a majority of the voters has confirmed that its
//! rows are current, because segment files are sealed and removed by these rows. Once there are sets, it does
//! not wait for an object group that has lost its majority. A gateway goes on when it has the rows of the
//! system group. Nothing is written here besides the catalogue, so a start that ends at any point is
//! repeated.

use super::ServeError;
use super::start::{StartResources, root_from_environment};
use futures_util::future::join_all;
use mlgw_common::Clock;
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_config::{Address, Config};
use mlgw_credentials::{Keyring, RootCredentials, Sealer};
use mlgw_metadata::{BarrierScope, Catalogue, MemberRole, MemberStatus};
use mlgw_node::{ClusterNode, NodeOptions, PreparedNode};
use mlgw_transport::PeerAddress;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a majority of the voters is asked again.
const MAJORITY_PAUSE: Duration = Duration::from_millis(100);
/// Time without a majority after which a start goes on without the rows of a group: longer than an election,
/// and than the first calls to all nodes.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(6);
/// Interval between log lines of a start that waits for other nodes.
const WAIT_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time in which a node that stops transfers its leaderships. Otherwise the others elect.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);

/// Opens the catalogue of a node with peers and connects the node to them.
pub(super) async fn open_catalogue(
    config: &Config,
    start: &StartResources,
) -> Result<(Catalogue, ClusterNode), ServeError> {
    let prepared = PreparedNode::prepare(node_options(config, start)?).await?;
    let mut options = start.catalogue_options(config)?;
    options.peers = Some(prepared.peers());
    options.lease_reads = config.cluster.lease_reads;
    let catalogue = Catalogue::open(options).await?;
    let cluster = prepared.start(catalogue.clone()).await?;
    Ok((catalogue, cluster))
}

fn node_options(config: &Config, start: &StartResources) -> Result<NodeOptions, ServeError> {
    let address = config.cluster.address.as_ref();
    let seeds = config.cluster.seeds.iter();
    Ok(NodeOptions {
        dir: start.dir.path().to_owned(),
        listen: config.cluster.listen.to_string(),
        address: address.map(|address| peer_address("cluster.address", address)).transpose()?,
        seeds: seeds.map(|seed| peer_address("cluster.seeds", seed)).collect::<Result<_, _>>()?,
        description: start.dir.node().clone(),
        sealer: start.sealer.clone(),
        clock: Arc::clone(&start.clock),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        compare_interval: config.cluster.compare_interval,
    })
}

fn peer_address(setting: &'static str, address: &Address) -> Result<PeerAddress, ServeError> {
    address.to_string().parse().map_err(|source| ServeError::PeerAddress { setting, source })
}

/// Waits until the rows of the system group, and of the groups of this node's sets, contain every change that
/// any node acknowledged: a majority of the voters of each group confirms that. Proposals find a leader from
/// then on. Once there are sets, object groups without a reachable majority are given up after a while.
pub(super) async fn until_current(catalogue: &Catalogue, cluster: &ClusterNode) {
    let confirmed = async {
        // Its rows name the other groups.
        until_confirmed(async || catalogue.barrier(BarrierScope::System).await.is_ok(), || false).await;
        let confirming = cluster.awaited_groups().into_iter().map(|group| async move {
            let only = BTreeSet::from([group]);
            // It may move to another set meanwhile.
            let is_current = async || {
                !cluster.awaited_groups().contains(&group)
                    || catalogue.barrier(BarrierScope::Groups(&only)).await.is_ok()
            };
            if !until_confirmed(is_current, || cluster.is_given_up(group)).await {
                tracing::warn!(
                    group,
                    "the group has no reachable majority: this node starts without its current rows"
                );
            }
        });
        join_all(confirming).await;
    };
    let report = || {
        let groups = catalogue.groups().into_iter();
        let without_leader: Vec<u32> = groups.filter(|group| catalogue.leader(*group).is_none()).collect();
        tracing::info!(?without_leader, "waiting for a majority of the voters");
    };
    reporting(confirmed, report).await;
}

/// Waits until the rows of a group are current. Returns false if it has had no majority for
/// [`GIVEN_UP_AFTER`] before that.
async fn until_confirmed(is_current: impl AsyncFn() -> bool, is_lost: impl Fn() -> bool) -> bool {
    let mut lost_since = None;
    while !is_current().await {
        let since = *lost_since.get_or_insert_with(Instant::now);
        if !is_lost() {
            lost_since = None;
        } else if since.elapsed() >= GIVEN_UP_AFTER {
            return false;
        }
        sleep(MAJORITY_PAUSE).await;
    }
    true
}

/// Waits until this node has the rows of the system group, its own record among them.
pub(super) async fn until_member(cluster: &ClusterNode) {
    let leader = || cluster.status().groups.into_iter().find(|group| group.id == 0)?.leader;
    let report = || match leader() {
        Some(leader) => {
            tracing::info!(%leader, "waiting for the cluster: its rows have not arrived here yet");
        }
        None => tracing::info!(
            "waiting for the cluster: no leader is known; start the other nodes, and check cluster.seeds and \
             cluster.address"
        ),
    };
    reporting(cluster.until_member(), report).await;
}

/// Waits for `work` of a start, unless a peer has recorded a later start of this node.
///
/// # Errors
/// [`ServeError::Superseded`].
pub(super) async fn unless_superseded(
    cluster: &ClusterNode,
    work: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    tokio::select! {
        () = work => Ok(()),
        () = cluster.until_superseded() => Err(ServeError::Superseded),
    }
}

/// Waits for `work`, and reports periodically that it is not complete.
async fn reporting(work: impl Future<Output = ()>, report: impl Fn()) {
    let mut work = pin!(work);
    while timeout(WAIT_REPORT_INTERVAL, work.as_mut()).await.is_err() {
        report();
    }
}

/// Opens the keyring of a node with peers.
///
/// The root credentials of a cluster are fixed: another node would go on with the old ones. The environment
/// may name them only at the first start, when there is no record yet, and repeat them later.
pub(super) async fn open_keyring(
    catalogue: &Catalogue,
    sealer: Sealer,
    clock: Arc<dyn Clock>,
) -> Result<Keyring, ServeError> {
    let given = root_from_environment()?;
    // The root's record is the first one, because other keys are created with it.
    let is_first = catalogue.credentials().is_empty();
    let first = given.clone().filter(|_| is_first);
    let keyring = Keyring::open(catalogue.clone(), sealer, clock, first).await?;
    match given.is_none_or(|given| is_root(&keyring, &given)) {
        true => Ok(keyring),
        false => Err(ServeError::OtherRootCredentials),
    }
}

fn is_root(keyring: &Keyring, given: &RootCredentials) -> bool {
    let root = keyring.root();
    root.principal.access_key == given.access_key && root.secret.expose() == given.secret.expose()
}

/// Takes this node out of the running cluster before its catalogue is closed: other voters lead from then on,
/// and no peer is connected.
pub(super) async fn leave(cluster: ClusterNode, catalogue: &Catalogue) {
    let groups = catalogue.groups().into_iter();
    let transfers = join_all(groups.map(|group| transfer_leadership(catalogue, group)));
    if timeout(HAND_OVER_MAX, transfers).await.is_err() {
        tracing::warn!("leaderships were not transferred in time; the other nodes elect");
    }
    cluster.stop().await;
}

/// Transfers the leadership of a group, if this node has it, to a voter that has the whole log.
async fn transfer_leadership(catalogue: &Catalogue, group: u32) {
    // Another node leads.
    let Ok(members) = catalogue.members(group) else { return };
    let own = catalogue.node();
    for voter in members.members.iter().filter(|member| can_lead(member) && member.node != own) {
        match catalogue.transfer_leader(group, voter.node).await {
            Ok(()) => {
                tracing::info!(group, to = %voter.node, "leadership transferred");
                return;
            }
            Err(error) => tracing::warn!(group, to = %voter.node, %error, "leadership not transferred"),
        }
    }
}

fn can_lead(member: &MemberStatus) -> bool {
    member.role == MemberRole::Voter && member.lag_bytes == 0
}

#[cfg(test)]
mod tests {
    use super::{GIVEN_UP_AFTER, WAIT_REPORT_INTERVAL, can_lead, reporting, until_confirmed};
    use mlgw_common::NodeId;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_metadata::{MemberRole, MemberStatus};
    use std::cell::Cell;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_other_nodes_is_reported_periodically_until_it_ends() {
        let reports = Cell::new(0);
        let work = sleep(3 * WAIT_REPORT_INTERVAL + Duration::from_secs(1));
        reporting(work, || reports.set(reports.get() + 1)).await;
        assert_eq!(reports.get(), 3);
        reporting(async {}, || panic!("nothing to wait for")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_a_majority_unless_it_stays_lost() {
        let begun = Instant::now();
        let after = |seconds| async move || begun.elapsed() >= Duration::from_secs(seconds);
        assert!(until_confirmed(after(60), || false).await, "it is not lost");
        assert!(begun.elapsed() >= Duration::from_secs(60));
        let begun = Instant::now();
        // Its voters answer for a moment.
        let is_lost = || begun.elapsed() < GIVEN_UP_AFTER / 2 || begun.elapsed() > GIVEN_UP_AFTER;
        assert!(!until_confirmed(async || false, is_lost).await, "it is lost");
        assert!(begun.elapsed() >= 2 * GIVEN_UP_AFTER, "it was lost without an interruption");
        assert!(until_confirmed(async || true, || true).await, "it is confirmed");
    }

    #[test]
    fn a_leadership_goes_to_a_voter_with_the_whole_log() {
        let member = |role, lag_bytes| MemberStatus {
            node: NodeId(2),
            role,
            matched: Some(1),
            lag_entries: 0,
            lag_bytes,
            last_contact: None,
        };
        assert!(can_lead(&member(MemberRole::Voter, 0)));
        assert!(!can_lead(&member(MemberRole::Voter, 1)));
        assert!(!can_lead(&member(MemberRole::Learner, 0)));
    }
}
