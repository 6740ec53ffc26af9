//! Makes room among the connections of a listener that has reached its limit.
//!
//! A connection without a complete request costs its client nothing, so an attacker opens many of them. At
//! the limit, the oldest such connection is closed to admit a new one. No request is lost, because it carried
//! none. Next are connections that are idle after requests, the longest idle first, and then those whose
//! answer only waits for the remainder of an unneeded body. Connections with any other request in flight are
//! never closed. Only the listeners for operators and probes do this. S3 clients keep connections that they
//! have used, so at the limit of an S3 listener new ones are refused instead.
//!
//! Decisions depend on [`Activity`] only. All state is in memory and empty after a restart.

use super::watch::Activity;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use tokio_util::sync::CancellationToken;

/// State of an open connection that the listener uses to make room.
#[derive(Debug)]
pub struct ConnectionState {
    /// Activity of the connection.
    pub activity: Arc<Activity>,
    /// Cancelled when the connection must close to make room.
    pub room_needed: CancellationToken,
}

impl ConnectionState {
    /// Returns the state of a connection that opens now.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { activity: Activity::new(), room_needed: CancellationToken::new() })
    }
}

/// The connections of a listener, in the order of their arrival.
#[derive(Debug)]
pub(super) struct ConnectionRegistry {
    /// Number of entries beyond which those of closed connections are removed.
    entries_max: usize,
    lists: Mutex<ConnectionLists>,
}

#[derive(Debug, Default)]
struct ConnectionLists {
    /// Connections that had no request when they were last checked.
    unused: VecDeque<Weak<ConnectionState>>,
    /// Connections that had a request.
    used: VecDeque<Weak<ConnectionState>>,
}

impl ConnectionRegistry {
    pub(super) fn new(connections_max: usize) -> Self {
        Self { entries_max: connections_max.saturating_mul(2).max(16), lists: Mutex::default() }
    }

    /// Adds a connection.
    pub(super) fn add(&self, connection: &Arc<ConnectionState>) {
        assert!(!connection.room_needed.is_cancelled(), "a connection is added before it can be closed");
        let mut seats = self.lists.lock();
        if seats.unused.len() + seats.used.len() >= self.entries_max {
            seats.remove_closed();
        }
        seats.unused.push_back(Arc::downgrade(connection));
    }

    /// Closes one connection to make room. Returns false if all connections are busy.
    pub(super) fn make_room(&self) -> bool {
        let mut seats = self.lists.lock();
        while let Some(entry) = seats.unused.pop_front() {
            match entry.upgrade() {
                Some(seat) if !seat.activity.had_request() => {
                    seat.room_needed.cancel();
                    return true;
                }
                _ => seats.reclassify(entry),
            }
        }
        seats.used.retain(|entry| entry.strong_count() > 0);
        let removable_for = |seat: &Arc<ConnectionState>| {
            seat.activity.removable_for().filter(|_| !seat.room_needed.is_cancelled())
        };
        // Of equals the last one is taken: the oldest.
        let used = seats.used.iter().rev().filter_map(Weak::upgrade);
        let longest =
            used.filter_map(|seat| Some((removable_for(&seat)?, seat))).max_by_key(|(priority, _)| *priority);
        longest.inspect(|(_, seat)| seat.room_needed.cancel()).is_some()
    }
}

impl ConnectionLists {
    /// Removes entries of connections that are closed.
    fn remove_closed(&mut self) {
        let unused = std::mem::take(&mut self.unused);
        unused.into_iter().for_each(|entry| self.reclassify(entry));
        self.used.retain(|entry| entry.strong_count() > 0);
    }

    fn reclassify(&mut self, entry: Weak<ConnectionState>) {
        match entry.upgrade().map(|seat| seat.activity.had_request()) {
            Some(false) => self.unused.push_back(entry),
            Some(true) => self.used.push_back(entry),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectionRegistry, ConnectionState};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn crowd_of(count: usize) -> (ConnectionRegistry, Vec<Arc<ConnectionState>>) {
        let (crowd, seats) =
            (ConnectionRegistry::new(count), (0..count).map(|_| ConnectionState::new()).collect::<Vec<_>>());
        seats.iter().for_each(|seat| crowd.add(seat));
        (crowd, seats)
    }

    fn closed(seats: &[Arc<ConnectionState>]) -> Vec<usize> {
        (0..seats.len()).filter(|number| seats[*number].room_needed.is_cancelled()).collect()
    }

    #[test]
    fn the_oldest_connection_without_a_request_goes_first() {
        let (crowd, seats) = crowd_of(4);
        drop(seats[1].activity.request());
        assert!(crowd.make_room() && crowd.make_room());
        assert_eq!(closed(&seats), [0, 2]);
        assert!(crowd.make_room());
        assert_eq!(closed(&seats), [0, 2, 3]);
    }

    #[test]
    fn idle_ones_make_room_and_those_at_work_never_do() {
        let (crowd, seats) = crowd_of(4);
        drop(seats[0].activity.request());
        let _working = seats[1].activity.request();
        drop(seats[2].activity.request());
        assert!(crowd.make_room());
        assert_eq!(closed(&seats), [3], "no request arrived on it");
        assert!(crowd.make_room() && crowd.make_room());
        assert!(!crowd.make_room());
        assert_eq!(closed(&seats), [0, 2, 3]);
    }

    #[test]
    fn an_answer_that_waits_for_an_unneeded_body_makes_room_last() {
        let (crowd, seats) = crowd_of(3);
        let _working: Vec<_> = seats.iter().take(2).map(|seat| seat.activity.request()).collect();
        seats[0].activity.begin_body_wait();
        drop(seats[2].activity.request());
        mlgw_common::time::block_for(std::time::Duration::from_millis(2));
        assert!(crowd.make_room());
        assert_eq!(closed(&seats), [2], "an idle one is closed first");
        assert!(crowd.make_room());
        assert!(!crowd.make_room());
        assert_eq!(closed(&seats), [0, 2]);
    }

    proptest! {
        /// Connections open, get requests and close in any order. The number of entries stays bounded.
        #[test]
        fn entries_are_bounded_and_room_is_made_while_a_connection_is_idle(
            steps in prop::collection::vec((0_u8..4, 0_usize..8), 1..400),
        ) {
            let (crowd, mut open) = (ConnectionRegistry::new(8), Vec::<Arc<ConnectionState>>::new());
            for (step, number) in steps {
                match step {
                    0 if open.len() < 8 => {
                        open.push(ConnectionState::new());
                        crowd.add(open.last().unwrap());
                    }
                    1 if number < open.len() => drop(open.remove(number)),
                    2 if number < open.len() => drop(open[number].activity.request()),
                    3 => {
                        prop_assert_eq!(crowd.make_room(), !open.is_empty());
                        open.retain(|seat| !seat.room_needed.is_cancelled());
                    }
                    _ => {}
                }
                let seats = crowd.lists.lock();
                prop_assert!(seats.unused.len() + seats.used.len() <= 17);
            }
        }
    }
}
