//! Times in signatures: `20130524T000000Z`, and the older forms of `Date`.

use mlgw_common::Timestamp;

/// Time of a request, as a number and as SigV4 signs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AmzDate {
    text: [u8; 16],
    /// Seconds since the Unix epoch.
    pub(super) secs: i64,
}

impl AmzDate {
    /// Parses `YYYYMMDD'T'HHMMSS'Z'` (ISO 8601, basic format, UTC).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text: [u8; 16] = text.as_bytes().try_into().ok()?;
        if text[8] != b'T' || text[15] != b'Z' {
            return None;
        }
        let number = |from: usize, to: usize| {
            text[from..to].iter().try_fold(0i16, |n, b| {
                b.is_ascii_digit().then(|| n.checked_mul(10)?.checked_add(i16::from(b - b'0'))).flatten()
            })
        };
        let small = |from: usize| number(from, from + 2).and_then(|n| i8::try_from(n).ok());
        let date = jiff::civil::Date::new(number(0, 4)?, small(4)?, small(6)?).ok()?;
        let time = jiff::civil::Time::new(small(9)?, small(11)?, small(13)?, 0).ok()?;
        let secs = jiff::tz::Offset::UTC.to_timestamp(date.to_datetime(time)).ok()?.as_second();
        Some(Self { text, secs })
    }

    /// Parses a `Date` header: an HTTP date, or the form above.
    pub(super) fn parse_http(text: &str) -> Option<Self> {
        if let Some(date) = Self::parse(text) {
            return Some(date);
        }
        let time = httpdate::parse_http_date(text).ok()?;
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        let at = jiff::Timestamp::from_second(i64::try_from(since.as_secs()).ok()?).ok()?;
        Self::parse(&at.strftime("%Y%m%dT%H%M%SZ").to_string())
    }

    /// Returns the text that is signed.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// Returns year, month and day, as in a scope.
    pub(super) fn day(&self) -> &str {
        &self.as_str()[..8]
    }
}

/// Returns `secs` in the form of error documents.
pub(super) fn format_secs(secs: i64) -> String {
    Timestamp::from_secs(secs).to_string()
}

#[cfg(test)]
mod tests {
    use super::AmzDate;

    #[test]
    fn reads_both_forms() {
        let basic = AmzDate::parse("20130524T000000Z").unwrap();
        assert_eq!(basic.secs, 1_369_353_600);
        assert_eq!(basic.day(), "20130524");
        assert_eq!(AmzDate::parse_http("Fri, 24 May 2013 00:00:00 GMT"), Some(basic));
        assert_eq!(AmzDate::parse_http("20130524T000000Z"), Some(basic));
    }

    #[test]
    fn refuses_malformed_times() {
        for bad in ["", "20130524T000000", "20131324T000000Z", "20130524T250000Z", "2013052400000000", "２０"]
        {
            assert_eq!(AmzDate::parse(bad), None, "{bad}");
        }
        assert_eq!(AmzDate::parse_http("yesterday"), None);
    }
}
