//! Limits of mlgw that are not settings.
//!
//! A limit that a client can reach is S3's own if S3 has one. Relations on which other code relies are
//! asserted at compile time at the end of the file.

/// 1 KiB in bytes.
pub const KIB: u64 = 1024;
/// 1 MiB in bytes.
pub const MIB: u64 = 1024 * KIB;
/// 1 GiB in bytes.
pub const GIB: u64 = 1024 * MIB;

// Names.

/// Longest object key, in bytes of UTF-8.
pub const KEY_LEN_MAX: usize = 1024;
/// Shortest bucket name.
pub const BUCKET_NAME_LEN_MIN: usize = 3;
/// Longest bucket name.
pub const BUCKET_NAME_LEN_MAX: usize = 63;
/// User metadata of one object: the sum of the lengths of its names and values.
pub const USER_METADATA_BYTES_MAX: usize = 2048;
/// Maximum number of tags of one object.
pub const OBJECT_TAGS_MAX: usize = 10;
/// Longest tag key, in characters.
pub const TAG_KEY_CHARS_MAX: usize = 128;
/// Longest tag value, in characters.
pub const TAG_VALUE_CHARS_MAX: usize = 256;

/// Maximum number of timelines that one data directory can descend from: restores, rebuilds and recoveries of
/// a server.
pub const INCARNATIONS_MAX: usize = 1000;

// Objects and uploads.

/// Largest body of one PutObject, UploadPart or PostObject.
pub const PUT_BYTES_MAX: u64 = 5 * GIB;
/// Largest object, by any method of upload.
pub const OBJECT_BYTES_MAX: u64 = 50 * 1024 * GIB;
/// Highest part number, which is also the maximum number of parts of an upload.
pub const PART_NUMBER_MAX: u16 = 10_000;
/// Smallest part of a completed upload, except for the last.
pub const PART_BYTES_MIN: u64 = 5 * MIB;
/// Bytes of the AES-128 key that encrypts body ids into upload ids.
pub const UPLOAD_KEY_BYTES: usize = 16;
/// Maximum number of keys, uploads or parts on one page of a listing.
pub const PAGE_KEYS_MAX: usize = 1000;
/// Maximum number of keys of one DeleteObjects.
pub const DELETE_OBJECTS_KEYS_MAX: usize = 1000;
/// Maximum number of buckets of one owner.
pub const BUCKETS_MAX: usize = 10_000;
/// Maximum number of keys at which one new bucket is split: it then has four ranges in each of 16 groups.
pub const SPLIT_KEYS_MAX: usize = 63;
/// Maximum number of such keys in all buckets. Every node has them in memory, 16 MiB at most.
pub const SPLIT_KEYS_IN_ALL_MAX: usize = 1 << 14;

// Requests.

/// Largest XML body. A complete request of 10,000 parts with a checksum each is about 2.5 MiB.
pub const XML_BODY_BYTES_MAX: usize = 4 * MIB as usize;
/// Largest sum of the form fields before the file of a PostObject (S3 allows 20 KB).
pub const POST_FORM_BYTES_MAX: usize = 20_000;
/// Largest head of a request.
pub const REQUEST_HEAD_BYTES_MAX: usize = 64 * KIB as usize;
/// Maximum number of header lines of a request. The effective limit is the one in bytes; this one bounds the
/// memory of very short lines, each of which takes more memory than its bytes.
pub const REQUEST_HEADERS_MAX: usize = 1024;
/// Addresses and networks of proxies in the configuration. Each is compared with the peer of a request.
pub const TRUSTED_PROXIES_MAX: usize = 64;
/// Largest header of the PROXY protocol. Up to its addresses it has at most 52 bytes; the rest are fields
/// that are not read, such as the name in a certificate.
pub const PROXY_HEADER_BYTES_MAX: usize = 4 * KIB as usize;
/// Bytes read from the rest of a refused request's body, so that its connection can be reused; a connection
/// with a longer rest is closed. Go's server has the same limit.
pub const UNREAD_BODY_BYTES_MAX: u64 = 256 * KIB;
/// Longest line of aws-chunked framing (a size, a signature, a trailer).
pub const CHUNK_LINE_BYTES_MAX: usize = 4 * KIB as usize;

// Requests that are forwarded to another member.

