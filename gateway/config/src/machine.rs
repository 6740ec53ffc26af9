//! Facts about the machine, from which `auto` settings are derived.
//!
//! Memory is the least of RAM and of every cgroup limit above this process (v2 and v1), because a process is
//! killed at the lowest of them.

use super::{Config, LoadedConfig};
use mlgw_common::limits::{GIB, MIB};
use std::path::{Path, PathBuf};

/// Sizes of this machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSizes {
    /// RAM or the lowest cgroup limit.
    pub memory_bytes: u64,
    /// Size of the file system of the segments; `None` if it is unknown.
    pub disk_bytes: Option<u64>,
}

/// Assumed memory if the system reports none.
const MEMORY_BYTES_UNKNOWN: u64 = GIB;

impl MachineSizes {
    /// Queries the system; the disk is that of `dir`, or of the nearest parent of it that exists.
    #[must_use]
    pub fn detect(dir: &Path) -> Self {
        let disk = dir.ancestors().find_map(|dir| {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            rustix::fs::statvfs(dir).ok()
        });
        Self { memory_bytes: memory_bytes(), disk_bytes: disk.map(|d| d.f_blocks * d.f_frsize) }
    }
}

impl Config {
    /// Returns the maximum bytes of the memory tier.
    #[must_use]
    pub fn memory_capacity_bytes(&self, machine: &MachineSizes) -> u64 {
        let auto = (machine.memory_bytes / 10).min(4 * GIB);
        self.memory.capacity.or_else(|| super::ByteSize(auto)).0
    }

    /// Returns the maximum bytes of the hot tier's segments.
    #[must_use]
    pub fn hot_capacity_bytes(&self, machine: &MachineSizes) -> u64 {
        let disk = machine.disk_bytes.unwrap_or(0);
        let auto = (disk / 10 * 9).saturating_sub(if disk > 100 * GIB { 10 * GIB } else { 0 });
        self.hot.capacity.or_else(|| super::ByteSize(auto)).0
    }

    /// Returns the maximum bytes of the clean copies of remote-backed buckets.
    #[must_use]
    pub fn copies_capacity_bytes(&self, machine: &MachineSizes) -> u64 {
        self.bound.capacity.or_else(|| super::ByteSize(self.hot_capacity_bytes(machine) / 2)).0
    }

    /// Returns the maximum bytes of write-back data that are not at their origins yet.
    #[must_use]
    pub fn dirty_bytes_max(&self, machine: &MachineSizes) -> u64 {
        let auto = (self.hot_capacity_bytes(machine) / 10).min(64 * GIB);
        self.bound.dirty_bytes_max.or_else(|| super::ByteSize(auto)).0
    }

    /// Returns the length at which a segment is sealed, which is less than configured on a small disk or with
    /// a small capacity. Otherwise compaction would have no room for the live data of a segment, and data in
    /// open segments could not be spilled.
    #[must_use]
    pub fn hot_segment_bytes(&self, machine: &MachineSizes) -> u64 {
        let disk = machine.disk_bytes.unwrap_or(u64::MAX);
        let super::ByteSize(capacity) = self.hot.capacity.or_else(|| super::ByteSize(u64::MAX));
        self.hot.segment_bytes.0.min((disk.min(capacity) / 64).max(MIB))
    }

    /// Returns the free bytes that segments leave to the catalogue, whose log must grow for a delete on a
    /// full disk.
    #[must_use]
    pub fn hot_reserve_bytes(&self, machine: &MachineSizes) -> u64 {
        let auto = (machine.disk_bytes.unwrap_or(0) / 16).clamp(32 * MIB, GIB);
        self.hot.reserve_bytes.or_else(|| super::ByteSize(auto)).0
    }

    /// Returns the log bytes after which the catalogue flushes, at most half of the smallest reserve. The
    /// catalogue's files take up to twice that: writes during a purge, and the write-ahead log.
    #[must_use]
    pub fn catalogue_log_bytes_max(&self, machine: &MachineSizes) -> u64 {
        let auto = (machine.disk_bytes.unwrap_or(0) / 16).clamp(8 * MIB, 128 * MIB);
        self.catalogue.log_bytes_max.or_else(|| super::ByteSize(auto)).0
    }

    /// Returns the memory of the catalogue's caches in bytes.
    #[must_use]
    pub fn catalogue_cache_bytes(&self, machine: &MachineSizes) -> u64 {
        let auto = (machine.memory_bytes / 16).clamp(16 * MIB, GIB);
        self.catalogue.cache_bytes.or_else(|| super::ByteSize(auto)).0
    }
}

