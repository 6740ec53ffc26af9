//! Resource usage of the process, as reported by the operating system.

use std::fs;

/// Resources of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// CPU time since the start, user and system.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Open files and connections.
    pub open_files: u64,
    /// Maximum number of open files.
    pub open_files_max: u64,
}

impl ProcessUsage {
    /// Reads the current usage from the operating system; unavailable values are 0.
    #[must_use]
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        let page_bytes = rustix::param::page_size() as u64;
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        // The open directory handle is counted, too.
        let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
        Self {
            cpu_seconds: cpu_ticks(&stat) as f64 / ticks_per_second,
            resident_bytes: field(&stat, 23) * page_bytes,
            open_files: open.saturating_sub(1),
            open_files_max: files.unwrap_or(u64::MAX),
        }
    }
}

fn cpu_ticks(stat: &str) -> u64 {
    field(stat, 13) + field(stat, 14)
}

/// Returns field `at` of /proc/self/stat, counted from 0. The second field is a name in parentheses, which
/// may contain any characters.
fn field(stat: &str, at: usize) -> u64 {
    let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    behind_name.split(' ').nth(at - 2).and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{ProcessUsage, cpu_ticks, field};

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 1000 5000000 77 1844674407";
        assert_eq!((cpu_ticks(stat), field(stat, 23)), (300, 77));
        assert_eq!(field("", 23), 0);
    }

    #[test]
    fn this_process_takes_something() {
        let now = ProcessUsage::now();
        assert!(now.resident_bytes > 1 << 20 && now.open_files >= 3, "{now:?}");
        assert!(now.open_files_max > now.open_files, "{now:?}");
    }
}
