//! The one table of settings.
//!
//! A row gives a setting's key, type, default and line of documentation, and whether it can change
//! while the server runs. The typed [`Config`], `mlgw config show`, `check` and `example`, the
//! environment variables and docs/CONFIGURATION.md all come from it, so they cannot disagree.

use super::value::{Address, Auto, Durability, EtagKind, LogFormat, LogLevel, PrintCredentials, Value};
use mlgw_common::ByteSize;
use mlgw_policies::language::Environment;
use mlgw_remote::upstream::UpstreamSettings;
use std::path::PathBuf;
use std::time::Duration;

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Where it stands in TOML: `s3.listen`, or `data_dir` before the first section.
    pub key: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Its built-in value, in text form.
    pub default: &'static str,
    /// What a value has to look like.
    pub expects: &'static str,
    /// Whether SIGHUP brings a new value into force.
    pub live: bool,
    /// Why a text is not a value of it, or the value as TOML writes it.
    pub check: fn(&str) -> Result<String, String>,
}

impl Setting {
    /// The section, or nothing for a setting before the first section.
    #[must_use]
    pub fn section(&self) -> Option<&'static str> {
        self.key.split_once('.').map(|(section, _)| section)
    }

    /// The key within its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }

    /// The environment variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("MLGW_{}", self.key.replace('.', "__").to_uppercase())
    }
}

/// Hands the fields of [`Config`] their texts in the order of the table.
pub(super) struct Texts<'a> {
    texts: std::slice::Iter<'a, String>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(texts: &'a [String]) -> Self {
        Self { texts: texts.iter() }
    }

    pub(super) fn next<T: Value>(&mut self) -> Result<T, String> {
        T::from_text(self.texts.next().map_or("", String::as_str))
    }
}

/// A text as TOML writes the value that it is.
pub(super) fn check<T: Value>(text: &str) -> Result<String, String> {
    T::from_text(text).map(|value| value.to_toml())
}

macro_rules! live {
    (start) => {
        false
    };
    (live) => {
        true
    };
}

