//! How long one spindle takes: pure arithmetic over times that are handed in.
//!
//! The disk does one request after the other. A transfer takes its bytes at the disk's rate, and a seek
//! before them unless it goes on where the last transfer ended, in the same file, whichever of the two was a
//! read or a write. A sync takes a seek and leaves the head elsewhere: what makes bytes findable again, the
//! file system's journal, is in another place, and the disk has to be there before a sync is answered; so the
//! next transfer seeks, too.
//!
//! When a request is done is reckoned from when the one before it was due, not from when that was answered.
//! So what the answer came late (the processor was somebody else's, or the disk below took longer) is made up
//! by the requests that follow, up to [`LATE_MAX`], while the time in which nobody asked for anything is
//! lost, as on a disk.

use std::time::Duration;

/// What one request may be late and have made up: about what 32 MiB take a disk of 150 MB/s, so that a sync
/// that has as much to write below keeps up on a disk that is no slower than that.
const LATE_MAX: Duration = Duration::from_millis(250);

const NANOSECONDS: u128 = 1_000_000_000;

/// What a disk can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes that pass below the head in a second; 0 for as many as can be.
    pub bytes_per_second: u64,
    /// How long the head takes to be elsewhere.
    pub seek: Duration,
}

/// What a disk is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// So many bytes of a file are read or written, from there on.
    Transfer { file: u64, offset: u64, bytes: u64 },
    /// What was written is to survive power loss.
    Sync,
}

/// One spindle. All times count from when it was set up.
#[derive(Debug)]
pub(super) struct Spindle {
    pace: Pace,
    /// The file and the place in it where the last transfer ended; nothing when the head is elsewhere.
    head: Option<(u64, u64)>,
    /// When the last request was due.
    due: Duration,
    /// How late it was answered.
    late: Duration,
}

impl Spindle {
    pub(super) const fn new(pace: Pace) -> Self {
        Self { pace, head: None, due: Duration::ZERO, late: Duration::ZERO }
    }

    /// When a request is done that arrived then. They are asked for in the order in which the disk does them.
    pub(super) fn due(&mut self, arrived: Duration, access: Access) -> Duration {
        let begun = self.due.max(arrived.saturating_sub(self.late));
        self.due = begun + self.takes(access);
        self.late = Duration::ZERO;
        self.due
    }

    /// The last request was answered then.
    pub(super) fn answered(&mut self, now: Duration) {
        self.late = now.saturating_sub(self.due).min(LATE_MAX);
    }

    fn takes(&mut self, access: Access) -> Duration {
        let Access::Transfer { file, offset, bytes } = access else {
            self.head = None;
            return self.pace.seek;
        };
        let follows = self.head == Some((file, offset));
        self.head = Some((file, offset + bytes));
        let seek = if follows { Duration::ZERO } else { self.pace.seek };
        seek + self.passes(bytes)
    }

    fn passes(&self, bytes: u64) -> Duration {
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
    const PACE: Pace = Pace { bytes_per_second: 150_000_000, seek: Duration::from_millis(SEEK) };
    /// What takes [`PACE`] ten milliseconds.
    const BYTES: u64 = 1_500_000;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn transfer(file: u64, offset: u64) -> Access {
        Access::Transfer { file, offset, bytes: BYTES }
    }

    /// When each is done if all are there from the beginning.
    fn done(accesses: &[Access]) -> Vec<Duration> {
        let mut disk = Spindle::new(PACE);
        accesses.iter().map(|access| disk.due(Duration::ZERO, *access)).collect()
    }

    #[test]
    fn what_follows_on_takes_its_bytes_and_all_else_a_seek_before_them() {
        let follows = done(&[transfer(1, 0), transfer(1, BYTES), transfer(1, 2 * BYTES)]);
        assert_eq!(follows, [ms(SEEK + 10), ms(SEEK + 20), ms(SEEK + 30)]);
        // Again, further on, back, and the same place of another file.
        for other in [transfer(1, 0), transfer(1, BYTES + 1), transfer(1, BYTES - 1), transfer(2, BYTES)] {
            assert_eq!(done(&[transfer(1, 0), other])[1], ms(2 * (SEEK + 10)), "{other:?}");
        }
    }

    #[test]
    fn a_request_that_comes_in_pieces_takes_as_long_as_one_that_comes_whole() {
        let piece = |at: u64| Access::Transfer { file: 1, offset: at, bytes: BYTES / 10 };
        let pieces: Vec<Access> = (0..10).map(|n| piece(n * BYTES / 10)).collect();
        assert_eq!(done(&pieces).last(), done(&[transfer(1, 0)]).last());
    }

    #[test]
    fn a_sync_takes_a_seek_and_the_way_back() {
        let synced = done(&[transfer(1, 0), Access::Sync, Access::Sync, transfer(1, BYTES)]);
        assert_eq!(synced, [ms(SEEK + 10), ms(2 * SEEK + 10), ms(3 * SEEK + 10), ms(4 * SEEK + 20)]);
    }

    #[test]
    fn time_in_which_nobody_asks_is_lost() {
        let mut disk = Spindle::new(PACE);
        assert_eq!(disk.due(ms(5), transfer(1, 0)), ms(5 + SEEK + 10));
        disk.answered(ms(5 + SEEK + 10));
        assert_eq!(disk.due(ms(1000), transfer(1, BYTES)), ms(1010));
    }

    #[test]
    fn one_request_waits_for_the_other() {
        let mut disk = Spindle::new(PACE);
        assert_eq!(disk.due(ms(0), transfer(1, 0)), ms(18));
        disk.answered(ms(18));
        assert_eq!(disk.due(ms(1), transfer(2, 0)), ms(36));
    }

    /// When the last of a hundred requests is done that follow on each other, each asked for `idle` after the
    /// one before was answered, and that was `late`.
    fn hundred(late: Duration, idle: Duration) -> Duration {
        let (mut disk, mut now) = (Spindle::new(PACE), Duration::ZERO);
        for n in 0..100 {
            let due = disk.due(now, transfer(1, n * BYTES));
            disk.answered(due.max(now) + late);
            now = due.max(now) + late + idle;
        }
        disk.due
    }

    #[test]
    fn late_answers_do_not_add_up_and_the_pauses_of_a_client_do() {
        assert_eq!(hundred(ms(0), ms(0)), ms(SEEK + 1000));
        assert_eq!(hundred(ms(3), ms(0)), ms(SEEK + 1000));
        assert_eq!(hundred(ms(3), ms(2)), ms(SEEK + 1000 + 99 * 2));
    }

    #[test]
    fn a_disk_below_that_is_slower_is_not_made_up_for() {
        let mut disk = Spindle::new(PACE);
        disk.due(ms(0), transfer(1, 0));
        disk.answered(ms(10_000));
        assert_eq!(disk.due(ms(10_000), transfer(1, BYTES)), ms(10_010) - LATE_MAX);
    }

    #[test]
    fn no_rate_and_no_seek_take_no_time() {
        let mut disk = Spindle::new(Pace { bytes_per_second: 0, seek: Duration::ZERO });
        assert_eq!(disk.due(ms(7), transfer(1, 0)), ms(7));
        assert_eq!(disk.due(ms(7), Access::Sync), ms(7));
    }
}
