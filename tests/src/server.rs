//! The shipped binary as a child process: start it, wait until it is ready, kill it, stop it.
//!
//! The binary is `MLGW_BIN`, or the release build of this workspace. Settings, including the root key, are
//! passed as environment variables; nothing else of this process's environment is passed. A dropped server is
//! killed. Its output is kept and shown if a test fails.

use mlgw_common::time::Instant;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

use crate::s3::S3TestClient;

pub(crate) const ACCESS_KEY: &str = "MLGWTESTROOTKEY00001";
pub(crate) const SECRET_KEY: &str = "mlgw-tests-root-secret-0123456789abcdefg";

/// Longest wait for a start or a stop. Generous: it is reached only if something is broken.
const START_STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Placeholder address of a server that has not reported its addresses yet.
const UNKNOWN_ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Drops the files below this directory from the page cache.
pub(crate) fn drop_page_cache(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))).expect("an entry");
        if kind.is_dir() {
            drop_page_cache(&path);
        } else if kind.is_file() {
            let file = std::fs::File::open(&path).expect("opened");
            file.sync_all().expect("synced");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("left");
        }
    }
}

/// The runtime of a test's clients: two threads, as many as the CI machine has cores.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// The configuration and the environment of a server to start.
#[derive(Clone, Debug)]
pub(crate) struct ServerSetup {
    pub(crate) data_dir: PathBuf,
    settings: Vec<(String, String)>,
    /// Shell commands that run before the server replaces the shell: limits and cgroups.
    preparation: String,
    /// A command that becomes the server, such as `nsenter`.
    launcher: String,
}

/// The exit status and the log of a server that did not become ready.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) log: String,
}

impl ServerSetup {
    pub(crate) fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            settings: Vec::new(),
            preparation: String::new(),
            launcher: String::new(),
        }
    }

    /// Adds one setting by its name in the configuration, such as `hot.segment_bytes`.
    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl ToString) -> Self {
        let variable = format!("MLGW_{}", key.replace('.', "__").to_uppercase());
        self.settings.push((variable, value.to_string()));
        self
    }

    /// Adds an upstream: a bucket of another test server. That server, or a proxy before it, listens at
    /// `addr`.
    #[must_use]
    pub(crate) fn with_upstream(self, name: &str, addr: SocketAddr, bucket: &str, timeout: &str) -> Self {
        let key = |setting: &str| format!("upstream.{name}.{setting}");
        self.with(&key("endpoint"), format!("http://{addr}"))
            .with(&key("bucket"), bucket)
            .with(&key("credentials"), "static")
            .with(&key("access_key"), ACCESS_KEY)
            .with(&key("secret_key"), SECRET_KEY)
            .with(&key("timeout"), timeout)
    }

    /// Adds a shell command that runs in the server's process before the server.
    #[must_use]
    pub(crate) fn with_preparation(mut self, command: &str) -> Self {
        self.preparation.push_str(command);
        self.preparation.push_str("; ");
        self
    }

    /// Sets a command that runs the server in its own place and process.
    #[must_use]
    pub(crate) fn with_launcher(mut self, launcher: &str) -> Self {
        launcher.clone_into(&mut self.launcher);
        self
    }

    /// Runs an `mlgw` command on this host for the server on this directory; returns its output and its exit
    /// status.
    pub(crate) fn command(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let done = Command::new(binary())
            .args(arguments)
            .env_clear()
            .env("MLGW_DATA_DIR", &self.data_dir)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("starting {}: {error}", binary().display()));
        (String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(), done.status.code())
    }

    /// Runs `mlgw store VERB` for the data directory under this configuration; returns its output and its
    /// exit status.
    pub(crate) fn store(&self, verb: &[&str]) -> (String, Option<i32>) {
        self.offline(&[&["store"], verb].concat())
    }

    /// Runs `mlgw cluster init` for the data directory under this configuration; returns its output and its
    /// exit status.
    pub(crate) fn cluster_init(&self) -> (String, Option<i32>) {
        self.cluster(&["init", self.data_dir.to_str().expect("a test path")])
    }

    /// Runs `mlgw cluster VERB` under this configuration; returns its output and its exit status.
    pub(crate) fn cluster(&self, verb: &[&str]) -> (String, Option<i32>) {
        self.offline(&[&["cluster"], verb].concat())
    }

    fn offline(&self, words: &[&str]) -> (String, Option<i32>) {
        let done = Command::new(binary())
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("starting {}: {error}", binary().display()));
        (String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(), done.status.code())
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// The server exited, or was not ready in time (and was killed).
    pub(crate) fn try_start(&self) -> Result<ServerProcess, StartFailure> {
        let mut server = self.spawn();
        server.wait_ready()?;
        Ok(server)
    }

    /// Starts the server; panics unless it becomes ready.
    pub(crate) fn start(&self) -> ServerProcess {
        self.try_start().unwrap_or_else(|failure| {
            panic!("the server did not start: {:?}\n{}", failure.status, failure.log)
        })
    }

    /// Starts the server and does not wait for it. A node of a cluster may wait for others.
    pub(crate) fn spawn(&self) -> ServerProcess {
        let log = tempfile::Builder::new().prefix("mlgw-log").tempfile().expect("a log file");
        let output = || Stdio::from(log.reopen().and_then(appending).expect("the log file"));
        let script = format!("{}exec {} \"$0\" \"$@\"", self.preparation, self.launcher);
        let child = Command::new("/bin/sh")
            .args(["-c", &script])
            .arg(binary())
            .arg("serve")
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("MLGW_CLUSTER__LISTEN", "127.0.0.1:0")
            .env("MLGW_ROOT_ACCESS_KEY_ID", ACCESS_KEY)
            .env("MLGW_ROOT_SECRET_ACCESS_KEY", SECRET_KEY)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output())
            .spawn()
            .unwrap_or_else(|error| panic!("starting {}: {error}", binary().display()));
        ServerProcess { child, s3: UNKNOWN_ADDR, admin: UNKNOWN_ADDR, log, exited: None }
    }
}

