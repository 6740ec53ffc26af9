//! Quotas as people give and read them.

use mlgw_api::{QuotaInfo, QuotaRequest, UsedInfo};
use mlgw_common::ByteSize;
use mlgw_formats::schema::{BucketUsage, Measure, Quota};

/// What takes a limit away.
const NONE: &str = "none";

/// A change of a quota that was understood: of each limit, what it becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    bytes: Option<Option<u64>>,
    objects: Option<Option<u64>>,
}

/// Returns the change that `request` asks for.
///
/// # Errors
/// What is wrong with it, for people.
pub fn parse_request(request: &QuotaRequest) -> Result<QuotaChange, String> {
    let limit = |name, given: &Option<String>, expects, read: fn(&str) -> Option<u64>| match given.as_deref()
    {
        None => Ok(None),
        Some(NONE) => Ok(Some(None)),
        Some(text) => match read(text) {
            Some(limit) => Ok(Some(Some(limit))),
            None => {
                Err(format!("The quota of {name} cannot be {text:?}; expected {expects}, or \"{NONE}\"."))
            }
        },
    };
    let size = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
    Ok(QuotaChange {
        bytes: limit("bytes", &request.bytes, ByteSize::EXPECTS, size)?,
        objects: limit("objects", &request.objects, "a whole number", |text| text.parse().ok())?,
    })
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

/// Returns a quota as the admin API tells it.
#[must_use]
pub fn tell_quota(quota: Option<Quota>) -> QuotaInfo {
    let Quota { bytes, objects } = quota.unwrap_or_default();
    QuotaInfo { bytes, objects }
}

/// Returns what is held against a quota as the admin API tells it.
#[must_use]
pub fn tell_used(usage: &BucketUsage) -> UsedInfo {
    UsedInfo { bytes: Measure::Bytes.of(usage), objects: Measure::Objects.of(usage) }
}

#[cfg(test)]
mod tests {
    use super::{QuotaChange, parse_request};
    use mlgw_api::QuotaRequest;
    use mlgw_formats::schema::Quota;

    fn parsed(bytes: Option<&str>, objects: Option<&str>) -> Result<QuotaChange, String> {
        let (bytes, objects) = (bytes.map(str::to_owned), objects.map(str::to_owned));
        parse_request(&QuotaRequest { bytes, objects })
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
            assert_eq!(parsed(bytes, objects).unwrap().apply(before), after);
        }
        assert!(parsed(None, None).unwrap().is_nothing());
        assert!(!parsed(Some("none"), None).unwrap().is_nothing());
    }

    #[test]
    fn what_is_no_quota_is_refused_by_its_name() {
        for (bytes, objects, word) in
            [(Some("-1"), None, "bytes"), (None, Some("1k"), "objects"), (Some(""), None, "bytes")]
        {
            let why = parsed(bytes, objects).unwrap_err();
            assert!(why.contains(word) && why.contains("none"), "{why}");
        }
    }
}