/// Largest encoded head of a forwarded request: the largest head of a client, the host of an absolute target,
/// and the fixed fields.
pub const FORWARDED_HEAD_BYTES_MAX: usize = REQUEST_HEAD_BYTES_MAX + 8 * KIB as usize;
/// Largest encoded verdict of a member about a forwarded request.
pub const FORWARD_VERDICT_BYTES_MAX: usize = KIB as usize;
/// Largest encoded head of the answer to a forwarded request.
pub const FORWARDED_ANSWER_HEAD_BYTES_MAX: usize = 64 * KIB as usize;
/// Longest id of a forwarded request.
pub const REQUEST_ID_BYTES_MAX: usize = 32;
/// Members that are tried for one request. A group has at most five voters.
pub const FORWARD_ATTEMPTS_MAX: usize = 5;
/// Time that a member has for its verdict before the next one is tried.
pub const FORWARD_VERDICT_WAIT_MS: u64 = 600;
/// Time until some member has accepted a request. With one more round trip it stays below the two seconds
/// after which a cluster without a quorum answers 503.
pub const FORWARD_ACCEPT_WAIT_MS: u64 = 1800;
/// Time that a member waits for a newer range map, or for memory, before it gives its verdict.
pub const FORWARD_ADMIT_WAIT_MS: u64 = 250;
/// Time for which a duty node serves remote-backed buckets after a quorum confirmed it, in milliseconds.
pub const DUTY_LEASE_MS: u64 = 3_000;
/// Time that another node waits beyond a lease, because clocks run at different rates.
pub const DUTY_LEASE_MARGIN_MS: u64 = 500;
/// Interval at which a duty node has itself confirmed.
pub const DUTY_RENEW_MS: u64 = 1_000;
/// Age of the confirmation of the system group's rows, such as access keys, up to which a node answers
/// requests, in milliseconds.
pub const SYSTEM_ROWS_AGE_MS_MAX: u64 = 10_000;
/// Time that another node waits beyond that age, because clocks run at different rates.
pub const SYSTEM_ROWS_MARGIN_MS: u64 = 2_000;
/// Interval at which a node has these rows confirmed, also without requests.
pub const SYSTEM_ROWS_CONFIRM_MS: u64 = 3_000;
/// Age of the confirmation of the rows that a PUT reads, in milliseconds. Its change is decided when it is
/// applied, so older rows cost an answer that the client repeats, and no consistency.
pub const PUT_ROWS_AGE_MS_MAX: u64 = 20;
/// Longest time from the last byte of a request that changes an origin until the origin has carried it out,
/// or never will. In a cluster such a request is given up then, and the next duty node waits as long.
pub const ORIGIN_CHANGE_MS_MAX: u64 = 30_000;
/// Longest time for which the kernel sends bytes of such a request that the origin does not acknowledge, in a
/// cluster. The rest of [`ORIGIN_CHANGE_MS_MAX`] is for the origin.
pub const ORIGIN_SEND_MS_MAX: u64 = 10_000;
/// Largest object that an origin copies in one request, in a cluster: at 40 MB/s it takes 27 s.
pub const FENCED_COPY_BYTES_MAX: u64 = GIB;
/// Bytes of the parts in which a larger object is copied.
pub const COPIED_PART_BYTES: u64 = 256 * MIB;
/// Shortest time for which a member that failed is tried after all others. It doubles with each failure.
pub const FORWARD_SUSPECT_MIN_MS: u64 = 500;
/// Longest time for which a member that failed is tried after all others.
pub const FORWARD_SUSPECT_MAX_MS: u64 = 16_000;
/// Members whose failures are remembered; the largest cluster has as many.
pub const FORWARD_SUSPECTS_MAX: usize = 4096;

// Open files.

/// Smallest limit of open files with which the server starts.
pub const FILES_MIN: u64 = 512;
/// Descriptors that S3 connections leave for files, outgoing connections and the other listeners. If the
/// limit of open files is small, they leave half of it.
pub const FILES_KEPT_MAX: u64 = 4096;

// Access log, traces and metrics.

/// Lines of the access log that are queued for writing; further ones are dropped and counted. A line holds a
/// path and a user agent: some hundred bytes, 4 KiB at most.
pub const ACCESS_LOG_QUEUE_LINES: usize = 4096;
/// Trace spans that are queued for sending; further ones are dropped.
pub const TRACE_QUEUE_SPANS: usize = 4096;
/// Buckets that have metrics of their own: the largest ones. The others are counted together.
pub const METRIC_BUCKETS_MAX: usize = 200;

// Memory for requests (the setting `limits.memory_bytes` is its sum).

/// Memory charged for a connection that executes a request: about 30 KiB of buffers and state, measured.
pub const ACTIVE_CONNECTION_BYTES: u64 = 32 * KIB;
/// Largest body or response that the charge of its connection covers.
pub const SMALL_BODY_BYTES: usize = 16 * KIB as usize;
/// Maximum number of 64 KiB blocks that are reserved at once: for the largest document, encoded and decoded,
/// and the connection's buffers of it meanwhile.
pub const RESERVED_BLOCKS_MAX: u32 = (2 * XML_BODY_BYTES_MAX as u64 / BLOCK_BYTES) as u32 + 2;
/// Minimum memory of a server, even if the setting is lower.
pub const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// Memory of the process besides all that is accounted. Measured in 256 MiB: 10 MiB when idle, and 45 MiB
/// with 5,000 connections, a full memory tier and twelve clients that write and read 16 MiB each. Another 28
/// MiB belong to the kernel: its tables, and dirty pages.
pub const PROCESS_BYTES: u64 = 80 * MIB;
/// Memory of an idle connection: its task, its socket and its TLS state, measured.
pub const IDLE_CONNECTION_BYTES: u64 = 7 * KIB;

// Segments.

/// Longest payload of one chunk: the unit of append, buffered and checked before it is written.
pub const CHUNK_BYTES_MAX: u64 = MIB;
/// Unit of checksums, compression and later encryption, in logical bytes.
pub const BLOCK_BYTES: u64 = 64 * KIB;
/// Fixed part of a chunk's record header.
pub const RECORD_HEADER_BYTES: usize = 64;
/// Bodies of at least this size, and uploads beyond their first part of this size, are written to dedicated
/// segments, so that freeing them is an unlink.
pub const DEDICATED_SEGMENT_BYTES_MIN: u64 = 64 * MIB;

// MD5 in lockstep.

/// Bodies that are hashed in parallel, a chunk of each. Twice as many are slower, because there are not
/// enough registers.
pub const LOCKSTEP_LANES_MAX: usize = 8;
/// Bytes that may wait unhashed for other bodies. With more there is no wait, because every lane has a chunk.
pub const UNHASHED_BYTES_MAX: usize = LOCKSTEP_LANES_MAX * CHUNK_BYTES_MAX as usize;

