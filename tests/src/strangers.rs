//! Directories, segments, logs, states and checkpoints of other servers and timelines, as people mix them up:
//! disks mounted in another order, copied configurations, restored backups, files copied back from a rescue.
//!
//! What is not the server's own is refused by name and stays as it is, and `store check` judges as the start
//! does.
//!
//! - `site`: a server with a hot and a cold directory outside of its data directory, and what it must serve;
//! - `directories`: whole directories of segments, and their marks;
//! - `segments`: single files of segments;
//! - `logs`: the write-ahead log;
//! - `catalogues`: states, checkpoints and rebuilds.

mod catalogues;
mod directories;
mod logs;
mod segments;
mod site;
