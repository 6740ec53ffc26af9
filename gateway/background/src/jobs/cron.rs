//! Cron schedules in UTC: five fields, or six with the seconds first.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use mlgw_common::Timestamp;

/// Longest accepted expression, in bytes.
const LEN_MAX: usize = 200;

/// A schedule, which computes its next due time.
#[derive(Debug)]
pub struct CronSchedule(Cron);

impl CronSchedule {
    /// Parses an expression such as `0 3 * * *`, `*/30 * * * * *` or `@daily`.
    ///
    /// # Errors
    /// A description of the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!(
                "invalid schedule {text:?} ({why}): expected five fields such as \"0 3 * * *\" (minute, \
                 hour, day, month, weekday; UTC), or six with seconds first"
            )
        };
        if text.len() > LEN_MAX {
            return Err(format!("a schedule has at most {LEN_MAX} characters"));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let times = Self(parser.parse(text).map_err(|why| wrong(why.to_string()))?);
        // A schedule that is never due, such as one on 30 February, is a mistake.
        match times.after(Timestamp(0)) {
            Some(_) => Ok(times),
            None => Err(wrong("never due".to_owned())),
        }
    }

    /// Returns the first due time after `after`; `None` if there is none.
    #[must_use]
    pub fn after(&self, after: Timestamp) -> Option<Timestamp> {
        let zoned = jiff::Timestamp::from_millisecond(after.as_millis()).ok()?.to_zoned(TimeZone::UTC);
        let next = self.0.find_next_occurrence(&zoned, false).ok()?;
        Some(Timestamp(next.timestamp().as_millisecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::CronSchedule;
    use mlgw_common::Timestamp;

    fn after(text: &str, at: &str) -> String {
        let at = Timestamp::parse_rfc3339(at).unwrap();
        CronSchedule::parse(text).unwrap().after(at).unwrap().to_string()
    }

    #[test]
    fn the_next_time_is_after_the_last_one() {
        assert_eq!(after("0 3 * * *", "2026-11-22T02:59:59.999Z"), "2026-11-22T03:00:00.000Z");
        assert_eq!(after("0 3 * * *", "2026-11-22T03:00:00.000Z"), "2026-11-23T03:00:00.000Z");
        assert_eq!(after("*/15 * * * * *", "2026-11-22T03:00:00.001Z"), "2026-11-22T03:00:15.000Z");
        assert_eq!(after("@daily", "2026-12-31T12:00:00.000Z"), "2027-01-01T00:00:00.000Z");
        assert_eq!(after("0 6 * * MON", "2026-11-22T00:00:00.000Z"), "2026-11-23T06:00:00.000Z");
    }

    #[test]
    fn an_invalid_schedule_is_refused_with_the_expected_form() {
        for text in ["", "daily", "61 * * * *", "* * *", "0 0 30 2 *", &"*".repeat(500)] {
            let why = CronSchedule::parse(text).unwrap_err();
            assert!(why.contains("schedule"), "{text:?}: {why}");
        }
    }
}