// The hot tier.

/// Queued bytes of the writer of small chunks; beyond that, appends wait. At 1 GB/s the disk drains this in 8
/// ms.
pub const SMALL_QUEUE_BYTES_MAX: usize = 8 * MIB as usize;
/// Queued bytes of all writers of large chunks together, dedicated segments included. One sync per 32 MiB is
/// amortised well; more would only cost memory.
pub const LARGE_QUEUE_BYTES_MAX: usize = 32 * MIB as usize;
/// Queued bytes of the writer of chunks that compaction moves: two of its batches.
pub const MOVED_QUEUE_BYTES_MAX: usize = 8 * MIB as usize;
/// Chunks of at least this size go to the segment of large chunks, so that small ones do not wait behind
/// their bytes.
pub const LARGE_CHUNK_BYTES_MIN: usize = 256 * KIB as usize;
/// Maximum number of dedicated segments that are open at once, each with its thread. A body for which none is
/// free shares the segment of large chunks.
pub const DEDICATED_SEGMENTS_OPEN_MAX: usize = 16;
/// The same limit on the smallest machine.
pub const DEDICATED_SEGMENTS_OPEN_MIN: usize = 4;
/// Bytes of a body with a dedicated segment that are written to disk at a time, from a buffer that each such
/// segment has while it is open.
pub const DIRECT_BUFFER_BYTES: usize = 2 * MIB as usize;
/// Seconds without appends after which a dedicated segment is sealed.
pub const DEDICATED_SEGMENT_IDLE_SECS: u64 = 60;
/// Maximum number of records of one write call: each takes two of the 1,024 buffers that `pwritev` accepts.
pub const WRITE_RECORDS_MAX: usize = 512;
/// Bytes appended to an open segment before the catalogue records how much of it is on stable media. A start
/// reads at most this and one batch of every segment that was left open: 40 MiB for 20 segments.
pub const MARK_BYTES: u64 = 2 * MIB;
/// Requested bytes up to which a read is first tried on the calling thread, from the page cache. Verifying
/// and copying this much takes about 40 µs, the cost of a switch to another thread and back.
pub const INLINE_READ_BYTES_MAX: u64 = 256 * KIB;
/// Requests that a disk executes at once: reads and batches of writes, of clients and of the server itself.
/// Each read holds a thread of the blocking pool. Further ones wait in lanes. An NVMe disk reaches its best
/// throughput with this many. When each request takes 16 ms, a slot becomes free every quarter of a
/// millisecond.
pub const DISK_SLOTS: usize = 64;
/// Requested bytes up to which compressed blocks in the page cache are decompressed on the thread of their
/// request: about 60 µs.
pub const INLINE_DECOMPRESS_BYTES_MAX: u64 = BLOCK_BYTES;
/// Disk slots that slow reads of one file may hold: a quarter, so that a file that never answers leaves three
/// quarters to others.
pub const FILE_SLOW_SLOTS_MAX: usize = DISK_SLOTS / 4;
/// Maximum number of slow reads in flight of one file; further ones are not started. Each holds a thread of
/// the blocking pool, which has 512.
pub const FILE_SLOW_READS_MAX: usize = DISK_SLOTS;
/// Bytes of a compressed chunk that are read at a time. During decompression they are in memory twice;
/// together with the data being sent they take no more than two pieces of uncompressed data. A request that
/// was granted less memory has one block more while it holds a disk slot.
pub const DECOMPRESSED_PIECE_BYTES: u64 = 2 * BLOCK_BYTES;
/// Maximum number of idle decompressors that are kept for reuse, about 160 KiB each: as many as a disk has
/// slots.
pub const IDLE_DECOMPRESSORS_MAX: usize = DISK_SLOTS;
/// Segment files that are kept open for reading.
pub const OPEN_FILES_MAX: usize = 512;
/// Bytes between the key and the checksum table of a record, reserved for later encodings (stored block
/// lengths, a wrapped data key).
pub const EXTRA_BYTES_MAX: usize = 1024;
/// Time that a write waits for free disk space before its body is read. Together with the wait of a chunk
/// below it stays under the ten seconds after which clients give up.
pub const DISK_SPACE_WAIT_MS: u64 = 4000;
/// Time that a chunk of a body waits for free disk space.
pub const APPEND_SPACE_WAIT_MS: u64 = 3000;
/// Interval at which housekeeping checks free space and idle dedicated segments.
pub const HOUSEKEEPING_MS: u64 = 1000;
/// Dead chunks that the catalogue remembers for compaction, in 4 bytes each.
pub const DEAD_CHUNKS_MAX: usize = 1 << 20;
/// Bytes that compaction reads before it writes the referenced ones among them: its memory.
pub const MOVE_BATCH_BYTES_MAX: u64 = 4 * MIB;
/// Chunks that compaction moves at once, each with a command in the catalogue's queue.
pub const MOVE_BATCH_CHUNKS_MAX: usize = 128;
/// Number of times that a request appends data again whose segment was fenced meanwhile.
pub const APPEND_RETRIES_MAX: usize = 5;
/// Number of times that a reader looks its body up again when a segment is gone. Each time the data was moved
/// since the last lookup, and a move takes longer than a lookup.
pub const LOOKUP_RETRIES_MAX: usize = 8;

// Decision log.