macro_rules! settings {
    (
        { $($(#[doc = $top_doc:literal])+ $top:ident: $top_type:ty = $top_default:literal, $top_when:ident;)* }
        $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $Section:ident {
                $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $when:ident;)*
            }
        )*
    ) => {
        /// Every setting, typed.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $top_doc])+ pub $top: $top_type,)*
            $($(#[doc = $section_doc])+ pub $section: $Section,)*
            /// The object stores of others.
            pub upstreams: Vec<UpstreamSettings>,
        }

        $(
            $(#[doc = $section_doc])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Section {
                $($(#[doc = $doc])+ pub $name: $type,)*
            }
        )*

        /// The table, top-level settings first.
        pub const SETTINGS: &[Setting] = &[
            $(Setting {
                key: stringify!($top),
                doc: concat!($($top_doc),+),
                default: $top_default,
                expects: <$top_type as Value>::EXPECTS,
                live: live!($top_when),
                check: check::<$top_type>,
            },)*
            $($(Setting {
                key: concat!(stringify!($section), ".", stringify!($name)),
                doc: concat!($($doc),+),
                default: $default,
                expects: <$type as Value>::EXPECTS,
                live: live!($when),
                check: check::<$type>,
            },)*)*
        ];

        /// What the sections are for.
        pub const SECTIONS: &[(&str, &str)] =
            &[$((stringify!($section), concat!($($section_doc),+)),)*];

        impl Config {
            pub(super) fn from_texts(mut texts: Texts<'_>) -> Result<Self, String> {
                Ok(Self {
                    $($top: texts.next()?,)*
                    $($section: $Section { $($name: texts.next()?,)* },)*
                    upstreams: Vec::new(),
                })
            }
        }
    };
}

settings! {
    {
        /// Directory of everything the server keeps. One server at a time may use it.
        data_dir: PathBuf = "./mlgw-data", start;
        /// What an answer of success promises: `full` survives power loss, `os` only the end of the process.
        durability: Durability = "full", start;
        /// How long requests in flight may take to finish after SIGTERM.
        drain_timeout: Duration = "30s", start;
    }
    /// The S3 endpoint.
    s3: S3 {
        /// Where the S3 endpoint listens.
        listen: Address = "127.0.0.1:9000", start;
        /// Base domains of virtual-host style requests (`BUCKET.DOMAIN`), besides the host of `s3.listen`.
        domains: Vec<String> = "localhost", start;
        /// Region that answers name.
        region: String = "us-east-1", start;
        /// Refuse signatures whose scope names another region.
        region_strict: bool = "false", start;
        /// Accept query strings presigned with Signature Version 2, boto3's default in us-east-1.
        sigv2: bool = "true", start;
        /// ETags of new bodies: `md5`, or `fast`, a random name with `-1` at its end that spares the MD5 of
        /// large uploads.
        etag: EtagKind = "md5", start;
        /// When `mlgw serve` prints the root credentials to standard output.
        print_credentials: PrintCredentials = "terminal", start;
    }
    /// The admin API, for `mlgw` commands and automation. Plain HTTP: leave it on a loopback address.
    admin: Admin {
        /// Where the admin API listens.
        listen: Address = "127.0.0.1:9001", start;
    }
    /// Where probes and Prometheus read.
    metrics: MetricsSection {
        /// Serves /healthz, /readyz and /metrics here instead of on `admin.listen`.
        listen: Option<Address> = "", start;
    }
    /// HTTPS for the S3 endpoint. Changed files are taken up within seconds.
    tls: Tls {
        /// PEM file of the certificate and its chain.
        cert: Option<PathBuf> = "", start;
        /// PEM file of the private key.
        key: Option<PathBuf> = "", start;
    }
    /// The memory tier: small objects that were read, in DRAM.
    memory: MemorySection {
        /// Bytes it may take; auto is a tenth of memory, at most 4 GiB. 0: none.
        capacity: Auto<ByteSize> = "auto", start;
    }
    /// The hot tier: segments on the local disk.
    hot: Hot {
        /// Directory of the segments; unset means `segments` in `data_dir`.
        dir: Option<PathBuf> = "", start;
        /// Bytes the segments may take; auto is 90 % of the file system, less 10 GiB on one over 100 GiB.
        capacity: Auto<ByteSize> = "auto", start;
        /// Length at which a segment file is sealed; at most 1/64 of the file system and of `hot.capacity`.
        segment_bytes: ByteSize = "256MiB", start;
        /// Whether bodies of 64 MiB and more are written past the page cache, which keeps what is read in it.
        direct_writes: bool = "true", start;
        /// Free bytes kept for deletes and the catalogue; auto is 1/16 of the file system, 32 MiB to 1 GiB.
        reserve_bytes: Auto<ByteSize> = "auto", start;
        /// Percent of a segment's bytes that must be dead before what lives in it is moved and it is
        /// released.
        compact_dead_percent: u64 = "30", live;
        /// Bytes of segments that compaction reads in a second at most.
        compact_bytes_per_second: ByteSize = "64MiB", live;
        /// How often compaction looks for dead bytes.
        compact_interval: Duration = "5s", live;
        /// A segment whose dead bytes double within this time by themselves is left to die; 0s: none is.
        compact_patience: Duration = "1m", live;
        /// Bytes a day that the server may write to this tier's disk by itself, what clients write being
        /// taken off: clean copies, promoted segments, compaction; 0: no bound.
        flash_bytes_per_day: ByteSize = "0", live;
        /// Bytes a second that a daily scrub of the segments reads; 0: none but one that is asked for, as
        /// fast as it can.
        scrub_bytes_per_second: ByteSize = "10MiB", start;
    }
    /// The cold tier: whole segments that nobody reads, on slower disks, and below it an upstream. There is
    /// none without directories.
    cold: Cold {
        /// Directories of its segments, best one for each disk; they must exist.
        dirs: Vec<PathBuf> = "", start;
        /// Name of the upstream that segments are spilled to: out of the cold tier, or out of the hot one
        /// where there is no cold tier. Unset: to none.
        upstream: Option<String> = "", start;
        /// Whether to start although segments are missing because a disk or an upstream is lost; reads of
        /// them fail.
        start_without_missing: bool = "false", start;
        /// Percent of a segment's bytes that must be dead before what lives in it is moved and it is
        /// released.
        compact_dead_percent: u64 = "50", live;
        /// Percent of a tier's room from which on segments of it are spilled to the next one, those that are
        /// read least first.
        spill_from_percent: u64 = "85", live;
        /// Percent down to which they are.
        spill_to_percent: u64 = "80", live;
        /// Bytes of segments that are copied between the tiers in a second at most.
        move_bytes_per_second: ByteSize = "256MiB", live;
    }
    /// Who goes to a disk next when many want to: checkpoint writes, inference reads and training reads have
    /// equal shares, the server's own work a quarter of one.
    lanes: LanesSection {
        /// Globs of workloads (named by `x-mlgw-workload`, or `workload/NAME` in the user agent) and of
        /// access keys whose reads are inference; all others are training.
        inference: Vec<String> = "", start;
    }
    /// Bound buckets, and the copies that are kept of what they front.
    bound: BoundSection {
        /// Directory of the copies; unset means `copies` in `data_dir`.
        dir: Option<PathBuf> = "", start;
        /// Bytes the copies may take; auto is half of what the hot tier may. They make room when the disk is
        /// short of it.
        capacity: Auto<ByteSize> = "auto", start;
        /// How long what an origin says of an object holds.
        ttl: Duration = "30s", live;
        /// How long it holds that an origin has no such object.
        negative_ttl: Duration = "2s", live;
        /// How long copies are served after that while the origin cannot be reached.
        stale_max: Duration = "24h", live;
        /// Bytes that may be written back and not be at their origins yet; auto is the lesser of a tenth of
        /// what the hot tier may take and 64 GiB.
        dirty_bytes_max: Auto<ByteSize> = "auto", start;
    }
    /// The running policy: what it is told of the server, and files that are taken up whenever they change.
    /// See POLICIES.md.
    policy: PolicySection {
        /// Where the server runs: what policies say of this environment holds.
        environment: Option<Environment> = "", start;
        /// Accelerators of the machines that read, for hardware profiles; 0: not said.
        gpu_count: u64 = "0", start;
        /// Files of policy that are watched, the strongest first. Unset: what was applied by `mlgw policy
        /// apply` stays.
        files: Vec<PathBuf> = "", start;
        /// Plugins of frameworks that are watched: files, or directories of such.
        frameworks: Vec<PathBuf> = "", start;
        /// Bytes of the log from which it is known after a restart how datasets were read, by whom and how
        /// far; 0: it is not.
        remember_bytes: ByteSize = "16MiB", start;
        /// How often it is looked whether what was measured moves a bound; each move is a version of the
        /// policy.
        learn_every: Duration = "6h", start;
        /// How often all objects are looked at for what rules say of them (promote, spill, pin, evict,
        /// retain), besides when the policy changes; at least 1s.
        look_every: Duration = "1m", start;
    }
    /// The catalogue: what exists and where its bytes are.
    catalogue: CatalogueSection {
        /// Log bytes after which the state is flushed and the log cut; auto is 1/16 of the file system, 8 MiB
        /// to 128 MiB.
        log_bytes_max: Auto<ByteSize> = "auto", start;
        /// Memory for the catalogue: three quarters for blocks of its tables, a quarter for records of
        /// objects that were read last; auto is 1/16 of memory, 16 MiB to 1 GiB.
        cache_bytes: Auto<ByteSize> = "auto", start;
        /// Directory of the checkpoints that `mlgw store rebuild` starts from, best on another disk; unset
        /// means `checkpoints` in `data_dir`.
        checkpoint_dir: Option<PathBuf> = "", start;
        /// How often a checkpoint is made while anything changes; one is also made before the log is cut. 0:
        /// none is ever made.
        checkpoint_interval: Duration = "5m", start;
    }
    /// What one client, or all of them, may take.
    limits: Limits {
        /// Open S3 connections; one more is answered 503 SlowDown. Few files or little memory lower it.
        connections: u64 = "10000", start;
        /// Memory for requests; beyond it 503 SlowDown. Auto is a third of it all, or what is left.
        memory_bytes: Auto<ByteSize> = "auto", start;
        /// Percent of that memory for one client address; 100 behind a proxy that hides who they are.
        client_memory_percent: u64 = "50", start;
        /// From the first byte of a request to the end of its head.
        request_head_timeout: Duration = "30s", start;
        /// A connection without a request is closed after this long.
        idle_timeout: Duration = "5m", start;
        /// Longest pause within a request's body, or in reading an answer; also the window of
        /// `body_rate_min`.
        body_timeout: Duration = "60s", start;
        /// Bytes a second that a client must send or take while it is waited for.
        body_rate_min: ByteSize = "1KiB", start;
    }
    /// What is logged, to standard error.
    log: Log {
        /// Form of log lines.
        format: LogFormat = "text", start;
        /// Lightest lines that are written. No level below `debug` logs single requests.
        level: LogLevel = "info", live;
        /// A request that takes longer is logged (at most ten a second); 0 logs none.
        slow_request_ms: u64 = "1000", live;
    }
    /// The access log: one JSON line per request that is sampled. No request ever waits for it.
    access_log: AccessLogSection {
        /// One of so many requests gets a line: 1 writes all, 100 one in a hundred, 0 none.
        one_in: u64 = "0", live;
        /// Directory of the log; unset means `access` in `data_dir`.
        dir: Option<PathBuf> = "", start;
        /// Length at which the file is set aside and a new one begun.
        file_bytes_max: ByteSize = "64MiB", start;
        /// Files kept, the one being written included.
        files_max: u64 = "4", start;
    }
    /// OpenTelemetry traces of requests, sent by OTLP over HTTP.
    traces: TracesSection {
        /// Where a collector takes traces, as `http://127.0.0.1:4318/v1/traces`; unset sends none.
        endpoint: Option<String> = "", start;
        /// One of so many requests is traced, besides those whose `traceparent` says so; 0 traces only those.
        one_in: u64 = "100", start;
    }
    /// The audit log: one JSON line per change made through the admin API.
    audit: Audit {
        /// Whether it is written.
        enabled: bool = "true", start;
        /// Length at which the file is set aside and a new one begun.
        file_bytes_max: ByteSize = "16MiB", start;
        /// Files kept, the one being written included.
        files_max: u64 = "8", start;
    }
}
