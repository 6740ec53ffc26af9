//! The time model of one spindle: pure arithmetic over times that are passed in.
//!
//! The disk does one request after the other. A transfer takes its bytes at the disk's rate, preceded by a
//! seek unless it continues where the last transfer ended, in the same file, whether the two were reads or
//! writes. A sync takes a seek and leaves the head elsewhere: the file system's journal, which makes bytes
//! findable again, is in another place, and the disk must have moved there before a sync is answered; so the
//! next transfer seeks, too.
//!
//! The completion time of a request counts from the time at which the previous request was due, not from the
//! time at which it was answered. The lateness of a response (the processor was busy, or the disk below took
//! longer) is therefore compensated by the requests that follow, up to [`LATENESS_MAX`]; idle time is lost,
//! as on a disk.

use std::time::Duration;

/// Maximum lateness of one request that is compensated: about the time of 32 MiB on a disk of 150 MB/s, so
/// that a sync that has this much to write below keeps up on a disk that is not slower than that.
const LATENESS_MAX: Duration = Duration::from_millis(250);

const NANOSECONDS: u128 = 1_000_000_000;

/// The performance of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPace {
    /// Bytes that pass below the head per second; 0 for no limit.
    pub bytes_per_second: u64,
    /// Duration of a seek.
    pub seek: Duration,
}

/// A request to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskAccess {
    /// A read or a write of `bytes` bytes of a file, from `offset`.
    Transfer { file: u64, offset: u64, bytes: u64 },
    /// A sync: earlier writes must survive a power loss.
    Sync,
}

/// The state of a spindle. All times count from its creation.
#[derive(Debug)]
pub(super) struct Spindle {
    pace: DiskPace,
    /// The file and the offset at which the last transfer ended; `None` if the head is elsewhere.
    head: Option<(u64, u64)>,
    /// The time at which the last request was due.
    last_due: Duration,
    /// The lateness of its response.
    lateness: Duration,
}

impl Spindle {
    pub(super) const fn new(pace: DiskPace) -> Self {
        Self { pace, head: None, last_due: Duration::ZERO, lateness: Duration::ZERO }
    }

    /// The completion time of a request that arrived at `arrived`. Called in the order in which the disk does
    /// the requests.
    pub(super) fn completion_time(&mut self, arrived: Duration, access: DiskAccess) -> Duration {
        let begun = self.last_due.max(arrived.saturating_sub(self.lateness));
        self.last_due = begun + self.duration_of(access);
        self.lateness = Duration::ZERO;
        self.last_due
    }

    /// Records that the last request was answered at `now`.
    pub(super) fn record_answer(&mut self, now: Duration) {
        self.lateness = now.saturating_sub(self.last_due).min(LATENESS_MAX);
    }

    fn duration_of(&mut self, access: DiskAccess) -> Duration {
        let DiskAccess::Transfer { file, offset, bytes } = access else {
            self.head = None;
            return self.pace.seek;
        };
        let follows = self.head == Some((file, offset));
        self.head = Some((file, offset + bytes));
        let seek = if follows { Duration::ZERO } else { self.pace.seek };
        seek + self.transfer_time(bytes)
    }