/// Decisions that are kept in memory: at about 200 bytes each a megabyte; four times that if all have long
/// keys and errors.
pub const DECISIONS_MAX: usize = 4096;
/// Bytes of error text kept per decision.
pub const DECISION_ERROR_BYTES_MAX: usize = 256;
/// Length at which the decision file is rotated; one rotated file is kept. Lines are about 250 bytes.
pub const DECISIONS_FILE_BYTES_MAX: u64 = 2 * MIB;

// Datasets and jobs.

/// Maximum number of datasets.
pub const DATASETS_MAX: usize = 1000;
/// Longest name of a dataset, in bytes.
pub const DATASET_NAME_LEN_MAX: usize = 63;
/// Maximum number of slices of one dataset.
pub const SLICES_MAX: usize = 100;
/// Maximum number of sources of one dataset.
pub const SOURCES_MAX: usize = 16;
/// Job records that are kept of each dataset, including the active one; at about 300 bytes each they are 6 MB
/// in all.
pub const JOBS_KEPT_MAX: usize = 20;
/// Jobs that run on a node at once; further ones are queued.
pub const JOBS_RUNNING_MAX: usize = 4;
/// Objects that a node reads ahead at a time.
pub const READ_AHEAD_OBJECTS_MAX: usize = 64;
/// Large blocks whose memory is reserved for blocks that clients wait for, while others are read ahead or
/// wait to be shared.
pub const FETCH_BLOCKS_RESERVED: usize = 12;
/// Recorded traces that are kept; starting another one deletes the oldest.
pub const TRACES_MAX: usize = 16;
/// Approximate bytes of one trace file.
pub const TRACE_FILE_BYTES: u64 = 32 * MIB;
/// Smallest size limit of a trace: two files.
pub const TRACE_BYTES_MIN: u64 = 2 * TRACE_FILE_BYTES;
/// Default size limit of a trace.
pub const TRACE_BYTES_DEFAULT: u64 = GIB;
/// Approximate bytes of one file of the access journal, which is replayed after a restart.
pub const ACCESS_JOURNAL_FILE_BYTES: u64 = 2 * MIB;
/// Percentage of the space for clean copies that may be pinned: with more, evicting for new copies would
/// thrash.
pub const PINNED_PERCENT_MAX: u64 = 50;
/// Objects that a job processes at once. At 20 ms a round trip and 1 MiB each that is 3.2 GB/s.
pub const JOB_OBJECTS_MAX: usize = 64;
/// Share of jobs in the blocks in flight ([`FETCH_BLOCKS_MAX`]); the rest is for reads.
pub const JOB_BLOCKS_MAX: usize = 16;
/// Objects that a sync imports at once; each has up to five chunks in memory.
pub const SYNC_OBJECTS_MAX: usize = 8;

// Policies.

/// Versions of the running policy that are kept: half a megabyte at about 500 bytes each.
pub const POLICY_VERSIONS_MAX: usize = 1000;
/// Bounds that measurements have adjusted: one for each rule, and some more.
pub const POLICY_LEARNT_MAX: usize = 2048;
/// Number of newest versions whose files are kept too, so that they can be rolled back to.
pub const POLICY_FILES_KEPT_MAX: usize = 100;
/// Files of a version that are written by hand: policies, and as many framework plugins.
pub const POLICY_FILES_MAX: usize = 16;
/// Bytes of one of these files, which is also the limit of the policy language.
pub const POLICY_FILE_BYTES_MAX: usize = MIB as usize;
/// Bytes of all files of a version: four of the largest size. A hundred times the longest recipe.
pub const POLICY_BYTES_MAX: usize = 4 * MIB as usize;
/// Bytes of each text about a version: its author, its message, its changes, and a file's name.
pub const POLICY_TEXT_BYTES_MAX: usize = 1024;
/// Objects that one plan request reports, or visits, to determine the effects of a policy. Two policies of a
/// hundred rules each take some seconds for this many.
pub const PLAN_OBJECTS_MAX: usize = 10_000;
/// Plans that wait to be continued; the oldest are dropped when there are more.
pub const PLANS_MAX: usize = 8;
/// Example objects in a plan for each rule and action.
pub const PLAN_EXAMPLES_MAX: usize = 3;
/// Keys on which one request tries a policy.
pub const TRIED_KEYS_MAX: usize = 10_000;
/// Keys that the response to such a request lists.
pub const TRIED_KEYS_SHOWN_MAX: usize = 1_000;
/// Objects times epochs of a workload that a server generates for a simulation. Names of objects that are not
/// read twice are in memory: at most 150 MB, for the day of a cluster.
pub const SIMULATED_READS_MAX: u64 = 1 << 20;
/// Blocks that the requests of a simulation in a server read: 200 MB at some 100 bytes each.
pub const SIMULATED_BLOCKS_MAX: usize = 1 << 21;
/// Cache sizes that one simulation in a server tries.
pub const SIMULATED_CACHES_MAX: usize = 16;
/// Jobs of one generated workload.
pub const SIMULATED_JOBS_MAX: u16 = 255;
/// Bytes of a workload's name in an access plan.
pub const ACCESS_PLAN_WORKLOAD_BYTES_MAX: usize = 256;
/// Keys of all access plans together, twice as many as one plan may have: 140 MB in the policy engine, and
/// their names.
pub const ACCESS_PLAN_KEYS_MAX: u64 = 1 << 22;
/// Objects that rules pin at once: 15 MB at some 150 bytes each.
pub const RULE_PINS_MAX: usize = 100_000;
/// Objects whose moves are requested in one pass; the others follow in the next.
pub const PASS_OBJECTS_MAX: usize = 100_000;
/// Segments of one move requested by a rule.
pub const MOVE_REQUEST_SEGMENTS_MAX: usize = 64;
/// Objects whose copies are evicted in one pass.
pub const PASS_EVICTIONS_MAX: usize = 10_000;
/// Datasets and checkpoints that rules address as a whole.
pub const AREAS_MAX: usize = 10_000;
/// Maximum number of pending deletions of checkpoints.
pub const PENDING_DELETIONS_MAX: usize = 1_000;
/// Runs for which the distance between checkpoints is remembered; for other runs, all checkpoints are kept
/// where a rule keeps one in so many.
pub const SPACINGS_MAX: usize = 10_000;
/// Objects of checkpoints that are deleted in one pass.
pub const PASS_DELETIONS_MAX: usize = 1_000;
/// Maximum number of small files of a folder that are read for names of checkpoints before a checkpoint is
/// deleted. If there are more, no checkpoint that they may name is deleted.
pub const NAMING_FILES_MAX: usize = 1_000;
/// Bytes of these files that are read.
pub const NAMING_BYTES_MAX: u64 = 16 * MIB;
/// Keys of one folder that are visited to find these files: some seconds of work.
pub const NAMING_KEYS_MAX: usize = 1_000_000;
/// Folders that are searched for these files in one pass.
pub const NAMING_FOLDERS_MAX: usize = 10_000;
/// Workloads that one request returns, which is also the number that is remembered.
pub const WORKLOADS_SHOWN_MAX: usize = 1000;

