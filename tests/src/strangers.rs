//! Directories, segments, logs, states and checkpoints of other servers and timelines, confused as operators
//! confuse them: disks mounted in another order, copied configurations, restored backups, files copied back
//! from a rescue.
//!
//! Files that are not the server's own are refused by name and stay unchanged, and `store check` agrees with
//! the start.
//!
//! - `site`: a server with a hot and a cold directory outside of its data directory, and the objects that it
//!   must serve;
//! - `directories`: whole directories of segments, and their owner marks;
//! - `segments`: single segment files;
//! - `logs`: the write-ahead log;
//! - `catalogues`: states, checkpoints and rebuilds.

mod catalogues;
mod directories;
mod logs;
mod segments;
mod site;
