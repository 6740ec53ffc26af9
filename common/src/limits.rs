//! Every limit of mlgw that is not a setting, on one page.
//!
//! A limit that a client can meet is S3's own where S3 has one. The relations that other code
//! relies on are asserted at compile time at the end of the page.

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
/// Tags of one object.
pub const OBJECT_TAGS_MAX: usize = 10;
/// Longest tag key, in characters.
pub const TAG_KEY_CHARS_MAX: usize = 128;
/// Longest tag value, in characters.
pub const TAG_VALUE_CHARS_MAX: usize = 256;

/// Timelines that one data directory can descend from: restores, rebuilds and recoveries of one server.
pub const INCARNATIONS_MAX: usize = 1000;

// Objects and uploads.

/// Largest body of one PutObject, UploadPart or PostObject.
pub const PUT_BYTES_MAX: u64 = 5 * GIB;
/// Largest object, however it was made.
pub const OBJECT_BYTES_MAX: u64 = 50 * 1024 * GIB;
/// Highest part number, hence most parts of one upload.
pub const PART_NUMBER_MAX: u16 = 10_000;
/// Smallest part of a completed upload, but for its last.
pub const PART_BYTES_MIN: u64 = 5 * MIB;
/// The key that makes upload ids of body ids: one of AES-128.
pub const UPLOAD_KEY_BYTES: usize = 16;
/// Most keys or uploads or parts on one page of a listing.
pub const PAGE_KEYS_MAX: usize = 1000;
/// Most keys of one DeleteObjects.
pub const DELETE_OBJECTS_KEYS_MAX: usize = 1000;
/// Most buckets of one owner.
pub const BUCKETS_MAX: usize = 10_000;

// Requests.

/// Largest XML body. A complete of 10,000 parts with a checksum each is about 2.5 MiB.
pub const XML_BODY_BYTES_MAX: usize = 4 * MIB as usize;
/// Largest sum of the form fields before the file of a PostObject (S3 allows 20 KB).
pub const POST_FORM_BYTES_MAX: usize = 20_000;
/// Largest head of a request.
pub const REQUEST_HEAD_BYTES_MAX: usize = 64 * KIB as usize;
/// Most header lines of a request. The limit that counts is in bytes; this one bounds the memory of very
/// short lines, each of which takes more than its bytes.
pub const REQUEST_HEADERS_MAX: usize = 1024;
/// The most that is read of a body that a refused request still sends, so that its connection can be used
/// again; the connections of longer ones close. Go's server has the same.
pub const UNREAD_BODY_BYTES_MAX: u64 = 256 * KIB;
/// Longest line of aws-chunked framing (a size, a signature, a trailer).
pub const CHUNK_LINE_BYTES_MAX: usize = 4 * KIB as usize;

// Open files.

/// The smallest limit of open files that the server starts with.
pub const FILES_MIN: u64 = 512;
/// Descriptors that S3 connections leave to files, outgoing connections and the other listeners. If the limit
/// is small, they leave half of it.
pub const FILES_KEPT_MAX: u64 = 4096;

// What is told of requests.

/// Lines of the access log that wait to be written; one more is dropped and counted. A line holds a
/// path and a user agent: some hundred bytes, 4 KiB at most.
pub const ACCESS_LOG_QUEUE_LINES: usize = 4096;
/// Spans of traces that wait to be sent; further ones are dropped.
pub const TRACE_QUEUE_SPANS: usize = 4096;
/// Buckets that have metrics of their own: the largest ones; the rest is counted together.
pub const METRIC_BUCKETS_MAX: usize = 200;

// Memory for requests (the setting `limits.memory_bytes` is its sum).

