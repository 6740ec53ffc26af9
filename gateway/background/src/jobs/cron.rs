//! When a schedule is due: cron expressions in UTC, five fields or six with the seconds first.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use mlgw_common::Timestamp;

/// Longest expression that is taken.
const LEN_MAX: usize = 200;

/// A schedule that can be asked when it is due.
#[derive(Debug)]
pub struct Times(Cron);

impl Times {
    /// Takes an expression such as `0 3 * * *`, `*/30 * * * * *` or `@daily`.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!(
                "{text:?} is no schedule ({why}): five fields as in \"0 3 * * *\" (minute, hour, day, month, weekday; UTC), or six with the seconds first"
            )
        };
        if text.len() > LEN_MAX {
            return Err(format!("a schedule has at most {LEN_MAX} characters"));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let times = Self(parser.parse(text).map_err(|why| wrong(why.to_string()))?);
        // One that is never due, as on the thirtieth of February, is a mistake.
        match times.after(Timestamp(0)) {
            Some(_) => Ok(times),
            None => Err(wrong("it is never due".to_owned())),
        }
    }

    /// The first time behind `after`; nothing when there is none.
    #[must_use]
    pub fn after(&self, after: Timestamp) -> Option<Timestamp> {
        let zoned = jiff::Timestamp::from_millisecond(after.as_millis()).ok()?.to_zoned(TimeZone::UTC);
        let next = self.0.find_next_occurrence(&zoned, false).ok()?;
        Some(Timestamp(next.timestamp().as_millisecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::Times;
    use mlgw_common::Timestamp;

    fn after(text: &str, at: &str) -> String {
        let at = Timestamp::of_rfc3339(at).unwrap();
        Times::parse(text).unwrap().after(at).unwrap().to_string()
    }

    #[test]
    fn the_next_time_is_behind_the_last_one() {
        assert_eq!(after("0 3 * * *", "2026-11-22T02:59:59.999Z"), "2026-11-22T03:00:00.000Z");
        assert_eq!(after("0 3 * * *", "2026-11-22T03:00:00.000Z"), "2026-11-23T03:00:00.000Z");
        assert_eq!(after("*/15 * * * * *", "2026-11-22T03:00:00.001Z"), "2026-11-22T03:00:15.000Z");
        assert_eq!(after("@daily", "2026-12-31T12:00:00.000Z"), "2027-01-01T00:00:00.000Z");
        assert_eq!(after("0 6 * * MON", "2026-11-22T00:00:00.000Z"), "2026-11-23T06:00:00.000Z");
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_how_one_looks() {
        for text in ["", "daily", "61 * * * *", "* * *", "0 0 30 2 *", &"*".repeat(500)] {
            let why = Times::parse(text).unwrap_err();
            assert!(why.contains("schedule"), "{text:?}: {why}");
        }
    }
}