    fn transfer_time(&self, bytes: u64) -> Duration {
        match u128::from(self.pace.bytes_per_second) {
            0 => Duration::ZERO,
            rate => Duration::from_nanos_u128((u128::from(bytes) * NANOSECONDS).div_ceil(rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEK: u64 = 8;
    const PACE: DiskPace = DiskPace { bytes_per_second: 150_000_000, seek: Duration::from_millis(SEEK) };
    /// Bytes that take [`PACE`] ten milliseconds.
    const BYTES: u64 = 1_500_000;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn transfer(file: u64, offset: u64) -> DiskAccess {
        DiskAccess::Transfer { file, offset, bytes: BYTES }
    }

    /// The completion times of requests that are all present from the beginning.
    fn done(accesses: &[DiskAccess]) -> Vec<Duration> {
        let mut disk = Spindle::new(PACE);
        accesses.iter().map(|access| disk.completion_time(Duration::ZERO, *access)).collect()
    }

    #[test]
    fn a_consecutive_transfer_takes_its_bytes_and_any_other_a_seek_before_them() {
        let follows = done(&[transfer(1, 0), transfer(1, BYTES), transfer(1, 2 * BYTES)]);
        assert_eq!(follows, [ms(SEEK + 10), ms(SEEK + 20), ms(SEEK + 30)]);
        // The same place again, further on, back, and the same offset in another file.
        for other in [transfer(1, 0), transfer(1, BYTES + 1), transfer(1, BYTES - 1), transfer(2, BYTES)] {
            assert_eq!(done(&[transfer(1, 0), other])[1], ms(2 * (SEEK + 10)), "{other:?}");
        }
    }

    #[test]
    fn a_request_that_comes_in_pieces_takes_as_long_as_one_that_comes_whole() {
        let piece = |at: u64| DiskAccess::Transfer { file: 1, offset: at, bytes: BYTES / 10 };
        let pieces: Vec<DiskAccess> = (0..10).map(|n| piece(n * BYTES / 10)).collect();
        assert_eq!(done(&pieces).last(), done(&[transfer(1, 0)]).last());
    }

    #[test]
    fn a_sync_takes_a_seek_and_the_next_transfer_another() {
        let synced = done(&[transfer(1, 0), DiskAccess::Sync, DiskAccess::Sync, transfer(1, BYTES)]);
        assert_eq!(synced, [ms(SEEK + 10), ms(2 * SEEK + 10), ms(3 * SEEK + 10), ms(4 * SEEK + 20)]);
    }

    #[test]
    fn idle_time_is_lost() {
        let mut disk = Spindle::new(PACE);
        assert_eq!(disk.completion_time(ms(5), transfer(1, 0)), ms(5 + SEEK + 10));
        disk.record_answer(ms(5 + SEEK + 10));
        assert_eq!(disk.completion_time(ms(1000), transfer(1, BYTES)), ms(1010));
    }

    #[test]
    fn a_request_waits_for_the_previous_one() {
        let mut disk = Spindle::new(PACE);
        assert_eq!(disk.completion_time(ms(0), transfer(1, 0)), ms(18));
        disk.record_answer(ms(18));
        assert_eq!(disk.completion_time(ms(1), transfer(2, 0)), ms(36));
    }

    /// The completion time of the last of a hundred consecutive requests, each sent `idle` after the response
    /// to the one before, which was `late`.
    fn hundred(late: Duration, idle: Duration) -> Duration {
        let (mut disk, mut now) = (Spindle::new(PACE), Duration::ZERO);
        for n in 0..100 {
            let due = disk.completion_time(now, transfer(1, n * BYTES));
            disk.record_answer(due.max(now) + late);
            now = due.max(now) + late + idle;
        }
        disk.last_due
    }

    #[test]
    fn late_responses_do_not_add_up_and_pauses_of_a_client_do() {
        assert_eq!(hundred(ms(0), ms(0)), ms(SEEK + 1000));
        assert_eq!(hundred(ms(3), ms(0)), ms(SEEK + 1000));
        assert_eq!(hundred(ms(3), ms(2)), ms(SEEK + 1000 + 99 * 2));
    }

    #[test]
    fn lateness_beyond_the_limit_is_not_compensated() {
        let mut disk = Spindle::new(PACE);
        disk.completion_time(ms(0), transfer(1, 0));
        disk.record_answer(ms(10_000));
        assert_eq!(disk.completion_time(ms(10_000), transfer(1, BYTES)), ms(10_010) - LATENESS_MAX);
    }

    #[test]
    fn no_rate_and_no_seek_take_no_time() {
        let mut disk = Spindle::new(DiskPace { bytes_per_second: 0, seek: Duration::ZERO });
        assert_eq!(disk.completion_time(ms(7), transfer(1, 0)), ms(7));
        assert_eq!(disk.completion_time(ms(7), DiskAccess::Sync), ms(7));
    }
}
