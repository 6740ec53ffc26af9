//! The start of a node of a cluster, in two halves.
//!
//! The first node has no certificate at its first start. It is the only voter then: it creates the cluster's
//! authority in the catalogue, signs its own certificate, and stores it last. After a power loss in between,
//! the next start continues: an authority that exists is opened, and a certificate is signed again.

use crate::addresses::AddressFinder;
use crate::admission::Admission;
use crate::authorities::AuthorityState;
use crate::authority::{AuthorityRowError, create_authority, trusted_authorities};
use crate::driver::{FailedAdditions, MembershipDriver};
use crate::facts::GroupWaits;
use crate::node::{ClusterNode, NodeState, follow_nodes};
use crate::peers::{RunningTransport, TransportPeers};
use crate::probes::{NodeProber, Probes, lost_groups};
use crate::recency::confirm_system_rows;
use crate::renewal::{CertificateEnd, CertificateRenewal};
use crate::reports::{ServingState, report_node};
use crate::routes::current_table;
use crate::row_comparer::compare_rows;
use crate::seeds::SeedDialer;
use crate::services::NodeServices;
use crate::settings::SettingsCollector;
use mlgw_common::{CheckedClock, Clock, ClockCheck, NodeId};
use mlgw_credentials::Sealer;
use mlgw_formats::schema::RecordedStart;
use mlgw_metadata::catalogue::NodeReport;
use mlgw_metadata::{Catalogue, MemberPeers, ProposeError};
use mlgw_store::data_dir::CLUSTER_DIR;
use mlgw_store::node_file::NodeDescription;
use mlgw_transport::{
    AddressBook, BadPeerAddress, ClusterTransport, PeerAddress, TransportConfig, TransportError, WireVersions,
};
use mlgw_trust::{
    AuthorityError, CertifiedNode, NodeCredentials, NodeFiles, NodeFilesError, NodeStart, PeerStarts,
    StartsFileError,
};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Description of the node that starts.
pub struct NodeOptions {
    /// Data directory, locked by the caller.
    pub dir: PathBuf,
    /// Address of the listener for peers, `HOST:PORT`.
    pub listen: String,
    /// Address that peers dial; `None` for that of the listener.
    pub address: Option<PeerAddress>,
    /// Configured addresses of other nodes.
    pub seeds: Vec<PeerAddress>,
    /// Contents of `node.json`, with this start.
    pub description: NodeDescription,
    /// Seals with the cluster's key.
    pub sealer: Sealer,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// This build, for the node's record.
    pub build: String,
    /// Interval between comparisons of the rows of a group; zero turns them off.
    pub compare_interval: Duration,
}