/// What a connection at work is charged: about 30 KiB of buffers and state, measured.
pub const AWAKE_CONNECTION_BYTES: u64 = 32 * KIB;
/// Largest body or answer that the charge of its connection covers.
pub const SMALL_BODY_BYTES: usize = 16 * KIB as usize;
/// The most blocks of 64 KiB that are asked for at once: the largest document, as it came and as it
/// was understood, and what the connection holds of it meanwhile.
pub const HELD_BLOCKS_MAX: u32 = (2 * XML_BODY_BYTES_MAX as u64 / BLOCK_BYTES) as u32 + 2;
/// The least memory that a server works with, whatever it is told.
pub const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// What the program takes beside all that is counted. Measured in 256 MiB: 10 MiB when idle, and 45 MiB with
/// 5,000 connections, a full memory tier and twelve clients that write and read 16 MiB each. Another 28 MiB
/// are the kernel's: its tables, and pages that wait to be written to the disk.
pub const PROCESS_BYTES: u64 = 80 * MIB;
/// With less memory than this the server asks for no huge pages. The allocator advises them for its heap, and
/// one small buffer then takes up to 2 MiB: a server in 256 MiB took 232 MiB instead of 100 and was killed.
pub const HUGE_PAGES_MEMORY_MIN: u64 = 2 * GIB;
/// What a connection at rest takes: its task, its socket and what TLS keeps of it, measured.
pub const RESTING_CONNECTION_BYTES: u64 = 7 * KIB;

// Segments.

/// Longest payload of one chunk: the unit of append, buffered and checked before it is written.
pub const CHUNK_BYTES_MAX: u64 = MIB;
/// The unit that carries a checksum, and later is compressed and encrypted, in logical bytes.
pub const BLOCK_BYTES: u64 = 64 * KIB;
/// Fixed part of a chunk's record header.
pub const RECORD_HEADER_BYTES: usize = 64;
/// A body of at least this size, and an upload beyond its first such stretch, is written to
/// segments of its own, so that freeing it is an unlink.
pub const OWN_SEGMENT_BYTES_MIN: u64 = 64 * MIB;

// MD5 in lockstep.

/// Bodies that are hashed side by side, a chunk of each. Twice as many take longer, for there are not
/// registers enough.
pub const LOCKSTEP_LANES_MAX: usize = 8;
/// Bytes that lie unhashed until others come along. With more, nobody is waited for: a chunk for each lane.
pub const UNHASHED_BYTES_MAX: usize = LOCKSTEP_LANES_MAX * CHUNK_BYTES_MAX as usize;

// The hot tier.

