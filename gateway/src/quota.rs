//! Quotas as people give and read them.

use crate::config::{ByteSize, Value as _};
use mlgw_metadata::schema::{BucketUsage, Measure, Quota};
use serde::{Deserialize, Serialize};

/// What takes a limit away.
const NONE: &str = "none";

/// What may be held; what is not given has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// Bytes of objects, and of parts of uploads in progress.
    pub bytes: Option<u64>,
    /// Objects.
    pub objects: Option<u64>,
}

/// What is held against a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedInfo {
    /// Bytes of objects, and of parts of uploads in progress.
    pub bytes: u64,
    /// Objects.
    pub objects: u64,
}

/// What to change of a quota; what is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaRequest {
    /// A size, such as `10GiB`, or `none`.
    pub bytes: Option<String>,
    /// A number, or `none`.
    pub objects: Option<String>,
}

/// A change of a quota that was understood: of each limit, what it becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    bytes: Option<Option<u64>>,
    objects: Option<Option<u64>>,
}

impl QuotaRequest {
    /// What it means.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(&self) -> Result<QuotaChange, String> {
        let limit =
            |name, given: &Option<String>, expects, read: fn(&str) -> Option<u64>| match given.as_deref() {
                None => Ok(None),
                Some(NONE) => Ok(Some(None)),
                Some(text) => match read(text) {
                    Some(limit) => Ok(Some(Some(limit))),
                    None => Err(format!(
                        "The quota of {name} cannot be {text:?}; expected {expects}, or \"{NONE}\"."
                    )),
                },
            };
        let size = |text: &str| ByteSize::from_text(text).ok().map(|size| size.0);
        Ok(QuotaChange {
            bytes: limit("bytes", &self.bytes, ByteSize::EXPECTS, size)?,
            objects: limit("objects", &self.objects, "a whole number", |text| text.parse().ok())?,
        })
    }
}

impl QuotaChange {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// What a quota is after it.
    #[must_use]
    pub fn apply(&self, quota: Quota) -> Quota {
        Quota { bytes: self.bytes.unwrap_or(quota.bytes), objects: self.objects.unwrap_or(quota.objects) }
    }
}

impl From<Option<Quota>> for QuotaInfo {
    fn from(quota: Option<Quota>) -> Self {
        let Quota { bytes, objects } = quota.unwrap_or_default();
        Self { bytes, objects }
    }
}

impl From<&BucketUsage> for UsedInfo {
    fn from(usage: &BucketUsage) -> Self {
        Self { bytes: Measure::Bytes.of(usage), objects: Measure::Objects.of(usage) }
    }
}

impl QuotaInfo {
    /// For people, with what is held of it.
    #[must_use]
    pub fn describe(&self, used: UsedInfo) -> String {
        let bytes = self.bytes.map(|limit| {
            let percent = percent(used.bytes, limit);
            format!("{} of {}{percent}", ByteSize(used.bytes).human(), ByteSize(limit).human())
        });
        let objects = self
            .objects
            .map(|limit| format!("{} of {limit} objects{}", used.objects, percent(used.objects, limit)));
        let limits: Vec<String> = bytes.into_iter().chain(objects).collect();
        if limits.is_empty() { NONE.to_owned() } else { limits.join(", ") }
    }
}

fn percent(used: u64, limit: u64) -> String {
    let percent = (u128::from(used) * 100).checked_div(u128::from(limit));
    percent.map(|percent| format!(" ({percent}%)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{QuotaInfo, QuotaRequest, UsedInfo};
    use mlgw_metadata::schema::Quota;

    fn request(bytes: Option<&str>, objects: Option<&str>) -> QuotaRequest {
        QuotaRequest { bytes: bytes.map(str::to_owned), objects: objects.map(str::to_owned) }
    }

    #[test]
    fn what_is_not_given_stays_and_none_takes_a_limit_away() {
        let before = Quota { bytes: Some(1), objects: Some(2) };
        for (bytes, objects, after) in [
            (None, None, before),
            (Some("10GiB"), None, Quota { bytes: Some(10 << 30), ..before }),
            (Some("none"), Some("0"), Quota { bytes: None, objects: Some(0) }),
            (None, Some("none"), Quota { objects: None, ..before }),
        ] {
            assert_eq!(request(bytes, objects).parse().unwrap().apply(before), after);
        }
        assert!(request(None, None).parse().unwrap().is_nothing());
        assert!(!request(Some("none"), None).parse().unwrap().is_nothing());
    }

    #[test]
    fn what_is_no_quota_is_refused_by_its_name() {
        for (bytes, objects, word) in
            [(Some("-1"), None, "bytes"), (None, Some("1k"), "objects"), (Some(""), None, "bytes")]
        {
            let why = request(bytes, objects).parse().unwrap_err();
            assert!(why.contains(word) && why.contains("none"), "{why}");
        }
    }

    #[test]
    fn people_read_what_is_used_of_what() {
        let used = UsedInfo { bytes: 5 << 30, objects: 3 };
        let quota = |bytes, objects| QuotaInfo { bytes, objects }.describe(used);
        assert_eq!(quota(None, None), "none");
        assert_eq!(quota(Some(10 << 30), None), "5.0 GiB of 10.0 GiB (50%)");
        assert_eq!(quota(Some(0), Some(2)), "5.0 GiB of 0 B, 3 of 2 objects (150%)");
    }
}
