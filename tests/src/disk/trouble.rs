//! Trouble of a disk that lasts until it is ended.

/// Trouble of a disk. Files keep the content that they had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskTrouble {
    None,
    /// At most `free_bytes` bytes are free: ENOSPC for a call that needs more than a file has already.
    /// Truncation and deletes free space. Names need none.
    Full {
        free_bytes: u64,
    },
    /// EIO for each call on this directory or below it that reads, changes or syncs. The empty name is the
    /// whole disk.
    Failing {
        below: String,
    },
}

impl DiskTrouble {
    /// The free bytes, if they are few.
    pub(crate) const fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Full { free_bytes } => Some(*free_bytes),
            Self::None | Self::Failing { .. } => None,
        }
    }

    /// Takes free bytes. Returns false if there are fewer.
    pub(super) const fn take_bytes(&mut self, bytes: u64) -> bool {
        let Self::Full { free_bytes } = self else { return true };
        match free_bytes.checked_sub(bytes) {
            Some(left) => {
                *free_bytes = left;
                true
            }
            None => false,
        }
    }

    pub(super) const fn free(&mut self, bytes: u64) {
        if let Self::Full { free_bytes } = self {
            *free_bytes = free_bytes.saturating_add(bytes);
        }
    }

    /// True if calls on the inode with this path fail.
    pub(super) fn fails(&self, path: impl FnOnce() -> String) -> bool {
        let Self::Failing { below } = self else { return false };
        let path = path();
        let rest = path.strip_prefix(below.as_str());
        below.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[test]
fn calls_fail_below_the_directory_only() {
    let trouble = DiskTrouble::Failing { below: "node-3/segments".to_owned() };
    let fails = |path: &str| trouble.fails(|| path.to_owned());
    assert!(fails("node-3/segments") && fails("node-3/segments/1.seg"));
    assert!(!fails("node-3") && !fails("node-3/segments-2/1.seg") && !fails("node-3/catalogue"));
    let whole = DiskTrouble::Failing { below: String::new() };
    assert!(whole.fails(|| "node-3".to_owned()));
    assert!(!DiskTrouble::Full { free_bytes: 0 }.fails(|| "node-3".to_owned()));
}
