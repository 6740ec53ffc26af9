//! Admission control for commands: limits the memory of commands in flight. Writers wait when the limit is
//! reached and are refused when the wait takes too long.
//!
//! A command holds permits from before it is queued until it is answered, so this limit bounds the memory of
//! the queue, the batch in flight and the entry being applied. A permit stands for 2 KiB: small commands
//! count by number, larger ones by bytes.

use mlgw_common::limits::{PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

const PLACE_BYTES: usize = PROPOSE_BYTES_MAX / PROPOSE_QUEUE_MAX;

/// Longest time that a command waits for permits: clients wait about as long before they retry.
const WAIT: Duration = Duration::from_secs(5);

/// The wait for permits took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// Permits of a group.
pub(crate) struct Room {
    places: Semaphore,
    wait: Duration,
}

impl Default for Room {
    fn default() -> Self {
        Self { places: Semaphore::new(PROPOSE_QUEUE_MAX), wait: WAIT }
    }
}

impl Room {
    /// Acquires permits for a command of `bytes` encoded bytes, until the returned value is dropped. A
    /// command larger than the limit takes all permits. Waiters are served in order.
    pub(crate) async fn take(&self, bytes: usize) -> Result<SemaphorePermit<'_>, NoRoom> {
        let places = bytes.div_ceil(PLACE_BYTES).clamp(1, PROPOSE_QUEUE_MAX) as u32;
        match self.places.try_acquire_many(places) {
            Ok(taken) => Ok(taken),
            Err(_) => {
                let taken = timeout(self.wait, self.places.acquire_many(places)).await;
                taken.map_err(|_| NoRoom)?.map_err(|_| NoRoom)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NoRoom, PLACE_BYTES, Room};
    use mlgw_common::limits::{PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
    use std::sync::Arc;
    use std::time::Duration;

    fn impatient() -> Room {
        Room { wait: Duration::ZERO, ..Room::default() }
    }

    #[tokio::test]
    async fn small_commands_count_by_number_and_large_ones_by_bytes() {
        let room = impatient();
        let mut taken = Vec::new();
        for _ in 0..PROPOSE_QUEUE_MAX / 2 {
            taken.push(room.take(100).await.unwrap());
        }
        taken.push(room.take(PROPOSE_BYTES_MAX / 2).await.unwrap());
        assert_eq!(room.take(1).await.err(), Some(NoRoom));
        taken.pop();
        assert!(room.take(PLACE_BYTES + 1).await.is_ok());
    }

    #[tokio::test]
    async fn a_command_larger_than_the_limit_takes_all_permits() {
        let room = impatient();
        let alone = room.take(10 * PROPOSE_BYTES_MAX).await.unwrap();
        assert_eq!(room.take(1).await.err(), Some(NoRoom));
        drop(alone);
        assert!(room.take(1).await.is_ok());
    }

    #[tokio::test]
    async fn a_command_waits_until_permits_are_free() {
        let room = Arc::new(Room::default());
        let all = room.take(PROPOSE_BYTES_MAX).await.unwrap();
        let late = Arc::clone(&room);
        let waits = tokio::spawn(async move { late.take(1).await.is_ok() });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(all);
        assert!(waits.await.unwrap());
    }
}
