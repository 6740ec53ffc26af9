//! The stored objects, and the naming scheme of the origin.

use std::collections::BTreeMap;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use mlgw_common::{Clock as _, SystemClock};

use super::response_fault::ResponseFault;
use crate::content::hex;

/// Naming scheme of a correct origin: its ETags and the resolution of its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OriginNaming {
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
pub(super) struct StoredObject {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) modified_ms: u64,
    pub(super) headers: Vec<(String, String)>,
}

/// A multipart upload.
pub(super) struct StoredUpload {
    pub(super) key: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) parts: BTreeMap<u32, (Bytes, String)>,
}

/// State of the origin.
#[derive(Default)]
pub(super) struct OriginState {
    pub(super) naming: OriginNaming,
    pub(super) objects: BTreeMap<String, StoredObject>,
    pub(super) uploads: BTreeMap<String, StoredUpload>,
    pub(super) fault: Option<ResponseFault>,
    pub(super) fault_count: usize,
    pub(super) log: Vec<String>,
    pub(super) sent_bytes: u64,
    /// Number of ETags and upload ids issued.
    issued_ids: u64,
}

impl OriginState {
    pub(super) fn new(manner: OriginNaming) -> Self {
        Self { naming: manner, ..Self::default() }
    }

    /// Returns the ETag of bytes that are stored now.
    pub(super) fn etag(&mut self, bytes: &[u8]) -> String {
        self.issued_ids += 1;
        match self.naming {
            OriginNaming::Usual | OriginNaming::WholeSeconds => hex(&Md5::digest(bytes)),
            OriginNaming::Kms | OriginNaming::RandomHex => hex(&Md5::digest(self.issued_ids.to_le_bytes())),
            OriginNaming::Versions => format!("v{}", self.issued_ids),
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
        self.objects.insert(key.to_owned(), StoredObject { bytes, etag: etag.clone(), modified_ms, headers });
        etag
    }

    pub(super) fn begin(&mut self, key: &str, headers: Vec<(String, String)>) -> String {
        self.issued_ids += 1;
        let id = format!("upload-{}", self.issued_ids);
        let parts = BTreeMap::new();
        self.uploads.insert(id.clone(), StoredUpload { key: key.to_owned(), headers, parts });
        id
    }

    /// Returns the current fault if `about` selects it, and counts it.
    pub(super) fn take_fault(&mut self, about: impl Fn(ResponseFault) -> bool) -> Option<ResponseFault> {
        let lie = self.fault.filter(|lie| about(*lie))?;
        self.fault_count += 1;
        Some(lie)
    }
}