impl LoadedConfig {
    /// Returns the value of the setting `key` on `machine` if it is `auto`.
    #[must_use]
    pub fn derived(&self, key: &str, machine: &MachineSizes) -> Option<u64> {
        let config = &self.config;
        let auto = self.values().any(|(setting, value, _)| setting.key == key && value == "\"auto\"");
        match key {
            _ if !auto => None,
            "memory.capacity" => Some(config.memory_capacity_bytes(machine)),
            "hot.capacity" => Some(config.hot_capacity_bytes(machine)),
            "bound.capacity" => Some(config.copies_capacity_bytes(machine)),
            "bound.dirty_bytes_max" => Some(config.dirty_bytes_max(machine)),
            "hot.reserve_bytes" => Some(config.hot_reserve_bytes(machine)),
            "catalogue.log_bytes_max" => Some(config.catalogue_log_bytes_max(machine)),
            "catalogue.cache_bytes" => Some(config.catalogue_cache_bytes(machine)),
            "limits.memory_bytes" => Some(config.memory_bytes(machine)),
            _ => None,
        }
    }
}

fn memory_bytes() -> u64 {
    let ram = std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(ram_bytes);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| limit_bytes(&file));
    limits.chain(ram).min().unwrap_or(MEMORY_BYTES_UNKNOWN)
}

fn ram_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the files that may contain a limit: those of the process's group and of every group above it.
/// Inside a container the group's own path may not be mounted, but the root's file is.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let path = path.trim_start_matches('/');
        files.extend(Path::new(path).ancestors().map(|group| Path::new(root).join(group).join(name)));
    }
    files
}

/// Returns the limit in a file. "max" (v2) does not parse; v1 uses a number near 2^63 for no limit, above any
/// RAM.
fn limit_bytes(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{MachineSizes, limit_files, ram_bytes};
    use crate::{ConfigSources, LoadedConfig};
    use mlgw_common::limits::{GIB, MIB};

    #[test]
    fn hot_capacity_is_nine_tenths_less_ten_gib_on_a_large_disk() {
        let loaded = LoadedConfig::load(&ConfigSources::default()).unwrap();
        let on = |disk| {
            let machine = MachineSizes { memory_bytes: GIB, disk_bytes: Some(disk) };
            loaded.config.hot_capacity_bytes(&machine)
        };
        assert_eq!(on(100 * GIB), 100 * GIB / 10 * 9);
        assert_eq!(on(1000 * GIB), 1000 * GIB / 10 * 9 - 10 * GIB);
    }

    #[test]
    fn a_small_machine_keeps_its_memory_and_its_disk() {
        let loaded = LoadedConfig::load(&ConfigSources::default()).unwrap();
        let machine = MachineSizes { memory_bytes: 512 * MIB, disk_bytes: Some(256 * MIB) };
        assert_eq!(loaded.config.hot_reserve_bytes(&machine), 32 * MIB);
        assert_eq!(loaded.config.hot_segment_bytes(&machine), 4 * MIB);
        let large = MachineSizes { disk_bytes: Some(1000 * GIB), ..machine };
        assert_eq!(loaded.config.hot_segment_bytes(&large), 256 * MIB);
        let mut small = loaded.config.clone();
        small.hot.capacity = super::super::Auto::Is(super::super::ByteSize(640 * MIB));
        assert_eq!(small.hot_segment_bytes(&large), 10 * MIB);
        assert_eq!(loaded.config.catalogue_log_bytes_max(&machine), 16 * MIB);
        assert_eq!(loaded.derived("catalogue.cache_bytes", &machine), Some(32 * MIB));
        assert!(loaded.config.memory_bytes(&machine) < 200 * MIB);
        assert!(loaded.config.memory_capacity_bytes(&machine) < 52 * MIB);
        let large = MachineSizes { memory_bytes: 1000 * GIB, ..machine };
        assert_eq!(loaded.derived("memory.capacity", &large), Some(4 * GIB));
        assert_eq!(loaded.derived("s3.listen", &machine), None);
    }

    #[test]
    fn reads_the_files_of_both_cgroup_versions() {
        let files = limit_files("11:cpu:/x\n7:rdma,memory:/a/b\n0::/c\n");
        let files: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(ram_bytes("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16384));
    }
}
