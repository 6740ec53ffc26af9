//! Sizes in user input: bytes, or a fraction of a workload's bytes.

use mlgw_common::ByteSize;
use std::str::FromStr;

/// Cache sizes if none are given: ten million accesses are replayed for these sizes, by all policies,
/// within a minute.
pub const DEFAULT_CACHES: &str = ".2,.5,.8";

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Fraction of the workload's bytes.
    Share(f64),
    /// Number of bytes.
    Bytes(u64),
}

/// Size of a cache for one workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResolvedCacheSize {
    /// Number of bytes.
    pub capacity_bytes: u64,
    /// The same as a fraction of the workload's bytes.
    pub share: f64,
}

impl CacheSize {
    /// Returns the size for a workload of `whole_bytes`.
    #[must_use]
    pub fn resolve(self, whole_bytes: u64) -> ResolvedCacheSize {
        let (capacity_bytes, share) = match self {
            Self::Share(share) => ((whole_bytes as f64 * share) as u64, share),
            Self::Bytes(bytes) => (bytes, bytes as f64 / whole_bytes.max(1) as f64),
        };
        ResolvedCacheSize { capacity_bytes, share }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a share such as .35 nor a size such as 10GiB");
        if text.ends_with(|c: char| c.is_ascii_alphabetic()) {
            return bytes(text).map(Self::Bytes).map_err(|_| wrong());
        }
        match text.parse() {
            Ok(share) if 0.0 < share && share <= SHARE_MAX => Ok(Self::Share(share)),
            _ => Err(wrong()),
        }
    }
}

/// Largest fraction: a cache needs no more than everything, but a mix has more than its training set.
const SHARE_MAX: f64 = 10.0;

fn bytes(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>()? {
        ByteSize(0) => Err("the size is 0".to_owned()),
        ByteSize(bytes) => Ok(bytes),
    }
}

/// Parses a block size.
///
/// # Errors
/// The expected format.
pub fn block_bytes(text: &str) -> Result<u32, String> {
    let fits = |bytes: u64| u32::try_from(bytes).ok().filter(|bytes| (4096..=1 << 30).contains(bytes));
    bytes(text).ok().and_then(fits).ok_or_else(|| "expected a size from 4KiB to 1GiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{CacheSize, ResolvedCacheSize, block_bytes};

    #[test]
    fn shares_and_sizes() {
        assert_eq!(".35".parse(), Ok(CacheSize::Share(0.35)));
        assert_eq!("10GiB".parse(), Ok(CacheSize::Bytes(10 << 30)));
        for wrong in ["", "0", "-1", "64", "tenGiB", "0GiB", "nan"] {
            assert!(wrong.parse::<CacheSize>().is_err(), "{wrong}");
        }
        for (size, capacity_bytes, share) in
            [(CacheSize::Share(0.5), 50, 0.5), (CacheSize::Bytes(20), 20, 0.2)]
        {
            assert_eq!(size.resolve(100), ResolvedCacheSize { capacity_bytes, share });
        }
        assert_eq!((block_bytes("8MiB"), block_bytes("4").is_err()), (Ok(8 << 20), true));
    }
}
