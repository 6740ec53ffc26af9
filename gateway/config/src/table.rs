//! Table of all settings.
//!
//! A row contains a setting's key, type, default and documentation, and whether it can change at run time.
//! The typed [`Config`], `mlgw config show`, `check` and `example`, the environment variables and
//! docs/CONFIGURATION.md are all generated from it, so they cannot disagree.

use super::network::IpNetwork;
use super::value::{
    Address, Auto, Durability, EtagKind, LogFormat, LogLevel, PrintCredentials, ReplicaQuorum, SettingType,
};
use mlgw_common::ByteSize;
use mlgw_policies::language::Environment;
use mlgw_remote::upstream::UpstreamSettings;
use std::path::PathBuf;
use std::time::Duration;

/// A row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Key in TOML: `s3.listen`, or `data_dir` before the first section.
    pub key: &'static str,
    /// Documentation of the setting.
    pub doc: &'static str,
    /// Default, in text form.
    pub default: &'static str,
    /// Description of valid values, for error messages.
    pub expects: &'static str,
    /// True if SIGHUP applies a new value.
    pub live: bool,
    /// Validates a text. Returns the value in TOML form, or the reason why it is invalid.
    pub check: fn(&str) -> Result<String, String>,
}

impl Setting {
    /// Returns the section, or `None` for a setting before the first section.
    #[must_use]
    pub fn section(&self) -> Option<&'static str> {
        self.key.split_once('.').map(|(section, _)| section)
    }

    /// Returns the key within its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }

    /// Returns the environment variable of the setting.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("MLGW_{}", self.key.replace('.', "__").to_uppercase())
    }
}

/// Iterator over the texts of the settings, in the order of the table, from which [`Config`] is built.
pub(super) struct SettingTexts<'a> {
    texts: std::slice::Iter<'a, String>,
}

impl<'a> SettingTexts<'a> {
    pub(super) fn new(texts: &'a [String]) -> Self {
        Self { texts: texts.iter() }
    }

    pub(super) fn next<T: SettingType>(&mut self) -> Result<T, String> {
        T::from_text(self.texts.next().map_or("", String::as_str))
    }
}

