//! The bounds of the hot tier that are not settings, and the relations other code relies on.

use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, KEY_LEN_MAX, KIB, MIB};

/// Waiting bytes of the writer of small chunks; beyond it appends wait their turn. At 1 GB/s the
/// disk drains this in 8 ms.
pub const SMALL_QUEUE_BYTES_MAX: usize = 8 * MIB as usize;
/// Waiting bytes of all writers of large chunks together, `Own` segments included. One sync per
/// 32 MiB is long amortised; more would only be memory.
pub const LARGE_QUEUE_BYTES_MAX: usize = 32 * MIB as usize;
/// A chunk of at least this size goes to the segment of large chunks, so that small ones do not
/// wait behind its bytes.
pub const LARGE_CHUNK_BYTES_MIN: usize = 256 * KIB as usize;
/// `Own` segments that may be open at once, each with its thread. A body that finds none free
/// shares the segment of large chunks.
pub const OWN_SEGMENTS_OPEN_MAX: usize = 16;
/// An `Own` segment without appends for this long is sealed.
pub const OWN_IDLE_SECS: u64 = 60;
/// Records of one write call: each takes two of the 1,024 buffers that `pwritev` accepts.
pub const WRITE_RECORDS_MAX: usize = 512;
/// Wanted bytes up to which a read is first tried in place, from the page cache. Verifying and
/// copying this much takes about 40 µs, what a thread hop and back costs.
pub const INLINE_READ_BYTES_MAX: u64 = 256 * KIB;
/// Reads that may wait for the disk at once, each holding a thread of the blocking pool.
pub const DISK_READS_MAX: usize = 64;
/// Segment files kept open for reading.
pub const OPEN_FILES_MAX: usize = 512;
/// Bytes between the key and the checksum table of a record, kept for later encodings (stored
/// block lengths, a wrapped data key).
pub const EXTRA_BYTES_MAX: usize = 1024;
/// How often housekeeping looks at free space and at idle `Own` segments.
pub const HOUSEKEEPING_MS: u64 = 1000;

const _: () = {
    assert!(SMALL_QUEUE_BYTES_MAX as u64 > 2 * CHUNK_BYTES_MAX);
    assert!(LARGE_QUEUE_BYTES_MAX as u64 > 2 * CHUNK_BYTES_MAX);
    assert!(LARGE_CHUNK_BYTES_MIN as u64 <= CHUNK_BYTES_MAX);
    assert!(INLINE_READ_BYTES_MAX >= BLOCK_BYTES);
    assert!(KEY_LEN_MAX <= u16::MAX as usize && EXTRA_BYTES_MAX <= u16::MAX as usize);
    assert!(2 * WRITE_RECORDS_MAX <= 1024);
};
