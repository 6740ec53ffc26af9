//! Admission control for commands: limits the memory of commands in flight. Writers wait when the limit is
//! reached and are refused when the wait takes too long.
//!
//! A command holds permits from before it is queued until it is answered, so this limit bounds the memory of
//! the queue, the batch in flight and the entry being applied. A permit stands for 2 KiB: small commands
//! count by number, larger ones by bytes.

use mlgw_common::limits::{PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
use mlgw_common::time::timeout;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

const PERMIT_BYTES: usize = PROPOSE_BYTES_MAX / PROPOSE_QUEUE_MAX;

const _: () = assert!(PERMIT_BYTES > 0 && PROPOSE_QUEUE_MAX <= Semaphore::MAX_PERMITS);

/// Longest time that a command waits for permits: clients wait about as long before they retry.
const WAIT: Duration = Duration::from_secs(5);

/// The wait for permits took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitTimeout;

/// Permits of a group.
pub(crate) struct CommandLimiter {
    permits: Semaphore,
    wait: Duration,
}

impl Default for CommandLimiter {
    fn default() -> Self {
        Self { permits: Semaphore::new(PROPOSE_QUEUE_MAX), wait: WAIT }
    }
}

impl CommandLimiter {
    /// Acquires permits for a command of `bytes` encoded bytes, until the returned value is dropped. A
    /// command larger than the limit takes all permits. Waiters are served in order.
    pub(crate) async fn acquire(&self, bytes: usize) -> Result<SemaphorePermit<'_>, LimitTimeout> {
        let places = bytes.div_ceil(PERMIT_BYTES).clamp(1, PROPOSE_QUEUE_MAX) as u32;
        match self.permits.try_acquire_many(places) {
            Ok(taken) => Ok(taken),
            Err(_) => {
                let taken = timeout(self.wait, self.permits.acquire_many(places)).await;
                taken.map_err(|_| LimitTimeout)?.map_err(|_| LimitTimeout)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandLimiter, LimitTimeout, PERMIT_BYTES};
    use mlgw_common::limits::{PROPOSE_BYTES_MAX, PROPOSE_QUEUE_MAX};
    use std::sync::Arc;
    use std::time::Duration;

    fn impatient() -> CommandLimiter {
        CommandLimiter { wait: Duration::ZERO, ..CommandLimiter::default() }
    }

    #[tokio::test]
    async fn small_commands_count_by_number_and_large_ones_by_bytes() {
        let room = impatient();
        let mut taken = Vec::new();
        for _ in 0..PROPOSE_QUEUE_MAX / 2 {
            taken.push(room.acquire(100).await.unwrap());
        }
        taken.push(room.acquire(PROPOSE_BYTES_MAX / 2).await.unwrap());
        assert_eq!(room.acquire(1).await.err(), Some(LimitTimeout));
        taken.pop();
        assert!(room.acquire(PERMIT_BYTES + 1).await.is_ok());
    }

    #[tokio::test]
    async fn a_command_larger_than_the_limit_takes_all_permits() {
        let room = impatient();
        let alone = room.acquire(10 * PROPOSE_BYTES_MAX).await.unwrap();
        assert_eq!(room.acquire(1).await.err(), Some(LimitTimeout));
        drop(alone);
        assert!(room.acquire(1).await.is_ok());
    }

    #[tokio::test]
    async fn a_command_waits_until_permits_are_free() {
        let room = Arc::new(CommandLimiter::default());
        let all = room.acquire(PROPOSE_BYTES_MAX).await.unwrap();
        let late = Arc::clone(&room);
        let waits = tokio::spawn(async move { late.acquire(1).await.is_ok() });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(all);
        assert!(waits.await.unwrap());
    }
}
