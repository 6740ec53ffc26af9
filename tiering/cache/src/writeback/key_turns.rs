//! Turns: a writer of a key waits for the earlier writers of that key.
//!
//! Invariant: one turn of a key at a time, in order of arrival. Keys without a holder take no memory.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

/// Turns of the keys of a bucket.
#[derive(Debug, Default)]
pub(super) struct KeyTurns {
    of: Arc<Mutex<HashMap<String, Lock>>>,
}

/// Turn of a key, held until it is dropped.
#[derive(Debug)]
pub struct KeyTurn {
    of: Arc<Mutex<HashMap<String, Lock>>>,
    key: String,
    held: Option<OwnedMutexGuard<()>>,
}

impl KeyTurns {
    /// Waits for a turn.
    pub(super) async fn take(&self, key: &str) -> KeyTurn {
        let lock = self.of.lock().entry(key.to_owned()).or_default().clone();
        // A waiter that gives up removes the row in the same way as a holder does.
        let mut turn = KeyTurn { of: self.of.clone(), key: key.to_owned(), held: None };
        turn.held = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let mut of = self.of.lock();
        assert!(self.held.is_none() || of.contains_key(&self.key), "a key whose turn is held has a row");
        drop(self.held.take());
        // A waiter holds a reference, too.
        if of.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            of.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KeyTurns;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn turns_of_a_key_are_exclusive_and_leave_nothing() {
        let (turns, inside) = (Arc::new(KeyTurns::default()), Arc::new([const { AtomicU32::new(0) }; 3]));
        let tasks: Vec<_> = (0..300)
            .map(|n| {
                let (turns, inside) = (turns.clone(), inside.clone());
                tokio::spawn(async move {
                    let turn = turns.take(&(n % 3).to_string()).await;
                    assert_eq!(inside[n % 3].fetch_add(1, SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside[n % 3].fetch_sub(1, SeqCst);
                    drop(turn);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(turns.of.lock().is_empty());
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_nothing_and_blocks_no_other() {
        let turns = KeyTurns::default();
        let first = turns.take("k").await;
        let mut second = Box::pin(turns.take("k"));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(second);
        drop(first);
        assert!(turns.of.lock().is_empty());
        let (_one, _other) = (turns.take("k").await, turns.take("l").await);
        assert_eq!(turns.of.lock().len(), 2);
    }
}
