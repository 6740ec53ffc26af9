//! Digests of the settings that all nodes of a cluster should share.
//!
//! A node sends them to another node on request. Two digests are equal if the values are, and a digest does
//! not contain its value, so no secret leaves the node. A setting with its default is left out, so a setting
//! of a later version makes no difference until it is used. Pure; nothing is stored.

use crate::format_error::FormatError;
use bytes::Bytes;
use mlgw_common::limits::{NODE_SETTINGS_MAX, SETTING_NAME_BYTES_MAX};
use mlgw_common::{ClusterId, SharedSetting};
use prost::Message;
use sha2::{Digest as _, Sha256};

/// Longest answer: each setting has a name and at most 24 bytes more.
const ANSWER_BYTES_MAX: usize = NODE_SETTINGS_MAX * (SETTING_NAME_BYTES_MAX + 24);

/// Digest of the value of a setting.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SettingDigest {
    /// Name of the setting, for operators.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The first 8 bytes of the SHA-256 of the cluster's id and the value.
    #[prost(fixed64, tag = "2")]
    pub digest: u64,
    /// True if gateways do not use the setting.
    #[prost(bool, tag = "3")]
    pub is_of_storage: bool,
}

impl SettingDigest {
    /// Returns the digest of a setting of a node of `cluster`.
    #[must_use]
    pub fn of(cluster: ClusterId, setting: &SharedSetting) -> Self {
        let mut sum = Sha256::new();
        sum.update(cluster.0.to_le_bytes());
        sum.update(setting.value.expose());
        let sum: [u8; 32] = sum.finalize().into();
        let first = sum.first_chunk().copied().unwrap_or_default();
        Self {
            name: setting.name.clone(),
            digest: u64::from_le_bytes(first),
            is_of_storage: setting.is_of_storage,
        }
    }
}

/// The settings of a node.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SettingDigests {
    /// Digests of the settings that have not their default.
    #[prost(message, repeated, tag = "1")]
    pub settings: Vec<SettingDigest>,
}

impl SettingDigests {
    /// Returns the digests of the settings of a node of `cluster`; those beyond a limit are left out.
    #[must_use]
    pub fn of(cluster: ClusterId, settings: &[SharedSetting]) -> Self {
        let fitting = settings.iter().filter(|setting| setting.name.len() <= SETTING_NAME_BYTES_MAX);
        let digests = fitting.take(NODE_SETTINGS_MAX).map(|setting| SettingDigest::of(cluster, setting));
        Self { settings: digests.collect() }
    }

    /// Returns the bytes of an answer.
    #[must_use]
    pub fn encode_answer(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Decodes an answer. Fields of a later version are skipped.
    ///
    /// # Errors
    /// If the answer is malformed, or has too many settings or too long names.
    pub fn decode_answer(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(FormatError(format!("{} bytes of settings are too many", bytes.len())));
        }
        let answer = Self::decode(bytes).map_err(|error| FormatError(error.to_string()))?;
        let is_long = |setting: &SettingDigest| setting.name.len() > SETTING_NAME_BYTES_MAX;
        if answer.settings.len() > NODE_SETTINGS_MAX || answer.settings.iter().any(is_long) {
            return Err(FormatError("a node states too many settings, or a name that is too long".into()));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::{SettingDigest, SettingDigests};
    use mlgw_common::limits::{NODE_SETTINGS_MAX, SETTING_NAME_BYTES_MAX};
    use mlgw_common::{ClusterId, Secret, SharedSetting};
    use proptest::prelude::any;
    use proptest::{collection, prop_assert_eq, proptest};

    fn setting(name: &str, value: &str) -> SharedSetting {
        SharedSetting { name: name.into(), value: Secret::new(value), is_of_storage: true }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in collection::vec(any::<u8>(), 0..300)) {
            if let Ok(answer) = SettingDigests::decode_answer(&bytes) {
                prop_assert_eq!(SettingDigests::decode_answer(&answer.encode_answer()), Ok(answer));
            }
        }
    }

    #[test]
    fn a_digest_differs_with_the_value_and_the_cluster_and_contains_neither() {
        let digest = |cluster, value| SettingDigest::of(ClusterId(cluster), &setting("a.b", value)).digest;
        assert_eq!(digest(1, "x"), digest(1, "x"));
        assert_ne!(digest(1, "x"), digest(1, "y"));
        assert_ne!(digest(1, "x"), digest(2, "x"));
        let answer = SettingDigests::of(ClusterId(1), &[setting("a.b", "secret-value")]).encode_answer();
        assert!(!answer.windows(6).any(|bytes| bytes == b"secret"));
    }

    #[test]
    fn an_answer_has_at_most_so_many_settings_and_names_of_such_a_length() {
        let many: Vec<_> = (0..NODE_SETTINGS_MAX + 1).map(|at| setting(&at.to_string(), "v")).collect();
        let stated = SettingDigests::of(ClusterId(1), &many);
        assert_eq!(stated.settings.len(), NODE_SETTINGS_MAX);
        assert_eq!(SettingDigests::decode_answer(&stated.encode_answer()), Ok(stated));
        let long = setting(&"n".repeat(SETTING_NAME_BYTES_MAX + 1), "v");
        assert!(SettingDigests::of(ClusterId(1), std::slice::from_ref(&long)).settings.is_empty());
        let digest = SettingDigest::of(ClusterId(1), &long);
        let hostile = SettingDigests { settings: vec![digest] };
        assert!(SettingDigests::decode_answer(&hostile.encode_answer()).is_err());
        let digest = SettingDigest::of(ClusterId(1), &setting("a", "v"));
        let hostile = SettingDigests { settings: vec![digest; NODE_SETTINGS_MAX + 1] };
        assert!(SettingDigests::decode_answer(&hostile.encode_answer()).is_err());
    }
}