// Remote-backed buckets.

/// Unit in which an origin's object is fetched, cached and evicted. Objects of at most this size are fetched
/// whole.
pub const COPY_BLOCK_BYTES: u64 = 8 * MIB;
/// Blocks that are fetched at once for one response: three connections of 60 MB/s fill a link of 200 MB/s.
pub const FETCH_AHEAD_BLOCKS: u64 = 4;
/// Blocks of more than [`FETCH_SMALL_BYTES_MAX`] that are fetched at once for all responses, and held in
/// memory until they are read or cached.
pub const FETCH_BLOCKS_MAX: usize = 32;
/// The same limit on the smallest machine: two responses that read ahead.
pub const FETCH_BLOCKS_MIN: usize = 8;
/// Objects for which origins are queried at once. At 20 ms a round trip that is 12,800 small objects a
/// second.
pub const ORIGIN_QUERIES_MAX: usize = 256;
/// Minimum bytes a second that an origin must send while a request waits for it.
pub const ORIGIN_RATE_MIN: u64 = KIB;
/// Largest block that needs no memory beyond the slot of the request that queried its object.
pub const FETCH_SMALL_BYTES_MAX: u64 = MIB;

// Catalogue.

/// Extents that an object record holds inline; a body with more has `extent` pages.
pub const INLINE_EXTENTS_MAX: usize = 4;
/// Entries of one `extent` page. At about 24 bytes per entry a page stays near 3 KiB, a read of one RocksDB
/// block.
pub const EXTENT_PAGE_ENTRIES_MAX: usize = 128;
/// Commands of one log entry. Larger batches save nothing more (the sync is amortised well) and delay their
/// first command.
pub const BATCH_COMMANDS_MAX: usize = 256;
/// Encoded bytes of one log entry's commands, except for a single larger command.
pub const BATCH_BYTES_MAX: usize = MIB as usize;
/// Commands of a group in flight, including queued ones. Beyond that, callers wait, and are refused when the
/// wait takes too long.
pub const PROPOSE_QUEUE_MAX: usize = 4096;
/// Encoded bytes of the same commands, except for a single larger command: thirty completions of 10,000
/// parts, or five thousand puts. Decoded they take about as much again.
pub const PROPOSE_BYTES_MAX: usize = 8 * MIB as usize;
/// Bytes of a memtable of the log store, which has two. A purge flushes it, so it also bounds the write-ahead
/// log that a purge leaves.
pub const LOG_MEMTABLE_BYTES: usize = 8 * MIB as usize;
/// Least bytes of a memtable of the catalogue's state, which has two for each group.
pub const MEMTABLE_BYTES_MIN: usize = 2 * MIB as usize;
/// Bytes of a call between members of a Raft group, and of its answer.
pub const MEMBER_CALL_BYTES_MAX: usize = 16 * MIB as usize;
/// Log entries of one append call.
pub const APPEND_ENTRIES_MAX: usize = 4096;
/// Bytes of the head of a snapshot that is sent to another member: its position, membership and files.
pub const SNAPSHOT_HEAD_BYTES_MAX: usize = MIB as usize;
/// Files of a snapshot that is sent to another member. A state of 100 GiB in tables of 64 MiB has 1,600.
pub const SNAPSHOT_FILES_MAX: usize = 16_384;
/// Bytes of a snapshot that are read from a file and sent at a time.
pub const SNAPSHOT_PIECE_BYTES: usize = 256 * KIB as usize;
/// Commands whose outcomes are kept while a proposal to another node has no outcome yet: 8 MB at some 128
/// bytes each.
pub const KEPT_OUTCOMES_MAX: usize = 1 << 16;
/// Raft groups with a member on one node.
pub const NODE_GROUPS_MAX: usize = 256;
/// Locks of allotments of quotas: one quota in so many waits for the allotment of another one.
pub const ALLOTMENT_LOCKS: usize = 16;
/// Buckets and access keys whose usage in the groups of other nodes is kept: 0.3 MB at some 300 bytes each.
pub const USAGE_SUMS_MAX: usize = 1024;
/// Largest id of a Raft group: a start keeps facts for every lower id.
pub const GROUP_ID_MAX: u32 = (1 << 16) - 1;
/// Bytes of log that a learner may lack when it becomes a voter: it receives them within a second.
pub const PROMOTION_LAG_BYTES_MAX: u64 = 4 * MIB;
/// Maximum number of object groups of a server without peers.
pub const OBJECT_GROUPS_MAX: u64 = 16;
/// Minimum number of object groups of a new cluster: each of three nodes leads one.
pub const CLUSTER_OBJECT_GROUPS: u32 = 3;
/// Body ids that a node leases from the catalogue at a time. A restart skips the rest of the range; 2^64 ids
/// last for 2^48 restarts.
pub const BODY_ID_LEASE: u64 = 1 << 16;
/// Bad blocks that are listed: 300 bytes each, mostly the key, in memory and in a file.
pub const QUARANTINED_MAX: usize = 10_000;
/// Queued locations of suspected damage; checking one location finds the others near it.
pub const SUSPECTS_MAX: usize = 1000;
/// Rows that one command of a background job may touch.
pub const JOB_ROWS_MAX: usize = 512;

