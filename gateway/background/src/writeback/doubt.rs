//! Writes that their origin claims to have and does not show: when they are sent again. Pure.
//!
//! Such an origin lies, or its ETags look like MD5s and are none. Sending again mends damage on the way;
//! sending for ever what an origin names otherwise would cost its whole traffic. So a few tries are sent,
//! and then most only look.

/// Tries that send again, of those that follow the first.
const SENT_AT_FIRST: u32 = 3;
/// Afterwards one of so many does.
const SENT_ONE_IN: u32 = 16;

/// Whether a write is sent again whose object at the origin is not right, after so many failures.
pub(super) const fn is_sent_again(failures: u32) -> bool {
    failures <= SENT_AT_FIRST || failures.is_multiple_of(SENT_ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::is_sent_again;

    #[test]
    fn damage_is_mended_and_a_name_is_not_fought_for_ever() {
        let sent = (0..1600).filter(|failures| is_sent_again(*failures)).count();
        assert!((0..=3).all(is_sent_again) && !is_sent_again(4));
        assert_eq!(sent, 4 + 99, "one in sixteen, for as long as it takes");
    }
}
