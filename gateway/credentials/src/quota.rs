//! Conversion of quotas between the admin API and the catalogue. Pure.

use mlgw_api::{QuotaInfo, QuotaRequest, UsedInfo};
use mlgw_common::ByteSize;
use mlgw_formats::schema::{BucketUsage, Measure, Quota};

/// Value of a request that removes a limit.
const NONE: &str = "none";

/// A parsed change of a quota: the new value of each limit, or `None` to keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaChange {
    bytes: Option<Option<u64>>,
    objects: Option<Option<u64>>,
}

/// Parses the change in `request`.
///
/// # Errors
/// A description of the invalid value.
pub fn parse_request(request: &QuotaRequest) -> Result<QuotaChange, String> {
    let limit = |name, given: &Option<String>, expects, read: fn(&str) -> Option<u64>| match given.as_deref()
    {
        None => Ok(None),
        Some(NONE) => Ok(Some(None)),
        Some(text) => match read(text) {
            Some(limit) => Ok(Some(Some(limit))),
            None => Err(format!("Invalid quota {name} {text:?}: expected {expects}, or \"{NONE}\".")),
        },
    };
    let size = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
    Ok(QuotaChange {
        bytes: limit("bytes", &request.bytes, ByteSize::EXPECTS, size)?,
        objects: limit("objects", &request.objects, "a whole number", |text| text.parse().ok())?,
    })
}

impl QuotaChange {
    /// Returns true if it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `quota` after the change.
    #[must_use]
    pub fn apply(&self, quota: Quota) -> Quota {
        Quota { bytes: self.bytes.unwrap_or(quota.bytes), objects: self.objects.unwrap_or(quota.objects) }
    }
}

/// Converts a quota to the form of the admin API.
#[must_use]
pub fn quota_info(quota: Option<Quota>) -> QuotaInfo {
    let Quota { bytes, objects } = quota.unwrap_or_default();
    QuotaInfo { bytes, objects }
}

/// Converts the usage that counts against a quota to the form of the admin API.
#[must_use]
pub fn used_info(usage: &BucketUsage) -> UsedInfo {
    UsedInfo { bytes: Measure::Bytes.amount_in(usage), objects: Measure::Objects.amount_in(usage) }
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
    fn omitted_limits_stay_and_none_removes_a_limit() {
        let before = Quota { bytes: Some(1), objects: Some(2) };
        for (bytes, objects, after) in [
            (None, None, before),
            (Some("10GiB"), None, Quota { bytes: Some(10 << 30), ..before }),
            (Some("none"), Some("0"), Quota { bytes: None, objects: Some(0) }),
            (None, Some("none"), Quota { objects: None, ..before }),
        ] {
            assert_eq!(parsed(bytes, objects).unwrap().apply(before), after);
        }
        assert!(parsed(None, None).unwrap().is_empty());
        assert!(!parsed(Some("none"), None).unwrap().is_empty());
    }

    #[test]
    fn an_invalid_quota_is_refused_with_its_name() {
        for (bytes, objects, word) in
            [(Some("-1"), None, "bytes"), (None, Some("1k"), "objects"), (Some(""), None, "bytes")]
        {
            let why = parsed(bytes, objects).unwrap_err();
            assert!(why.contains(word) && why.contains("none"), "{why}");
        }
    }
}