// The cluster.

/// Longest file of the starts of peers: [`NODES_MAX`] entries of at most 130 bytes.
pub const STARTS_FILE_BYTES_MAX: u64 = MIB;
/// Longest file with the certificate of a node and those of authorities, each under 1 KiB.
pub const NODE_FILE_BYTES_MAX: u64 = 64 * KIB;
/// Days for which a certificate of a node is valid.
pub const CERTIFICATE_DAYS: i64 = 365;
/// Days before the end of a certificate from which an operator is alerted.
pub const CERTIFICATE_ALERT_DAYS: i64 = 30;
/// Seconds by which a certificate begins before it is signed, for nodes whose clocks are behind.
pub const CERTIFICATE_BACKDATED_SECS: i64 = 3600;
/// Deviation of the clock of a node from the median, in milliseconds, from which the node is not healthy.
pub const CLOCK_SKEW_UNHEALTHY_MS: u64 = 500;
/// Deviation, in milliseconds, from which the node refuses writes and does nothing that is due by time.
pub const CLOCK_SKEW_REFUSED_MS: u64 = 5_000;
/// Longest round trip, in milliseconds, of an answer by which clocks are compared. It is wrong by half of it
/// at most, so that equal clocks are never found to deviate.
pub const CLOCK_ROUND_TRIP_MS_MAX: u64 = 2 * CLOCK_SKEW_UNHEALTHY_MS;
/// Duration of a sync, in milliseconds, from which the disk of a node is slow.
pub const SYNC_SLOW_MS: u64 = 1_000;
/// Time without a slow sync, in milliseconds, after which the disk of a node is not slow any more.
pub const SYNC_CALM_MS: u64 = 10_000;
/// Free bytes below which a node is full: it follows no new segments and leads no group.
pub const NODE_FULL_BYTES: u64 = 4 * CHUNK_BYTES_MAX;
/// Free bytes from which a full node is not full any more.
pub const NODE_ROOMY_BYTES: u64 = 2 * NODE_FULL_BYTES;
/// Age, in milliseconds, up to which a comparison of clocks confirms that of this node.
pub const CLOCK_CHECK_MS_MAX: u64 = 10_000;
/// Days for which the certificate of an authority is valid: twenty years. `rotate-ca` replaces it earlier.
pub const AUTHORITY_DAYS: i64 = 20 * 365;
/// Authorities that a node can trust at once. The catalogue has at most [`AUTHORITIES_MAX`]; a later version
/// may have more.
pub const TRUSTED_AUTHORITIES_MAX: usize = 4;
/// Longest request for a certificate: a version, a point of 65 bytes, a signature of at most 72.
pub const CERTIFICATE_REQUEST_BYTES_MAX: usize = 160;
/// Longest text of a join token, which has 125 bytes.
pub const JOIN_TOKEN_BYTES_MAX: usize = 160;
/// Seconds for which a join token is valid.
pub const JOIN_TOKEN_SECS: i64 = 3600;
/// Longest address of a node: a DNS name of 253 bytes, a colon and a port.
pub const PEER_ADDRESS_BYTES_MAX: usize = 259;
/// Maximum number of settings of a node that are compared with those of the other nodes.
pub const NODE_SETTINGS_MAX: usize = 512;
/// Longest name of such a setting: `upstream.` and the name of an upstream, which has 63 bytes at most.
pub const SETTING_NAME_BYTES_MAX: usize = 80;
/// Nodes whose addresses one node asks another one for at once.
pub const ADDRESSES_MAX: usize = 32;
/// Largest hello of a handshake: an address, and less than 100 bytes of numbers; or a refusal.
pub const HANDSHAKE_BYTES_MAX: usize = 4 * KIB as usize;
/// Longest text of a refusal by a peer or by its services; a longer one is cut.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 2 * KIB as usize;
/// Time for a whole dial of a peer, and on the side that accepts for TLS and the handshake.
pub const PEER_HANDSHAKE_MS: u64 = 10_000;
/// First wait after a dial that failed. It doubles with every further one.
pub const PEER_REDIAL_MS_MIN: u64 = 50;
/// Longest wait between two dials.
pub const PEER_REDIAL_MS_MAX: u64 = 2000;
/// Interval between pings on a connection to a peer, also without traffic.
pub const PEER_PING_MS: u64 = 5000;
/// Time after which a connection whose ping is not answered is closed.
pub const PEER_PING_TIMEOUT_MS: u64 = 10_000;
/// Accepted connections that have not passed the handshake. Each lasts at most [`PEER_HANDSHAKE_MS`], or a
/// minute without a certificate; further ones are closed at once.
pub const PEER_STRANGERS_MAX: usize = 256;
/// Largest request or answer of a call between peers.
pub const PEER_CALL_BYTES_MAX: usize = 16 * MIB as usize;
/// Calls in flight on one connection; further ones wait.
pub const PEER_CALLS_MAX: usize = 128;
/// Bytes of requests of calls that one connection reads or executes at once: the largest one, twice.
pub const PEER_CALL_BYTES_IN_FLIGHT_MAX: usize = 2 * PEER_CALL_BYTES_MAX;
/// Streams of forwarded requests on one connection.
pub const PEER_REQUEST_STREAMS_MAX: usize = 1024;
/// Streams of snapshots and copies on one connection, which forwarded requests cannot use.
pub const PEER_TRANSFER_STREAMS_MAX: usize = 16;
/// Streams of appends from one node to another: one for each open segment that the other follows.
pub const PEER_APPEND_STREAMS_MAX: usize = 64;
/// HTTP/2 streams of one connection: all calls and streams, and some whose end is still under way.
pub const PEER_HTTP_STREAMS_MAX: u32 =
    (PEER_CALLS_MAX + PEER_REQUEST_STREAMS_MAX + PEER_TRANSFER_STREAMS_MAX) as u32 + 16;