/// Validates a text as a `T` and returns the value in TOML form.
pub(super) fn check<T: SettingType>(text: &str) -> Result<String, String> {
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
        {
            $(
                $(#[doc = $top_doc:literal])+
                $top:ident: $top_type:ty = $top_default:literal, $top_when:ident;
            )*
        }
        $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $Section:ident {
                $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $when:ident;)*
            }
        )*
    ) => {
        /// All settings, typed.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $top_doc])+ pub $top: $top_type,)*
            $($(#[doc = $section_doc])+ pub $section: $Section,)*
            /// Other object stores: origins and spill targets.
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
                expects: <$top_type as SettingType>::EXPECTS,
                live: live!($top_when),
                check: check::<$top_type>,
            },)*
            $($(Setting {
                key: concat!(stringify!($section), ".", stringify!($name)),
                doc: concat!($($doc),+),
                default: $default,
                expects: <$type as SettingType>::EXPECTS,
                live: live!($when),
                check: check::<$type>,
            },)*)*
        ];

        /// Names and documentation of the sections.
        pub const SECTIONS: &[(&str, &str)] =
            &[$((stringify!($section), concat!($($section_doc),+)),)*];

        impl Config {
            pub(super) fn from_texts(mut texts: SettingTexts<'_>) -> Result<Self, String> {
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
        /// Directory of all data of the server. Only one server at a time may use it.
        data_dir: PathBuf = "./mlgw-data", start;
        /// Guarantee of a success response: with `full` data survives power loss, with `os` only the end of
        /// the process.
        durability: Durability = "full", start;
        /// Time for requests in flight to finish after SIGTERM.
        drain_timeout: Duration = "30s", start;
    }
    /// The S3 endpoint.
    s3: S3 {
        /// Address of the S3 endpoint.
        listen: Address = "127.0.0.1:9000", start;
        /// Base domains of virtual-host style requests (`BUCKET.DOMAIN`), besides the host of `s3.listen`.
        domains: Vec<String> = "localhost", start;
        /// Region in responses.
        region: String = "us-east-1", start;
        /// Refuse signatures with another region in their scope.
        region_strict: bool = "false", start;
        /// Accept query strings presigned with Signature Version 2, boto3's default in us-east-1.
        sigv2: bool = "true", start;
        /// ETags of new bodies: `md5`, or `fast`, a random value with the suffix `-1`, which avoids the cost
        /// of MD5 for large uploads.
        etag: EtagKind = "md5", start;
        /// Condition under which `mlgw serve` prints the root credentials to standard output.
        print_credentials: PrintCredentials = "terminal", start;
        /// Addresses and networks of proxies that state the address of their client in `X-Forwarded-For`.
        /// From other addresses this header is ignored. Name no network in which there are clients.
        trusted_proxies: Vec<IpNetwork> = "", start;
        /// Require a header of the PROXY protocol, version 2, on each connection, and refuse connections from
        /// all addresses except those of `s3.trusted_proxies`.
        proxy_protocol: bool = "false", start;
        /// Time after SIGTERM for which requests are still accepted while `/readyz` returns 503, so that load
        /// balancers choose another node; auto is 5s on a node of a cluster and 0s without peers.
        shutdown_delay: Auto<Duration> = "auto", start;
    }
    /// The admin API, for `mlgw` commands and automation. Plain HTTP: leave it on a loopback address.
    admin: Admin {
        /// Address of the admin API.
        listen: Address = "127.0.0.1:9001", start;
    }
    /// Endpoint of probes and Prometheus.
    metrics: MetricsSection {
        /// Address that serves /healthz, /readyz and /metrics instead of `admin.listen`.
        listen: Option<Address> = "", start;
    }
    /// HTTPS for the S3 endpoint. Changed files are loaded within seconds.
    tls: Tls {
        /// PEM file of the certificate and its chain.
        cert: Option<PathBuf> = "", start;
        /// PEM file of the private key.
        key: Option<PathBuf> = "", start;
    }
    /// The memory tier: small objects that were read, in DRAM.
    memory: MemorySection {
        /// Maximum bytes; auto is a tenth of memory, at most 4 GiB. 0 disables the tier.
        capacity: Auto<ByteSize> = "auto", start;
    }
    /// The hot tier: segments on the local disk.
    hot: Hot {
        /// Directory of the segments; unset means `segments` in `data_dir`.
        dir: Option<PathBuf> = "", start;
        /// Maximum bytes of the segments; auto is 90 % of the file system, less 10 GiB if it is larger than
        /// 100 GiB.
        capacity: Auto<ByteSize> = "auto", start;
        /// Length at which a segment file is sealed; at most 1/64 of the file system and of `hot.capacity`.
        segment_bytes: ByteSize = "256MiB", start;
        /// Write bodies of 64 MiB and more past the page cache, so that it keeps the data that is read.
        direct_writes: bool = "true", start;
        /// Free bytes reserved for deletes and the catalogue; auto is 1/16 of the file system, 32 MiB to 1
        /// GiB.
        reserve_bytes: Auto<ByteSize> = "auto", start;
        /// Percent of a segment's bytes that must be dead before its live data is moved and the segment is
        /// released.
        compact_dead_percent: u64 = "30", live;
        /// Maximum bytes of segments that compaction reads per second.
        compact_bytes_per_second: ByteSize = "64MiB", live;
        /// Interval at which compaction scans for dead bytes.
        compact_interval: Duration = "5s", live;
        /// A segment whose dead bytes are expected to double within this time is not compacted yet; 0s: no
        /// segment waits.
        compact_patience: Duration = "1m", live;
        /// Bytes per day that background work may write to this tier's disk, less the bytes that clients
        /// write: clean copies, promoted segments, compaction; 0: no limit.
        flash_bytes_per_day: ByteSize = "0", live;
        /// Bytes per second that the daily scrub of the segments reads; 0: no daily scrub, and a requested
        /// one runs at full speed.
        scrub_bytes_per_second: ByteSize = "10MiB", start;
    }
    /// The cold tier: whole segments that are not read, on slower disks, and the upstream below it. Without
    /// directories there is no cold tier.
    cold: Cold {
        /// Directories of its segments, best one for each disk; they must exist.
        dirs: Vec<PathBuf> = "", start;
        /// Name of the upstream to which segments are spilled: from the cold tier, or from the hot tier if
        /// there is no cold tier. Unset: no spilling to an upstream. In a cluster only node 1 spills
        /// to it, and all storage nodes need its settings.
        upstream: Option<String> = "", start;
        /// Start even if segments are missing because a disk or an upstream is lost; reads of them fail.
        start_without_missing: bool = "false", start;
        /// Percent of a segment's bytes that must be dead before its live data is moved and the segment is
        /// released.
        compact_dead_percent: u64 = "50", live;
        /// Percent of a tier's capacity above which its segments are spilled to the next tier, the least read
        /// first.
        spill_from_percent: u64 = "85", live;
        /// Percent of the capacity at which spilling stops.
        spill_to_percent: u64 = "80", live;
        /// Maximum bytes of segments copied between the tiers per second.
        move_bytes_per_second: ByteSize = "256MiB", live;
    }
    /// Shares of a busy disk: checkpoint writes, inference reads and training reads have equal shares,
    /// background work a quarter of one.
    lanes: LanesSection {
        /// Globs of workloads (named by `x-mlgw-workload`, or `workload/NAME` in the user agent) and of
        /// access keys whose reads are inference; all others are training.
        inference: Vec<String> = "", start;
    }
    /// Remote-backed buckets, and the clean copies of their objects.
    bound: BoundSection {
        /// Directory of the copies; unset means `copies` in `data_dir`.
        dir: Option<PathBuf> = "", start;
        /// Maximum bytes of the copies; auto is half of the hot tier's capacity. Copies are evicted if the
        /// disk runs short of space.
        capacity: Auto<ByteSize> = "auto", start;
        /// Time for which an object's metadata from the origin is valid.
        ttl: Duration = "30s", live;
        /// Time for which the absence of an object at the origin is valid.
        negative_ttl: Duration = "2s", live;
        /// Further time for which copies are served while the origin cannot be reached.
        stale_max: Duration = "24h", live;
        /// Maximum bytes of write-back data that are not at their origins yet; auto is a tenth of the hot
        /// tier's capacity, at most 64 GiB.
        dirty_bytes_max: Auto<ByteSize> = "auto", start;
    }
    /// The running policy: facts about the server for its rules, and policy files that are reloaded when they
    /// change. See POLICIES.md.
    policy: PolicySection {
        /// Environment of the server, for the policies that apply to it.
        environment: Option<Environment> = "", start;
        /// Number of accelerators of the reading machines, for hardware profiles; 0: unknown.
        gpu_count: u64 = "0", start;
        /// Policy files to watch, in descending priority. Unset: the policy of `mlgw policy apply` stays.
        files: Vec<PathBuf> = "", start;
        /// Framework plugins to watch: files, or directories of files.
        frameworks: Vec<PathBuf> = "", start;
        /// Bytes of the log that preserves over a restart how datasets were read, by which workloads and how
        /// far; 0: not preserved.
        remember_bytes: ByteSize = "16MiB", start;
        /// Interval at which learning may move bounds, based on measurements; each move creates a version of
        /// the policy.
        learn_every: Duration = "6h", start;
        /// Interval at which the rules (promote, spill, pin, evict, retain) are applied to all objects; they
        /// are also applied when the policy changes. At least 1s.
        look_every: Duration = "1m", start;
    }
    /// The catalogue: metadata of all objects and segments.
    catalogue: CatalogueSection {
        /// Log bytes after which the state is flushed and the log is truncated; auto is 1/16 of the file
        /// system, 8 MiB to 128 MiB.
        log_bytes_max: Auto<ByteSize> = "auto", start;
        /// Memory of the catalogue: three quarters for blocks of its tables, a quarter for recently read
        /// object records; auto is 1/16 of memory, 16 MiB to 1 GiB.
        cache_bytes: Auto<ByteSize> = "auto", start;
        /// Directory of the checkpoints from which `mlgw store rebuild` starts, best on another disk; unset
        /// means `checkpoints` in `data_dir`.
        checkpoint_dir: Option<PathBuf> = "", start;
        /// Interval between checkpoints while data changes; one is also made before the log is truncated. 0:
        /// no checkpoints.
        checkpoint_interval: Duration = "5m", start;
        /// Raft groups over which new buckets are spread, 1 to 16. Each has a log position, memtables and
        /// tables of its own. The number of groups never falls: a lower value adds none. `mlgw cluster init`
        /// makes at least three groups of objects, and a node of a cluster adds none.
        object_groups: u64 = "1", start;
    }
    /// Connections between the nodes of a cluster, and copies of segments. A server without peers does not
    /// listen here.
    cluster: ClusterSection {
        /// Address at which this node accepts connections of other nodes.
        listen: Address = "127.0.0.1:9002", start;
        /// Address at which other nodes connect to this one; unset means `cluster.listen`.
        address: Option<Address> = "", start;
        /// Addresses of other nodes, which `mlgw cluster join` asks for admission. A start tries them before
        /// the recorded addresses.
        seeds: Vec<Address> = "", start;
        /// Maximum bytes of segments that this node copies from other nodes per second; 0: no limit.
        repair_bytes_per_second: ByteSize = "128MiB", start;
        /// Reads at the node that leads the group of their key cost no round to other nodes. They assume that
        /// the clocks of the nodes run at nearly the same rate, and that no node is paused by a hypervisor.
        lease_reads: bool = "false", start;
        /// Answer GET, HEAD and listings from this node alone while most voters do not answer it. Answers may
        /// be old and have the header `x-mlgw-stale: true`; what is not found here is still a 503.
        read_without_quorum: bool = "false", start;
        /// Nodes that have synced the bytes of a write before it is acknowledged: `two`, or `all` that have a
        /// replica of its segment, which are three while three storage nodes are healthy. With `all`, writes
        /// wait for the slowest of them, and the loss of two nodes at once loses no byte that was
        /// acknowledged before the first loss was noticed.
        write_quorum: ReplicaQuorum = "two", start;
        /// Interval between comparisons of the rows that the members of a Raft group have; 0s: none. Each
        /// member reads all its rows for that, 16 MiB per second. A difference is logged and counted.
        compare_interval: Duration = "1h", start;
    }
    /// Limits of a single client, and of all clients together.
    limits: Limits {
        /// Open S3 connections; further ones receive 503 SlowDown. Few file descriptors or little memory
        /// lower the limit.
        connections: u64 = "10000", start;
        /// Memory for requests; beyond it 503 SlowDown. Auto is a third of the memory, or what is left of it.
        memory_bytes: Auto<ByteSize> = "auto", start;
        /// Percent of that memory for one client address; 100 behind a proxy that hides the clients'
        /// addresses and is not one of `s3.trusted_proxies`.
        client_memory_percent: u64 = "50", start;
        /// Maximum time from the first byte of a request to the end of its head.
        request_head_timeout: Duration = "30s", start;
        /// Time after which a connection without a request is closed.
        idle_timeout: Duration = "5m", start;
        /// Maximum pause within a request's body, or in reading a response; also the window of
        /// `body_rate_min`.
        body_timeout: Duration = "60s", start;
        /// Minimum bytes per second that a client must send or receive during a transfer.
        body_rate_min: ByteSize = "1KiB", start;
    }
    /// The log, written to standard error.
    log: Log {
        /// Format of log lines.
        format: LogFormat = "text", start;
        /// Minimum level of log lines. Levels above `debug` do not log single requests.
        level: LogLevel = "info", live;
        /// Duration in milliseconds above which a request is logged (at most ten lines per second); 0
        /// disables it.
        slow_request_ms: u64 = "1000", live;
    }
    /// The access log: one JSON line per sampled request. No request waits for it.
    access_log: AccessLogSection {
        /// Sampling: one request in this many gets a line. 1 logs all, 100 one in a hundred, 0 none.
        one_in: u64 = "0", live;
        /// Directory of the log; unset means `access` in `data_dir`.
        dir: Option<PathBuf> = "", start;
        /// Length at which the file is rotated.
        file_bytes_max: ByteSize = "64MiB", start;
        /// Number of files kept, including the current one.
        files_max: u64 = "4", start;
    }
    /// OpenTelemetry traces of requests, sent by OTLP over HTTP.
    traces: TracesSection {
        /// URL of a collector, such as `http://127.0.0.1:4318/v1/traces`; unset disables traces.
        endpoint: Option<String> = "", start;
        /// Sampling: one request in this many is traced, besides those with a sampled `traceparent`; 0 traces
        /// only those.
        one_in: u64 = "100", start;
    }
    /// The audit log: one JSON line per change made through the admin API.
    audit: Audit {
        /// Write the audit log.
        enabled: bool = "true", start;
        /// Length at which the file is rotated.
        file_bytes_max: ByteSize = "16MiB", start;
        /// Number of files kept, including the current one.
        files_max: u64 = "8", start;
    }
}
