//! Room for commands under way: writers are slowed when it is taken, and refused when that lasts.
//!
//! A command holds its place from before it waits in the queue until it is answered, so this one
//! number bounds what the queue, the batch under way and the entry being applied keep in memory. It
//! is counted in places of 2 KiB: small commands by their number, larger ones by their bytes.

use mlgw_common::limits::{PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

const PLACE_BYTES: usize = PROPOSE_BYTES_MAX / PROPOSE_QUEUE_MAX;

/// How long a command waits for room: what a client waits anyway before it tries again.
const WAIT: Duration = Duration::from_secs(5);

/// There was no room for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// A group's room.
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
    /// Room for a command of `bytes` encoded, until what is returned is dropped. One that is larger
    /// than all of it has it alone. First come, first served.
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
    async fn small_commands_count_by_their_number_and_large_ones_by_their_bytes() {
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
    async fn a_command_larger_than_all_of_it_has_it_alone() {
        let room = impatient();
        let alone = room.take(10 * PROPOSE_BYTES_MAX).await.unwrap();
        assert_eq!(room.take(1).await.err(), Some(NoRoom));
        drop(alone);
        assert!(room.take(1).await.is_ok());
    }

    #[tokio::test]
    async fn who_finds_no_room_is_slowed_until_there_is_some() {
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
