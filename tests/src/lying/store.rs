//! The stored objects, and the naming scheme of the origin.

use std::collections::BTreeMap;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use mlgw_common::{Clock as _, SystemClock};

use super::lie::Lie;
use crate::content::hex;

/// Naming scheme of a correct origin: its ETags and the resolution of its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// ETags are MD5s; times in listings have milliseconds.
    #[default]
    Usual,
    /// ETags look like MD5s and are not; responses have the header of KMS.
    Kms,
    /// ETags look like MD5s and are not.
    RandomHex,
    /// ETags are version ids that are not hexadecimal.
    Versions,
    /// Times in listings have whole seconds.
    WholeSeconds,
}

/// An object.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) modified_ms: u64,
    pub(super) headers: Vec<(String, String)>,
}

/// A multipart upload.
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) parts: BTreeMap<u32, (Bytes, String)>,
}

/// State of the origin.
#[derive(Default)]
pub(super) struct Store {
    pub(super) manner: Manner,
    pub(super) objects: BTreeMap<String, Stored>,
    pub(super) uploads: BTreeMap<String, Upload>,
    pub(super) lie: Option<Lie>,
    pub(super) lies_told: usize,
    pub(super) log: Vec<String>,
    pub(super) sent_bytes: u64,
    /// Number of ETags and upload ids issued.
    named: u64,
}

impl Store {
    pub(super) fn new(manner: Manner) -> Self {
        Self { manner, ..Self::default() }
    }

    /// Returns the ETag of bytes that are stored now.
    pub(super) fn etag(&mut self, bytes: &[u8]) -> String {
        self.named += 1;
        match self.manner {
            Manner::Usual | Manner::WholeSeconds => hex(&Md5::digest(bytes)),
            Manner::Kms | Manner::RandomHex => hex(&Md5::digest(self.named.to_le_bytes())),
            Manner::Versions => format!("v{}", self.named),
        }
    }

    pub(super) fn put(
        &mut self,
        key: &str,
        bytes: Bytes,
        headers: Vec<(String, String)>,
        etag: Option<String>,
    ) -> String {
        let etag = etag.unwrap_or_else(|| self.etag(&bytes));
        let modified_ms = u64::try_from(SystemClock.now().as_millis()).expect("after 1970");
        self.objects.insert(key.to_owned(), Stored { bytes, etag: etag.clone(), modified_ms, headers });
        etag
    }

    pub(super) fn begin(&mut self, key: &str, headers: Vec<(String, String)>) -> String {
        self.named += 1;
        let id = format!("upload-{}", self.named);
        let parts = BTreeMap::new();
        self.uploads.insert(id.clone(), Upload { key: key.to_owned(), headers, parts });
        id
    }

    /// Returns the current fault if `about` selects it, and counts it.
    pub(super) fn lies(&mut self, about: impl Fn(Lie) -> bool) -> Option<Lie> {
        let lie = self.lie.filter(|lie| about(*lie))?;
        self.lies_told += 1;
        Some(lie)
    }
}