/// Waiting bytes of the writer of small chunks; beyond it appends wait their turn. At 1 GB/s the
/// disk drains this in 8 ms.
pub const SMALL_QUEUE_BYTES_MAX: usize = 8 * MIB as usize;
/// Waiting bytes of all writers of large chunks together, segments of one body included. One sync
/// per 32 MiB is long amortised; more would only be memory.
pub const LARGE_QUEUE_BYTES_MAX: usize = 32 * MIB as usize;
/// Waiting bytes of the writer of chunks that compaction moves: two of its batches.
pub const MOVED_QUEUE_BYTES_MAX: usize = 8 * MIB as usize;
/// A chunk of at least this size goes to the segment of large chunks, so that small ones do not
/// wait behind its bytes.
pub const LARGE_CHUNK_BYTES_MIN: usize = 256 * KIB as usize;
/// Segments of one body that may be open at once, each with its thread. A body that finds none
/// free shares the segment of large chunks.
pub const OWN_SEGMENTS_OPEN_MAX: usize = 16;
/// Their number on the smallest machine.
pub const OWN_SEGMENTS_OPEN_MIN: usize = 4;
/// What of a body with a segment of its own is written to the disk at a time, from memory that each such
/// segment has while it is open.
pub const DIRECT_BUFFER_BYTES: usize = 2 * MIB as usize;
/// A segment of one body without appends for this long is sealed.
pub const OWN_IDLE_SECS: u64 = 60;
/// Records of one write call: each takes two of the 1,024 buffers that `pwritev` accepts.
pub const WRITE_RECORDS_MAX: usize = 512;
/// Bytes appended to an open segment before the catalogue is told how much of it is on stable
/// media. A start reads at most this and one batch of every segment left open: 40 MiB of 20.
pub const MARK_BYTES: u64 = 2 * MIB;
/// Wanted bytes up to which a read is first tried in place, from the page cache. Verifying and
/// copying this much takes about 40 µs, what a thread hop and back costs.
pub const INLINE_READ_BYTES_MAX: u64 = 256 * KIB;
/// Requests that a disk has in hand at once, reads and batches of writes, of clients and of the server
/// itself; each read holds a thread of the blocking pool. Further ones wait in lanes. An NVMe disk is at its
/// best with so many, and one place is free again every quarter of a millisecond when each request takes 16
/// ms.
pub const DISK_PLACES: usize = 64;
/// Wanted bytes up to which compressed blocks are decompressed where their request runs, when the page cache
/// has them: about 60 µs.
pub const INLINE_UNPACK_BYTES_MAX: u64 = BLOCK_BYTES;
/// Places at a disk that slow reads of one file may hold: with a quarter, a file that never answers leaves
/// three to others.
pub const FILE_SLOW_PLACES_MAX: usize = DISK_PLACES / 4;
/// Slow reads of one file that are under way, after which no other begins. Each holds a thread of the
/// blocking pool, which has 512.
pub const FILE_SLOW_READS_MAX: usize = DISK_PLACES;
/// What of a compressed chunk is read at a time. While it is decompressed it is in memory twice; so with what
/// is being sent it takes no more than two pieces of what is stored as it came. Who was granted less has,
/// while he has a place at the disk, one block more.
pub const UNPACKED_PIECE_BYTES: u64 = 2 * BLOCK_BYTES;
/// What decompresses blocks is kept for the next read, so many times: about 160 KiB each, as many as a disk
/// has places.
pub const UNPACKERS_KEPT_MAX: usize = DISK_PLACES;
/// Segment files kept open for reading.
pub const OPEN_FILES_MAX: usize = 512;
/// Bytes between the key and the checksum table of a record, kept for later encodings (stored
/// block lengths, a wrapped data key).
pub const EXTRA_BYTES_MAX: usize = 1024;
/// How long a write that finds no room on the disk waits for it before its body is read. With the wait of a
/// chunk below it stays under the ten seconds after which clients give up.
pub const ROOM_WAIT_MS: u64 = 4000;
/// How long a chunk of a body waits for room on the disk.
pub const APPEND_ROOM_WAIT_MS: u64 = 3000;
/// How often housekeeping looks at free space and at idle segments of one body.
pub const HOUSEKEEPING_MS: u64 = 1000;
/// Dead chunks that the catalogue remembers for compaction, in 4 bytes each.
pub const DEAD_CHUNKS_MAX: usize = 1 << 20;
/// Bytes that compaction reads before it writes what of them is referred to: its memory.
pub const MOVE_BATCH_BYTES_MAX: u64 = 4 * MIB;
/// Chunks that compaction moves at once, each a command in the catalogue's queue.
pub const MOVE_BATCH_CHUNKS_MAX: usize = 128;
/// How often a request appends again what lay in a segment that was fenced meanwhile.
pub const APPEND_AGAIN_MAX: usize = 5;
/// How often a reader looks its body up again when a segment is gone. Each time it was moved since
/// the last look, which takes longer than looking.
pub const LOOK_AGAIN_MAX: usize = 8;

// The log of decisions.

/// Decisions that are remembered: at about 200 bytes each a megabyte of memory; four times that when all have
/// long keys and errors.
pub const DECISIONS_MAX: usize = 4096;
/// Of what went wrong with one so much is remembered.
pub const DECISION_WHY_BYTES_MAX: usize = 256;
/// Length at which the file that they are kept in is set aside; one more is kept. Lines are about 250 bytes.
pub const DECISIONS_FILE_BYTES_MAX: u64 = 2 * MIB;

