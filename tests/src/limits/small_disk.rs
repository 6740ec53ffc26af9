//! A file system of a few megabytes, in a mount namespace of its own.
//!
//! A process that only waits holds the namespace, and servers enter it. So nothing stays mounted when a
//! test is killed. Without root, a user namespace provides the right to mount.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(super) struct SmallDisk {
    namespace_holder: Child,
    dir: tempfile::TempDir,
}

impl SmallDisk {
    pub(super) fn new(megabytes: u32) -> Self {
        Self::mounted_with(&format!("size={megabytes}m"))
    }

    /// Mounts a tmpfs with these options.
    pub(super) fn mounted_with(options: &str) -> Self {
        let dir = tempfile::tempdir().expect("a mount point");
        let path = dir.path().display();
        let script = format!("mount -t tmpfs -o {options} tmpfs {path} && echo mounted && exec cat");
        let mut holder = Command::new("unshare")
            .args(if is_root() { ["-m"].as_slice() } else { ["-r", "-m"].as_slice() })
            .args(["sh", "-c", &script])
            // `cat` ends with this process, and the namespace with it.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is part of util-linux");
        let mut line = String::new();
        let stdout = holder.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("the mount holder reports readiness");
        assert_eq!(line, "mounted\n", "mounting a tmpfs needs root or user namespaces");
        Self { namespace_holder: holder, dir }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the command prefix with which a program sees this disk.
    pub(super) fn launcher(&self) -> String {
        let user = if is_root() { "" } else { "--preserve-credentials -U " };
        format!("nsenter {user}-m -t {} --", self.namespace_holder.id())
    }
}

impl SmallDisk {
    /// Runs a command that sees this disk, and returns its output.
    pub(super) fn run(&self, command: &str) -> String {
        let line = format!("{} {command}", self.launcher());
        let output = Command::new("sh").args(["-c", &line]).output().expect("sh");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the free bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        let output = self.run(&format!("stat -f -c '%a %S' {}", self.dir.path().display()));
        let mut numbers = output.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        numbers.next().expect("blocks") * numbers.next().expect("their size")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        drop(self.namespace_holder.kill());
        drop(self.namespace_holder.wait());
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