/// Bytes of a body that one side sends before the other has read them.
pub const PEER_STREAM_WINDOW_BYTES: u32 = 128 * KIB as u32;
/// The same for a connection: the windows of all its streams, so that streams that are not read never stop
/// another one.
pub const PEER_CONNECTION_WINDOW_BYTES: u32 = PEER_HTTP_STREAMS_MAX * PEER_STREAM_WINDOW_BYTES;
/// Exclusive connections from one node to another on one channel. Further requests at the same time share a
/// connection.
pub const PEER_EXCLUSIVE_MAX: usize = 64;
/// Time after which an idle exclusive connection is closed.
pub const PEER_EXCLUSIVE_IDLE_MS: u64 = 30_000;
/// Largest call, and largest head of a stream, on an exclusive connection. Larger calls share a connection,
/// where the bytes in flight have a limit.
pub const PEER_EXCLUSIVE_REQUEST_BYTES_MAX: usize = 256 * KIB as usize;
/// Largest HTTP/2 frame that a node accepts: with its head, four records of TLS. Each frame is written on its
/// own.
pub const PEER_FRAME_BYTES_MAX: u32 = 64 * KIB as u32 - 9;
/// Bytes of a body that are buffered for sending.
pub const PEER_SEND_BUFFER_BYTES: usize = 128 * KIB as usize;
/// Largest list of headers between peers: a path and three numbers.
pub const PEER_HEADER_BYTES_MAX: u32 = 8 * KIB as u32;
/// Largest head of a stream: the head of a request of a client, encoded, with room for its own fields. It
/// must fit into the window, because nothing else is read before it is complete.
pub const PEER_STREAM_HEAD_BYTES_MAX: usize = REQUEST_HEAD_BYTES_MAX + 32 * KIB as usize;
/// Largest request to join, and its answer.
pub const JOIN_BYTES_MAX: usize = 64 * KIB as usize;
/// Requests to join that are executed in a second, on average.
pub const JOINS_PER_SECOND_MAX: u32 = 5;
/// Requests to join that are executed at once after a time without any.
pub const JOINS_BURST_MAX: u32 = 20;
/// Maximum number of nodes: rows of the catalogue, those of removed nodes included. At about 200 bytes each
/// they are less than a megabyte, on every node. The rows of removed nodes make room for new ones.
pub const NODES_MAX: usize = 4096;
/// Nodes that are asked at once for their parts of an answer of the whole cluster.
pub const NODES_ASKED_MAX: usize = 64;
/// Time in which a node answers for its part; without an answer it is listed as silent.
pub const NODE_PART_MS: u64 = 2000;
/// Longest part of a status that one node sends: statistics of all operations and tiers, and findings.
pub const NODE_STATUS_BYTES_MAX: usize = MIB as usize;
/// Longest part of a list that one node sends: [`DECISIONS_MAX`] decisions with keys, rules and errors.
pub const NODE_LIST_BYTES_MAX: usize = 16 * MIB as usize;
/// Bytes of each text about a node: its name, its address (a DNS name has 253 bytes at most), its build.
pub const NODE_TEXT_BYTES_MAX: usize = 320;
/// Bytes of the hash of a node's key, and of a token's secret: SHA-256.
pub const NODE_HASH_BYTES: usize = 32;
/// Join tokens that exist at once. Expired ones are removed when another one is created.
pub const JOIN_TOKENS_MAX: usize = 64;
/// Longest life of a join token: one hour.
pub const JOIN_TOKEN_MS_MAX: i64 = JOIN_TOKEN_SECS * 1000;
/// Addresses of other nodes in the configuration, and in a request to join. One that answers is enough.
pub const CLUSTER_SEEDS_MAX: usize = 64;
/// Ids of bodies and segments that a recovery skips: more than destroyed nodes can have given out.
pub const RECOVERY_SKIPPED_IDS: u64 = 1 << 40;
/// Segments without another copy that the refusal to replace their directory names.
pub const REPLACED_ONLY_COPIES_NAMED_MAX: usize = 20;
/// Nodes of a set: as many as a segment has replicas.
pub const SET_NODES_MAX: usize = 3;
/// Sets of nodes. Nodes share sets if there are more of them.
pub const SETS_MAX: u32 = 256;
/// Sets, besides its own and the first, whose segments records of an object group may refer to. A group that
/// has been in so many is moved no further until its bytes have followed it.
pub const GUEST_SETS_MAX: usize = 8;
/// Segments that may be created after the segments of a set were listed, until the command that ends a guest
/// of the set: the command reads their rows.
pub const GUEST_END_SEGMENTS_MAX: usize = 1024;
/// Certificate authorities of the cluster: the one in use, and the next one while nodes change to it.
pub const AUTHORITIES_MAX: usize = 2;
/// Bytes of an authority's certificate, and of its sealed key. An ECDSA certificate has about 500.
pub const AUTHORITY_BYTES_MAX: usize = 16 * KIB as usize;