// Datasets and jobs.

/// Most datasets.
pub const DATASETS_MAX: usize = 1000;
/// Longest name of a dataset, in bytes.
pub const DATASET_NAME_LEN_MAX: usize = 63;
/// Slices of one dataset.
pub const SLICES_MAX: usize = 100;
/// Sources of one dataset.
pub const SOURCES_MAX: usize = 16;
/// Records of jobs that are kept of each dataset, the one at work included; at about 300 bytes each they are
/// 6 MB in all.
pub const JOBS_KEPT_MAX: usize = 20;
/// Jobs that a node is at; further ones wait.
pub const JOBS_RUNNING_MAX: usize = 4;
/// Objects that are fetched before anybody asks for them at a time, on a node.
pub const AHEAD_OBJECTS_MAX: usize = 64;
/// Large blocks whose memory is left to those who have asked, while others are fetched ahead or wait to be
/// shared.
pub const FETCH_BLOCKS_SPARE: usize = 12;
/// Recorded traces that are kept; the oldest go when another is begun.
pub const TRACES_MAX: usize = 16;
/// Bytes of one file of a trace, about.
pub const TRACE_FILE_BYTES: u64 = 32 * MIB;
/// Bytes of one file of what is recalled after a restart, about.
pub const DIARY_FILE_BYTES: u64 = 2 * MIB;
/// Of the room for clean copies so many percent may be pinned: with more, making room for others would be
/// going round in circles.
pub const PINNED_PERCENT_MAX: u64 = 50;
/// Objects that a job has in hand at once. At 20 ms a round trip and 1 MiB each that is 3.2 GB/s.
pub const JOB_OBJECTS_MAX: usize = 64;
/// Of the memory for blocks in flight ([`FETCH_BLOCKS_MAX`]) jobs take so many; the rest is for who reads.
pub const JOB_BLOCKS_MAX: usize = 16;
/// Objects that a sync imports at once; each has up to five chunks in memory.
pub const SYNC_OBJECTS_MAX: usize = 8;

// Policies.

