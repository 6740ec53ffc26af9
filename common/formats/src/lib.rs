//! Encoders and decoders of everything mlgw writes to disk and to its Raft log. Pure, except that
//! [`store_files`] and [`manifest`] read and write files.
//!
//! - [`key`], [`schema`]: keys and records of the catalogue's rows;
//! - [`command`]: changes of the namespace, as the log carries them;
//! - [`cluster_version`]: the version from which every member knows a command;
//! - [`log_batch`], [`log_entry`], [`log_types`]: entries of the log;
//! - [`member_calls`], [`member_snapshot`]: calls and snapshots between the members of a Raft group;
//! - [`append_frames`], [`segment_calls`]: appends to replicas on other nodes, and requests for their bytes;
//! - [`node_load`]: answers to pings between the nodes of a cluster;
//! - [`node_settings`]: digests of settings, which the nodes of a cluster compare;
//! - [`store_files`], [`wal_frames`], [`manifest`]: files of the RocksDB stores below the catalogue;
//! - [`segment_header`], [`segment_record`], [`segment_payload`], [`segment_zstd`]: segment files;
//! - [`decision_entry`], [`decision_lines`], [`decision_words`]: the log of placement decisions;
//! - [`checksum`]: checksums of objects, by algorithm;
//! - [`backup_contents`]: the manifest of a backup.
//!
//! Invariant: decoded values are validated, and malformed bytes return an error. Fuzz targets link this
//! package.

pub mod append_frames;
pub mod backup_contents;
pub mod checksum;
pub mod cluster_version;
pub mod command;
pub mod decision_entry;
pub mod decision_lines;
pub mod decision_words;
pub mod format_error;
pub mod key;
pub mod log_batch;
pub mod log_entry;
pub mod log_types;
pub mod manifest;
pub mod member_calls;
pub mod member_snapshot;
pub mod node_load;
pub mod node_settings;
pub mod schema;
pub mod segment_calls;
pub mod segment_header;
pub mod segment_payload;
pub mod segment_record;
pub mod segment_zstd;
pub mod store_files;
pub mod wal_frames;
