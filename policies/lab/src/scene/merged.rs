//! Requests of several sources, merged in order of time.
//!
//! A source is not polled before its first request is due, so that its state (a permutation of a dataset)
//! is not allocated earlier. A source is dropped when it is exhausted.

use super::GeneratedRequest;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Requests of one source, in order of time.
pub type RequestIter = Box<dyn Iterator<Item = GeneratedRequest> + Send>;

/// Requests of all sources in order of time; requests at the same time are in order of sources.
#[derive(Default)]
pub struct MergedRequests {
    sources: Vec<QueuedRequestIter>,
    /// Due time and number of each source that has more requests.
    due: BinaryHeap<Reverse<(u64, u32)>>,
}

struct QueuedRequestIter {
    source: RequestIter,
    /// Next request of the source; `None` before its first poll.
    head: Option<GeneratedRequest>,
}

impl MergedRequests {
    /// Adds a source whose first request is not before `start_us`.
    pub(crate) fn add(&mut self, start_us: u64, source: RequestIter) {
        self.due.push(Reverse((start_us, self.sources.len() as u32)));
        self.sources.push(QueuedRequestIter { source, head: None });
    }
}

impl Iterator for MergedRequests {
    type Item = GeneratedRequest;

    fn next(&mut self) -> Option<GeneratedRequest> {
        loop {
            let mut first = self.due.peek_mut()?;
            let Reverse((due_us, number)) = *first;
            let waiting = &mut self.sources[number as usize];
            let head = waiting.head.take();
            waiting.head = waiting.source.next();
            match &waiting.head {
                Some(next) => {
                    debug_assert!(next.at_us >= due_us, "a source is ordered by time");
                    // The heap restores its order when `first` is dropped.
                    *first = Reverse((next.at_us.max(due_us), number));
                }
                None => {
                    std::collections::binary_heap::PeekMut::pop(first);
                    waiting.source = Box::new(std::iter::empty());
                }
            }
            if head.is_some() {
                return head;
            }
        }
    }
}

impl std::fmt::Debug for MergedRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").field("sources", &self.sources.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{GeneratedRequest, MergedRequests};
    use mlgw_policies::access::Op;

    fn request(at_us: u64, stream: u16) -> GeneratedRequest {
        GeneratedRequest { at_us, range: 0..1, key: 0, epoch: 0, caller: 0, stream, op: Op::Read }
    }

    #[test]
    fn requests_are_merged_by_time_then_by_source() {
        let mut requests = MergedRequests::default();
        requests.add(0, Box::new([5, 7, 7, 20].map(|at| request(at, 0)).into_iter()));
        requests.add(7, Box::new([7, 8].map(|at| request(at, 1)).into_iter()));
        requests.add(3, Box::new(std::iter::empty()));
        let found: Vec<_> = requests.map(|request| (request.at_us, request.stream)).collect();
        assert_eq!(found, [(5, 0), (7, 0), (7, 0), (7, 1), (8, 1), (20, 0)]);
    }

    #[test]
    fn a_source_is_not_polled_before_it_is_due() {
        let mut requests = MergedRequests::default();
        requests.add(0, Box::new((0..10).map(|at| request(at, 0))));
        requests.add(10, Box::new(std::iter::from_fn(|| panic!("not due yet"))));
        assert_eq!(requests.take(10).count(), 10);
    }
}