/// Versions of the running policy that are remembered: at about 500 bytes each half a megabyte.
pub const POLICY_VERSIONS_MAX: usize = 1000;
/// Bounds that have moved by what was measured: one for each rule, and some more.
pub const POLICY_LEARNT_MAX: usize = 2048;
/// Of the newest so many the files are kept, too, and can be rolled back to.
pub const POLICY_FILES_KEPT_MAX: usize = 100;
/// Files of a version that a person wrote: policies, and as many plugins of frameworks.
pub const POLICY_FILES_MAX: usize = 16;
/// Bytes of one of them, as the language takes.
pub const POLICY_FILE_BYTES_MAX: usize = MIB as usize;
/// Bytes of all files of a version: four of the largest size. A hundred times the longest recipe.
pub const POLICY_BYTES_MAX: usize = 4 * MIB as usize;
/// Bytes of what is said of a version: by the person, of what changed, and a file's name.
pub const POLICY_SAID_BYTES_MAX: usize = 1024;
/// Objects that one request hears about, or looks at, to say what a policy would do. Two policies of a
/// hundred rules each take some seconds for so many.
pub const PLAN_OBJECTS_MAX: usize = 10_000;
/// Plans that wait to be gone on with; of more the oldest are forgotten.
pub const PLANS_MAX: usize = 8;
/// Objects of which a plan tells for each rule and action.
pub const PLAN_EXAMPLES: usize = 3;
/// Keys that one request tries a policy on.
pub const TRIED_KEYS_MAX: usize = 10_000;
/// Keys of which the answer tells.
pub const TRIED_KEYS_SHOWN_MAX: usize = 1_000;
/// Objects times epochs of a workload that a server generates to simulate on. Names of objects that are not
/// read twice are in memory: 150 MB at most, of the day of a cluster.
pub const SIMULATED_READS_MAX: u64 = 1 << 20;
/// Blocks that the requests of a simulation in a server ask for: at some 100 bytes each 200 MB.
pub const SIMULATED_BLOCKS_MAX: usize = 1 << 21;
/// Sizes of the cache that one simulation in a server tries.
pub const SIMULATED_CACHES_MAX: usize = 16;
/// Keys of all access plans together, twice as many as one may have: 140 MB in the policy engine, and their
/// names.
pub const ACCESS_PLAN_KEYS_MAX: u64 = 1 << 22;
/// Objects that rules pin at once: at some 150 bytes each 15 MB.
pub const RULE_PINS_MAX: usize = 100_000;
/// Objects whose moves are ordered in one round; the others come in the next.
pub const ROUND_OBJECTS_MAX: usize = 100_000;
/// Segments of one order of a rule.
pub const ORDER_SEGMENTS_MAX: usize = 64;
/// Objects of which copies are let go of in one round.
pub const ROUND_EVICTIONS_MAX: usize = 10_000;
/// Datasets and checkpoints that rules speak of as a whole.
pub const AREAS_MAX: usize = 10_000;
/// Checkpoints that wait to be deleted.
pub const DOOMED_MAX: usize = 1_000;
/// Runs of which it is remembered how far their checkpoints are from each other; of others all stay where one
/// in so many is to.
pub const SPACINGS_MAX: usize = 10_000;
/// Objects of checkpoints that are deleted in one round.
pub const ROUND_DELETIONS_MAX: usize = 1_000;
/// Most small files of a folder that are read for names of checkpoints before a checkpoint is deleted. If
/// there are more, nothing that they may name is deleted.
pub const NAMING_FILES_MAX: usize = 1_000;
/// Bytes of these that are read.
pub const NAMING_BYTES_MAX: u64 = 16 * MIB;
/// Keys of one folder that are visited to find them: some seconds of work.
pub const NAMING_KEYS_MAX: usize = 1_000_000;
/// Folders that are searched for them in one pass.
pub const NAMING_FOLDERS_MAX: usize = 10_000;
/// Workloads that one request shows, as many as are remembered.
pub const WORKLOADS_SHOWN_MAX: usize = 1000;

// Bound buckets.

/// What of an origin's object is fetched, kept and let go of as one. Objects of at most this are fetched
/// whole.
pub const COPY_BLOCK_BYTES: u64 = 8 * MIB;
/// Blocks of one answer that are fetched at once: three connections of 60 MB/s fill a link of 200 MB/s.
pub const FETCH_AHEAD_BLOCKS: u64 = 4;
/// Blocks of more than [`FETCH_SMALL_BYTES_MAX`] that are fetched at once for all answers, and held in memory
/// until they are read or kept.
pub const FETCH_BLOCKS_MAX: usize = 32;
/// Their number on the smallest machine: two answers that read ahead.
pub const FETCH_BLOCKS_MIN: usize = 8;
/// Objects that origins are asked about at once. At 20 ms a round trip that is 12,800 small objects a second.
pub const FETCH_CONTACTS_MAX: usize = 256;
/// Least bytes a second that an origin must send while it is waited for.
pub const ORIGIN_RATE_MIN: u64 = KIB;
/// Largest block that takes no more memory than the place of the request that asked about its object.
pub const FETCH_SMALL_BYTES_MAX: u64 = MIB;

// Catalogue.