const _: () = {
    assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
    assert!(DEDICATED_SEGMENT_BYTES_MIN.is_multiple_of(CHUNK_BYTES_MAX));
    assert!(COPY_BLOCK_BYTES.is_multiple_of(CHUNK_BYTES_MAX));
    assert!(PART_BYTES_MIN >= CHUNK_BYTES_MAX);
    assert!(2 * JOB_BLOCKS_MAX <= FETCH_BLOCKS_MAX && 4 * JOB_OBJECTS_MAX <= ORIGIN_QUERIES_MAX);
    assert!(DELETE_OBJECTS_KEYS_MAX * KEY_LEN_MAX < XML_BODY_BYTES_MAX);
    assert!(RESERVED_BLOCKS_MAX as u64 * BLOCK_BYTES <= MEMORY_BYTES_MIN / 4 * 3);
    assert!(INLINE_EXTENTS_MAX < EXTENT_PAGE_ENTRIES_MAX);
    assert!(SMALL_QUEUE_BYTES_MAX as u64 > 2 * CHUNK_BYTES_MAX);
    assert!(LARGE_QUEUE_BYTES_MAX as u64 > 2 * CHUNK_BYTES_MAX);
    assert!(MOVED_QUEUE_BYTES_MAX as u64 >= 2 * MOVE_BATCH_BYTES_MAX);
    assert!(LARGE_CHUNK_BYTES_MIN as u64 <= CHUNK_BYTES_MAX);
    assert!(INLINE_READ_BYTES_MAX >= BLOCK_BYTES);
    assert!(KEY_LEN_MAX <= u16::MAX as usize && EXTRA_BYTES_MAX <= u16::MAX as usize);
    assert!(2 * WRITE_RECORDS_MAX <= 1024);
    assert!(2 * FORWARD_ADMIT_WAIT_MS < FORWARD_VERDICT_WAIT_MS);
    assert!(2 * FORWARD_VERDICT_WAIT_MS < FORWARD_ACCEPT_WAIT_MS && FORWARD_ACCEPT_WAIT_MS < 2000);
    assert!(2 * DUTY_RENEW_MS < DUTY_LEASE_MS && DUTY_LEASE_MARGIN_MS < DUTY_LEASE_MS);
    assert!(2 * SYSTEM_ROWS_CONFIRM_MS < SYSTEM_ROWS_AGE_MS_MAX);
    assert!(DUTY_LEASE_MARGIN_MS * SYSTEM_ROWS_AGE_MS_MAX <= SYSTEM_ROWS_MARGIN_MS * DUTY_LEASE_MS);
    assert!(2 * ORIGIN_SEND_MS_MAX < ORIGIN_CHANGE_MS_MAX);
    assert!(DIRECT_BUFFER_BYTES.is_multiple_of(64 * KIB as usize));
    assert!(DEDICATED_SEGMENTS_OPEN_MAX * DIRECT_BUFFER_BYTES <= 32 * MIB as usize);
    assert!(POLICY_FILES_KEPT_MAX <= POLICY_VERSIONS_MAX && POLICY_FILE_BYTES_MAX <= POLICY_BYTES_MAX);
    assert!(POLICY_BYTES_MAX < PROPOSE_BYTES_MAX);
    assert!(PEER_STREAM_HEAD_BYTES_MAX + 4 <= PEER_STREAM_WINDOW_BYTES as usize);
    assert!(PEER_CONNECTION_WINDOW_BYTES < 1 << 31);
    assert!(PEER_APPEND_STREAMS_MAX <= PEER_REQUEST_STREAMS_MAX + PEER_TRANSFER_STREAMS_MAX);
    assert!(PEER_CALL_BYTES_IN_FLIGHT_MAX >= PEER_CALL_BYTES_MAX);
    assert!(PEER_EXCLUSIVE_MAX <= PEER_CALLS_MAX && PEER_EXCLUSIVE_MAX <= PEER_STRANGERS_MAX);
    assert!(PEER_EXCLUSIVE_REQUEST_BYTES_MAX >= PEER_STREAM_HEAD_BYTES_MAX);
    assert!(REFUSAL_TEXT_BYTES_MAX + 64 <= HANDSHAKE_BYTES_MAX);
    assert!(PEER_ADDRESS_BYTES_MAX + 100 <= HANDSHAKE_BYTES_MAX);
    assert!(PROPOSE_BYTES_MAX < MEMBER_CALL_BYTES_MAX && SNAPSHOT_HEAD_BYTES_MAX < MEMBER_CALL_BYTES_MAX);
    assert!((4 + DEDICATED_SEGMENTS_OPEN_MAX as u64) * MARK_BYTES <= 64 * MIB);
};

/// Longest name in a policy: of a rule, a template or a profile.
pub const POLICY_NAME_BYTES_MAX: usize = 64;
