//! A node of a test cluster: its directory with its settings, its process, and the logs of its processes.

use std::net::SocketAddr;
use std::path::Path;

use super::{NodeSettings, unused_address};
use crate::server::{ServerProcess, ServerSetup};

/// A node: its configuration, and its process while it runs.
pub(in crate::cluster) struct TestMember {
    pub(in crate::cluster) setup: ServerSetup,
    /// Address for the other nodes.
    pub(in crate::cluster) address: SocketAddr,
    pub(super) process: Option<ServerProcess>,
    /// The logs of its earlier processes, without what they wrote after a signal.
    pub(super) earlier_log: String,
}

impl TestMember {
    /// Returns a node on this directory, with an address of its own.
    pub(super) fn new(dir: &Path, settings: NodeSettings) -> Self {
        let address = unused_address();
        // No load balancer needs time to notice a stop.
        let setup = ServerSetup::new(dir).with("s3.shutdown_delay", "0s");
        let setup = settings(setup).with("cluster.listen", address);
        Self { setup, address, process: None, earlier_log: String::new() }
    }

    /// Takes the process, which runs, to end it.
    pub(super) fn take_process(&mut self) -> ServerProcess {
        let process = self.process.take().expect("it runs");
        self.earlier_log.push_str(&process.log());
        process
    }

    /// The logs of the processes that have ended.
    pub(in crate::cluster) fn earlier_log(&self) -> &str {
        &self.earlier_log
    }

    /// The logs of all of its processes.
    pub(in crate::cluster) fn whole_log(&self) -> String {
        let current = self.process.as_ref().map(ServerProcess::log).unwrap_or_default();
        format!("{}{current}", self.earlier_log)
    }

    /// Runs `mlgw cluster join` for the directory, with this seed; returns its output and its exit status.
    pub(in crate::cluster) fn join(
        &self,
        seed: SocketAddr,
        token: &str,
        role: &str,
    ) -> (String, Option<i32>) {
        let dir = self.setup.data_dir.to_str().expect("a test path");
        let name = self.setup.data_dir.file_name().and_then(|name| name.to_str()).expect("a test path");
        let seed = seed.to_string();
        let words = ["join", dir, "--token", token, "--seed", &seed, "--role", role, "--name", name];
        self.setup.cluster(&words)
    }
}