/// Extents that an object record holds itself; a body of more has `extent` pages.
pub const INLINE_EXTENTS_MAX: usize = 4;
/// Entries of one `extent` page. At about 24 bytes an entry a page stays near 3 KiB, a read of
/// one RocksDB block.
pub const EXTENT_PAGE_ENTRIES_MAX: usize = 128;
/// Commands of one log entry. Larger batches save nothing more (the sync is long amortised) and
/// delay the first of them.
pub const BATCH_COMMANDS_MAX: usize = 256;
/// Encoded bytes of one log entry's commands, but for a single larger command.
pub const BATCH_BYTES_MAX: usize = MIB as usize;
/// Commands of a group under way, waiting ones included; beyond it callers wait, and are refused when
/// that lasts.
pub const PROPOSE_QUEUE_MAX: usize = 4096;
/// Their encoded bytes, but for a single larger command: thirty completes of 10,000 parts, or five
/// thousand puts. Decoded they take about as much again.
pub const PROPOSE_BYTES_MAX: usize = 8 * MIB as usize;
/// One memtable of the log store, which has two. A purge flushes it, so it also bounds the
/// write-ahead log that a purge leaves behind.
pub const LOG_MEMTABLE_BYTES: usize = 8 * MIB as usize;
/// Body ids a node takes from the catalogue at a time. A restart forgets the rest of the range;
/// 2^64 ids last for 2^48 restarts.
pub const BODY_ID_LEASE: u64 = 1 << 16;
/// Bad blocks that are listed: 300 bytes each, most of them the key, in memory and in a file.
pub const QUARANTINED_MAX: usize = 10_000;
/// Places of damage that wait to be looked at; who looks finds the others beside them.
pub const SUSPECTS_MAX: usize = 1000;
/// Rows that one command of a background job may touch.
pub const JOB_ROWS_MAX: usize = 512;

const _: () = {
    assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
    assert!(OWN_SEGMENT_BYTES_MIN.is_multiple_of(CHUNK_BYTES_MAX));
    assert!(COPY_BLOCK_BYTES.is_multiple_of(CHUNK_BYTES_MAX));
    assert!(PART_BYTES_MIN >= CHUNK_BYTES_MAX);
    assert!(2 * JOB_BLOCKS_MAX <= FETCH_BLOCKS_MAX && 4 * JOB_OBJECTS_MAX <= FETCH_CONTACTS_MAX);
    assert!(DELETE_OBJECTS_KEYS_MAX * KEY_LEN_MAX < XML_BODY_BYTES_MAX);
    assert!(HELD_BLOCKS_MAX as u64 * BLOCK_BYTES <= MEMORY_BYTES_MIN / 4 * 3);
    assert!(INLINE_EXTENTS_MAX < EXTENT_PAGE_ENTRIES_MAX);
    assert!(SMALL_QUEUE_BYTES_MAX as u64 > 2 * CHUNK_BYTES_MAX);
    assert!(LARGE_QUEUE_BYTES_MAX as u64 > 2 * CHUNK_BYTES_MAX);
    assert!(MOVED_QUEUE_BYTES_MAX as u64 >= 2 * MOVE_BATCH_BYTES_MAX);
    assert!(LARGE_CHUNK_BYTES_MIN as u64 <= CHUNK_BYTES_MAX);
    assert!(INLINE_READ_BYTES_MAX >= BLOCK_BYTES);
    assert!(KEY_LEN_MAX <= u16::MAX as usize && EXTRA_BYTES_MAX <= u16::MAX as usize);
    assert!(2 * WRITE_RECORDS_MAX <= 1024);
    assert!(DIRECT_BUFFER_BYTES.is_multiple_of(64 * KIB as usize));
    assert!(OWN_SEGMENTS_OPEN_MAX * DIRECT_BUFFER_BYTES <= 32 * MIB as usize);
    assert!(POLICY_FILES_KEPT_MAX <= POLICY_VERSIONS_MAX && POLICY_FILE_BYTES_MAX <= POLICY_BYTES_MAX);
    assert!(POLICY_BYTES_MAX < PROPOSE_BYTES_MAX);
    assert!((4 + OWN_SEGMENTS_OPEN_MAX as u64) * MARK_BYTES <= 64 * MIB);
};

/// Longest name in a policy: of a rule, a template or a profile.
pub const POLICY_NAME_BYTES_MAX: usize = 64;
