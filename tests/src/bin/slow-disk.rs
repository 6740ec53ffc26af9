//! The slow disk as a program, for benchmarks and by hand: `mlgw-slow-disk BACKING MOUNT_POINT`.
//!
//! The program prints the mount point once the mount is usable, and unmounts it on SIGTERM or SIGINT. No
//! process may use the mount by then; otherwise the program reports it and exits with status 1, and the mount
//! is unusable.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use mlgw_tests::proxy::units;
use mlgw_tests::slow_disk::{Caching, DiskPace, SlowDisk};
use tokio::signal::unix::{SignalKind, signal};

/// Pass-through mount of a directory, as slow as a disk of one spindle.
#[derive(Parser)]
struct Arguments {
    /// The directory that all calls pass through to
    backing: PathBuf,
    /// The directory on which it is mounted
    mount_point: PathBuf,
    /// Bytes read or written per second, as 150MB; 0 for no limit
    #[arg(long, default_value = "150MB", value_parser = units::bytes)]
    bytes_per_second: u64,
    /// The cost of a sync, and of a request that does not continue the last one, as 8ms
    #[arg(long, default_value = "8ms", value_parser = units::duration)]
    seek: Duration,
    /// Let the kernel cache and read ahead, as it does with any disk; otherwise every call arrives at the
    /// disk
    #[arg(long)]
    page_cache: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let Arguments { backing, mount_point, bytes_per_second, seek, page_cache } = arguments;
    let mut ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let caching = if page_cache { Caching::PageCache } else { Caching::Direct };
    let disk = SlowDisk::mount(&backing, &mount_point, DiskPace { bytes_per_second, seek }, caching)?;
    {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", mount_point.display())?;
        out.flush()?;
    }
    let [terminate, interrupt] = &mut ends;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let at = mount_point.display();
    disk.unmount().map_err(|error| io::Error::new(error.kind(), format!("cannot unmount {at}: {error}")))
}