/// Opens the log for appending: both handles must append, or the second overwrites the lines of the first.
fn appending(file: File) -> std::io::Result<File> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::APPEND)?;
    Ok(file)
}

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("MLGW_BIN") {
        return PathBuf::from(path);
    }
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    target.join("release/mlgw")
}

/// The address that the server reports in its log after these words. The server picks free ports itself, so
/// that no two servers ever use the same one.
fn address_after(log: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once(words)?;
    let (_, rest) = rest.split_once("://")?;
    let end = rest.find(|c: char| c != ':' && c != '.' && !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) s3: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: tempfile::NamedTempFile,
    exited: Option<ExitStatus>,
}

impl ServerProcess {
    pub(crate) fn client(&self) -> S3TestClient {
        S3TestClient::new(self.s3, ACCESS_KEY, SECRET_KEY)
    }

    /// A client of the admin API.
    pub(crate) fn admin_client(&self) -> S3TestClient {
        S3TestClient::admin(self.admin, ACCESS_KEY, SECRET_KEY)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The output of the server so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// Waits until the server is ready.
    ///
    /// # Errors
    /// As [`ServerSetup::try_start`].
    pub(crate) fn wait_ready(&mut self) -> Result<(), StartFailure> {
        self.wait_for(Self::is_ready)
    }

    /// Waits until the server listens, whether it is ready or not.
    ///
    /// # Errors
    /// As [`ServerSetup::try_start`].
    pub(crate) fn wait_listening(&mut self) -> Result<(), StartFailure> {
        self.wait_for(Self::is_listening)
    }

    /// Waits until the server listens as a node that waits for others at its start.
    ///
    /// # Errors
    /// As [`ServerSetup::try_start`].
    pub(crate) fn wait_waiting(&mut self) -> Result<(), StartFailure> {
        self.wait_for(|server| server.listens_at(" waits for them with S3 at ", " and its admin API at "))
    }

    fn wait_for(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> Result<(), StartFailure> {
        let start = Instant::now();
        while !is_so(self) {
            let status = self.child.try_wait().expect("our child");
            if status.is_some() || start.elapsed() > START_STOP_TIMEOUT {
                self.kill();
                return Err(StartFailure { status, log: self.log() });
            }
            mlgw_common::time::block_for(POLL_INTERVAL);
        }
        Ok(())
    }

    fn is_ready(&mut self) -> bool {
        self.is_listening() && is_ready_at(self.admin)
    }

    fn is_listening(&mut self) -> bool {
        self.listens_at(" serves S3 at ", ", its admin API at ")
    }

    /// Takes the addresses of the server from its log, if they follow these words there.
    fn listens_at(&mut self, before_s3: &str, before_admin: &str) -> bool {
        let log = self.log();
        let addresses = (address_after(&log, before_s3), address_after(&log, before_admin));
        let (Some(s3), Some(admin)) = addresses else { return false };
        (self.s3, self.admin) = (s3, admin);
        true
    }

    /// `kill -9`: the process has ended when this returns.
    pub(crate) fn kill(&mut self) {
        if self.exited.is_none() {
            self.child.kill().expect("our child");
            self.exited = Some(self.child.wait().expect("our child"));
        }
    }

    /// Sends SIGTERM and returns immediately.
    pub(crate) fn send_sigterm(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("our child");
    }

    /// Sends SIGTERM and expects exit status 0.
    pub(crate) fn stop(mut self) {
        self.send_sigterm();
        let status = self.wait_exit();
        assert_eq!(status.code(), Some(0), "SIGTERM ends in {status:?}\n{}", self.log());
    }

    /// Waits for the server to exit; panics after [`START_STOP_TIMEOUT`].
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        self.try_wait_exit().unwrap_or_else(|| panic!("the server does not end\n{}", self.log()))
    }

    /// Waits for the server to exit; `None` if it does not exit in time.
    pub(crate) fn try_wait_exit(&mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < START_STOP_TIMEOUT {
            if let Some(status) = self.child.try_wait().expect("our child") {
                self.exited = Some(status);
                return Some(status);
            }
            mlgw_common::time::block_for(POLL_INTERVAL);
        }
        None
    }

    /// True if the server has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        if let Some(status) = self.child.try_wait().expect("our child") {
            self.exited = Some(status);
        }
        self.exited.is_some()
    }

    /// Panics, with the log and the signal, if the server has ended.
    pub(crate) fn assert_running(&mut self, when: &str) {
        let status = self.child.try_wait().expect("our child");
        if let Some(status) = status {
            self.exited = Some(status);
            panic!("the server ended {when}: {status:?}, signal {:?}\n{}", status.signal(), self.log());
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the server's output ---\n{}---", self.log());
        }
        self.kill();
    }
}

fn is_ready_at(admin: SocketAddr) -> bool {
    get_text(admin, "/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Returns the whole answer to a GET without a signature.
pub(crate) fn get_text(server: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: mlgw\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
