//! Retry schedule of writes that their origin acknowledged and does not show. Pure.
//!
//! Either such an origin has lost the write, or its ETags look like MD5s and are none. Sending again repairs
//! damage in transit. Without a limit, sending again to an origin with other ETags would consume all its
//! traffic. The first few attempts therefore send; most later ones only look the object up.

/// Attempts after the first one that send in any case.
const SENT_AT_FIRST: u32 = 3;
/// Afterwards one attempt in this many sends.
const SENT_ONE_IN: u32 = 16;

/// Returns true if a write whose object at the origin is wrong is sent again after this number of failures.
pub(super) const fn is_sent_again(failures: u32) -> bool {
    failures <= SENT_AT_FIRST || failures.is_multiple_of(SENT_ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::is_sent_again;

    #[test]
    fn damage_is_repaired_and_opaque_etags_do_not_cause_endless_sending() {
        let sent = (0..1600).filter(|failures| is_sent_again(*failures)).count();
        assert!((0..=3).all(is_sent_again) && !is_sent_again(4));
        assert_eq!(sent, 4 + 99, "one in sixteen, for as long as it takes");
    }
}