/// Error of the start of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The directory is that of a server without peers.
    #[error("this server is not in a cluster: run `mlgw cluster init` or `mlgw cluster join` first")]
    NotClustered,
    /// The node has no certificate, and is not the first one.
    #[error("node {0} has no certificate: run `mlgw cluster join` again with the same data directory")]
    NoCertificate(NodeId),
    /// The first node lost its certificate after other nodes had joined.
    #[error(
        "the certificate of this node is missing in {0}, and other nodes have joined: restore the folder \
         from a backup"
    )]
    LostCertificate(PathBuf),
    /// The files of the node cannot be used.
    #[error(transparent)]
    Files(#[from] NodeFilesError),
    /// The starts of the other nodes cannot be read.
    #[error(transparent)]
    Starts(#[from] StartsFileError),
    /// The listener did not open.
    #[error("cluster.listen {listen}: {source}")]
    Listen {
        /// The address.
        listen: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Peers cannot dial the address of the listener.
    #[error(
        "cluster.listen {listen} is no address that other nodes can dial ({reason}): set cluster.address"
    )]
    Address {
        /// The address of the listener.
        listen: String,
        /// Reason.
        reason: String,
    },
    /// The authority of the cluster.
    #[error(transparent)]
    AuthorityRow(#[from] AuthorityRowError),
    /// The version of the cluster was not raised.
    #[error("the version of the cluster was not raised to that of this build: {0}")]
    Version(#[from] ProposeError),
    /// A certificate was not signed.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The transport did not start.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// A node whose files are read and whose listener is bound.
pub struct PreparedNode {
    options: NodeOptions,
    own: NodeId,
    start: NodeStart,
    files: NodeFiles,
    credentials: Option<NodeCredentials>,
    starts: Arc<PeerStarts>,
    listener: TcpListener,
    address: PeerAddress,
    transport: Arc<RunningTransport>,
}

impl PreparedNode {
    /// Reads the files of the node and binds its listener.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn prepare(options: NodeOptions) -> Result<Self, NodeError> {
        let description = &options.description;
        let stamp =
            description.start.filter(|_| description.is_clustered()).ok_or(NodeError::NotClustered)?;
        let (own, incarnation) = (description.node_id(), description.incarnation);
        let start = NodeStart { incarnation, counter: stamp.counter, nonce: stamp.nonce };
        let files = NodeFiles::new(&options.dir.join(CLUSTER_DIR))?;
        let credentials = files.credentials()?;
        if credentials.is_none() && own != NodeId::SINGLE {
            return Err(NodeError::NoCertificate(own));
        }
        // Without a certificate no peer was ever connected. Later the file must be there.
        let starts = match credentials.is_some() {
            true => PeerStarts::open(files.dir(), description.cluster)?,
            false => PeerStarts::create(files.dir(), description.cluster)?,
        };
        let listen = |source| NodeError::Listen { listen: options.listen.clone(), source };
        let listener = TcpListener::bind(&options.listen).await.map_err(listen)?;
        let port = listener.local_addr().map_err(listen)?.port();
        let address = match &options.address {
            Some(address) => address.clone(),
            None => address_of(&options.listen, port)?,
        };
        warn_of_loopback(&address, &options.seeds);
        let (starts, transport) = (Arc::new(starts), Arc::default());
        Ok(Self { own, start, files, credentials, starts, listener, address, transport, options })
    }

    /// The other nodes, for the options of the catalogue.
    #[must_use]
    pub fn peers(&self) -> Arc<dyn MemberPeers> {
        Arc::new(TransportPeers::new(Arc::clone(&self.transport)))
    }

    /// Starts the transport and the tasks of the node. `catalogue` was opened with [`Self::peers`].
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start(mut self, catalogue: Catalogue) -> Result<ClusterNode, NodeError> {
        let credentials = match self.credentials.take() {
            Some(credentials) => credentials,
            None => self.first_credentials(&catalogue).await?,
        };
        let clock = Arc::clone(&self.options.clock);
        let (checks, checked) = CheckedClock::unknown(Arc::clone(&clock));
        let admission = Admission::new(
            catalogue.clone(),
            self.options.sealer.clone(),
            self.options.dir.clone(),
            self.options.description.clone(),
            checked.clone(),
        );
        let services = NodeServices::new(catalogue.clone(), Arc::clone(&self.transport), admission, clock);
        let config = TransportConfig {
            cluster: self.options.description.cluster,
            node: self.own,
            start: self.start,
            address: self.address.clone(),
            versions: WireVersions::OWN,
            credentials: credentials.clone(),
            starts: Arc::clone(&self.starts),
            book: AddressBook::default(),
            removed: crate::book::removed(&catalogue.nodes()),
        };
        config.book.set_rows(crate::book::addresses(&catalogue.nodes()));
        let report = self.report(&credentials, catalogue.known_cluster_version());
        let transport = ClusterTransport::start(config, self.listener, Arc::new(services.clone()))?;
        self.transport.set(transport.clone());
        tracing::info!(node = %self.own, address = %self.address, "serving the other nodes of the cluster");
        let parts = StartedParts {
            options: self.options,
            own: self.own,
            address: self.address,
            files: self.files,
            starts: self.starts,
            running: self.transport,
            checks,
            checked,
        };
        Ok(parts.run(catalogue, transport, services, credentials, report))
    }

    /// Creates the authority of the cluster, or opens it, and signs the certificate of its first node.
    async fn first_credentials(&self, catalogue: &Catalogue) -> Result<NodeCredentials, NodeError> {
        let NodeOptions { sealer, clock, description, .. } = &self.options;
        // No other node joins before the first one has a certificate: this one had one, and lost it.
        if catalogue.nodes().iter().any(|node| node.node_id() != self.own) {
            return Err(NodeError::LostCertificate(self.files.dir().to_owned()));
        }
        let now = clock.now();
        // A cluster of one node needs no agreement about its version.
        let version = catalogue.known_cluster_version();
        if catalogue.cluster_version() < version {
            catalogue.raise_cluster_version(version).await?;
        }
        let named = CertifiedNode { cluster: description.cluster, node: self.own };
        let authority = create_authority(catalogue, sealer, named, now).await?;
        let request = self.files.key()?.request().map_err(NodeFilesError::from)?;
        let issued = authority.sign(&request, self.own, now)?;
        self.files.store_certificate(&issued, &trusted_authorities(catalogue)?)?;
        self.files.credentials()?.ok_or(NodeError::NoCertificate(self.own))
    }

    fn report(&self, credentials: &NodeCredentials, cluster_version: u32) -> NodeReport {
        let NodeStart { incarnation, counter, nonce } = self.start;
        NodeReport {
            node: self.own,
            address: self.address.to_string(),
            cluster_version,
            build: self.options.build.clone(),
            start: RecordedStart { incarnation: incarnation.0, counter, nonce },
            key_hash: credentials.key().public_hash().0.to_vec(),
            is_serving: false,
            authority: 0,
            trusted_authority: 0,
        }
    }
}

/// Parts of a node whose transport has started.
struct StartedParts {
    options: NodeOptions,
    own: NodeId,
    address: PeerAddress,
    files: NodeFiles,
    starts: Arc<PeerStarts>,
    running: Arc<RunningTransport>,
    checks: watch::Sender<ClockCheck>,
    checked: CheckedClock,
}

impl StartedParts {
    /// Starts the tasks.
    fn run(
        self,
        catalogue: Catalogue,
        transport: ClusterTransport,
        services: NodeServices,
        credentials: NodeCredentials,
        report: NodeReport,
    ) -> ClusterNode {
        let (own, clock) = (self.own, self.options.clock);
        let (probes, waits) = (Arc::new(Probes::default()), GroupWaits::default());
        let (serving, authorities) = (Arc::<ServingState>::default(), Arc::<AuthorityState>::default());
        let certificate = Arc::new(CertificateEnd::new(&credentials));
        let (sender, routes) = watch::channel(Arc::new(current_table(&catalogue)));
        let (lost, lost_groups) = watch::channel(lost_groups(&catalogue, own, &probes));
        let mut tasks = JoinSet::new();
        let renewal = CertificateRenewal {
            catalogue: catalogue.clone(),
            sealer: self.options.sealer.clone(),
            files: self.files,
            transport: transport.clone(),
            clock: self.checked.clone(),
            end: Arc::clone(&certificate),
            authorities: Arc::clone(&authorities),
        };
        tasks.spawn(renewal.run(credentials));
        let seeds = SeedDialer { seeds: self.options.seeds, own: self.address, probes: Arc::clone(&probes) };
        tasks.spawn(seeds.run(transport.clone()));
        tasks.spawn(follow_nodes(catalogue.clone(), transport, self.starts, sender));
        let prober = NodeProber {
            own,
            catalogue: catalogue.clone(),
            transport: Arc::clone(&self.running),
            probes: Arc::clone(&probes),
            clock: Arc::clone(&clock),
            lost,
            checks: self.checks,
        };
        tasks.spawn(prober.run());
        tasks.spawn(compare_rows(catalogue.clone(), self.options.compare_interval));
        start_questions(&mut tasks, own, &catalogue, &probes, &self.running, &services);
        tasks.spawn(report_node(catalogue.clone(), report, Arc::clone(&serving), authorities));
        let driver = MembershipDriver {
            own,
            catalogue: catalogue.clone(),
            probes: Arc::clone(&probes),
            services: services.clone(),
            waits: Arc::clone(&waits),
            failed: FailedAdditions::default(),
            removals: Arc::default(),
        };
        tasks.spawn(driver.run());
        let shared = NodeState {
            cluster: self.options.description.cluster,
            own,
            clock: self.checked,
            sealer: self.options.sealer,
            catalogue,
            transport: self.running,
            services,
            probes,
            waits,
            duty_lease: Arc::default(),
            serving,
            routes,
            lost_groups,
            certificate,
            tasks: parking_lot::Mutex::new(tasks),
        };
        ClusterNode { shared: Arc::new(shared) }
    }
}

/// Starts the tasks that ask other nodes for addresses, settings and recent rows.
fn start_questions(
    tasks: &mut JoinSet<()>,
    own: NodeId,
    catalogue: &Catalogue,
    probes: &Arc<Probes>,
    transport: &Arc<RunningTransport>,
    services: &NodeServices,
) {
    tasks.spawn(confirm_system_rows(catalogue.clone()));
    let finder = AddressFinder {
        own,
        catalogue: catalogue.clone(),
        probes: Arc::clone(probes),
        transport: Arc::clone(transport),
    };
    tasks.spawn(finder.run());
    let collector = SettingsCollector {
        own,
        catalogue: catalogue.clone(),
        probes: Arc::clone(probes),
        transport: Arc::clone(transport),
        settings: Arc::clone(services.settings()),
    };
    tasks.spawn(collector.run());
}

/// Address that peers dial when none is configured: that of the listener, with the bound port.
fn address_of(listen: &str, port: u16) -> Result<PeerAddress, NodeError> {
    let error = |reason: String| NodeError::Address { listen: listen.to_owned(), reason };
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    let address: Result<PeerAddress, BadPeerAddress> = format!("{host}:{port}").parse();
    let address = address.map_err(|bad| error(bad.to_string()))?;
    match address.is_unspecified() {
        true => Err(error("it stands for all interfaces".to_owned())),
        false => Ok(address),
    }
}

/// Warns if other hosts cannot dial this node, although some are configured.
fn warn_of_loopback(address: &PeerAddress, seeds: &[PeerAddress]) {
    if address.is_loopback() && seeds.iter().any(|seed| !seed.is_loopback()) {
        tracing::warn!(%address, "other hosts cannot dial this address: set cluster.address");
    }
}

#[cfg(test)]
mod tests;
