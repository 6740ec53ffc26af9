//! Tests of `mlgw ls`, `mlgw cp`, `mlgw cat` and `mlgw du` against the shipped server.
//!
//! - `copying`: files and objects of all names and sizes, in every direction;
//! - `failing`: exit statuses, refused names, aborted uploads, and faults between client and server;
//! - `sources`: sources that are corrupt, replaced, empty or overlap their copy, and ends that are closed.

mod copying;
mod failing;
mod sources;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::proxy::FaultProxy;
use crate::server::{ACCESS_KEY, SECRET_KEY, ServerProcess, ServerSetup, binary, runtime};

/// The bucket of these tests.
const BUCKET: &str = "commands";

const MIB: usize = 1 << 20;

/// A server, and a directory for the files of its clients.
struct CommandHost {
    server: ServerProcess,
    setup: ServerSetup,
    dir: tempfile::TempDir,
}

/// Result of a command.
struct CommandResult {
    stdout: Vec<u8>,
    stderr: String,
    status: Option<i32>,
}

impl CommandHost {
    fn new() -> Self {
        Self::with(|setup, _| setup)
    }

    /// Starts a server with settings, which may name files in the directory of the host.
    fn with(settings: impl FnOnce(ServerSetup, &Path) -> ServerSetup) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let setup = settings(ServerSetup::new(dir.path().join("mlgw-data")), dir.path());
        let server = setup.start();
        Self { server, setup, dir }
    }

    fn with_bucket() -> Self {
        let host = Self::new();
        runtime().block_on(host.server.client().create_bucket(BUCKET)).expect("made");
        host
    }

    /// A path in the directory of the host.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Prepares a command on the server's host.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env_clear().env("MLGW_DATA_DIR", &self.setup.data_dir);
        command.env("HOME", self.dir.path()).current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandResult {
        CommandResult::of(start(&mut self.command(arguments)))
    }

    /// Runs a command with these bytes on its standard input.
    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> CommandResult {
        let mut child = start(self.command(arguments).stdin(Stdio::piped()));
        child.stdin.take().expect("a pipe").write_all(input).expect("written");
        CommandResult::of(child)
    }

    /// Runs a command that succeeds; returns its output.
    fn done(&self, arguments: &[&str]) -> Vec<u8> {
        let CommandResult { stdout, stderr, status } = self.run(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {stderr}");
        stdout
    }

    /// Runs a command that prints lines of JSON.
    fn json_lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.done(&[&["--output", "json"], arguments].concat());
        let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
    }

    /// Runs a command whose requests pass through a proxy.
    fn run_through(&self, proxy: &FaultProxy, arguments: &[&str]) -> CommandResult {
        let endpoint = format!("http://{}", proxy.addr());
        let arguments = [arguments, &["--s3-endpoint", &endpoint]].concat();
        let keys = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
        CommandResult::of(start(self.command(&arguments).envs(keys)))
    }

    fn uploads(&self) -> Vec<String> {
        runtime().block_on(self.server.client().list_uploads(BUCKET)).expect("listed")
    }
}

impl CommandResult {
    fn of(child: Child) -> Self {
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { stdout: output.stdout, stderr, status: output.status.code() }
    }
}

fn start(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("starting {}: {error}", binary().display()))
}

/// A path as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary directory has a name of UTF-8")
}
