//! Turns: who writes a key waits for who writes it before him.
//!
//! Always: one turn of a key at a time, in the order of asking. What nobody holds takes no memory.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The turns of the keys of a bucket.
#[derive(Debug, Default)]
pub(super) struct Turns {
    of: Arc<Mutex<HashMap<String, Lock>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    of: Arc<Mutex<HashMap<String, Lock>>>,
    key: String,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for a turn.
    pub(super) async fn take(&self, key: &str) -> Turn {
        let lock = self.of.lock().entry(key.to_owned()).or_default().clone();
        // Whoever gives up waiting takes care of the row as who had his turn does.
        let mut turn = Turn { of: self.of.clone(), key: key.to_owned(), held: None };
        turn.held = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut of = self.of.lock();
        drop(self.held.take());
        // Who waits holds it, too.
        if of.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            of.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_at_a_time_of_a_key_and_nothing_is_left() {
        let (turns, inside) = (Arc::new(Turns::default()), Arc::new([const { AtomicU32::new(0) }; 3]));
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
    async fn who_gives_up_leaves_nothing_and_holds_nobody_up() {
        let turns = Turns::default();
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
