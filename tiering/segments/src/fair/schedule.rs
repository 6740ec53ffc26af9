//! Start-time fair queueing with depth: selects the next waiting request. Pure; no clock, no I/O.
//!
//! After P. Goyal, H. Vin and H. Cheng, "Start-time Fair Queueing" (SIGCOMM 1996), and W. Jin, J. Chase and
//! J. Kaur, "Interposed Proportional Sharing for a Storage Service Utility" (SIGMETRICS 2004), which extends
//! it to several slots at a time. A lane has a tag, the virtual time at which its next request starts: the
//! current virtual time for a lane that was idle, or the time at which its previous request ends at the
//! lane's weight. The lane with the least tag goes first, and virtual time is the tag of the last request
//! that went. So of two backlogged lanes neither gets ahead of the other by more than one request of each;
//! service that a lane got while the others were idle is not charged to it later. The same algorithm orders
//! the ranks within a lane, each of them first in, first out: a low rank waits longer, but is never starved.

use std::collections::VecDeque;

/// Virtual time of a unit of cost at weight 1. Every weight divides it.
const UNIT: u64 = 16;

/// Waiting requests, by lane and by `R` ranks in each lane.
#[derive(Debug)]
pub(super) struct FairSchedule<T, const R: usize> {
    order: FlowOrder,
    lanes: Vec<LaneQueues<T, R>>,
}

#[derive(Debug)]
struct LaneQueues<T, const R: usize> {
    order: FlowOrder,
    /// Waiting requests of each rank, with their costs.
    ranks: [VecDeque<(u64, T)>; R],
}

/// Selects the next of several flows of requests (lanes, or ranks of a lane).
#[derive(Debug)]
struct FlowOrder {
    /// Virtual time: the tag of the request that went last.
    now: u64,
    flows: Vec<Flow>,
}

#[derive(Debug)]
struct Flow {
    weight: u64,
    /// Virtual time at which the next request of the flow starts.
    tag: u64,
}

impl FlowOrder {
    fn new(weights: impl IntoIterator<Item = u64>) -> Self {
        let flow = |weight: u64| {
            assert!(weight > 0 && UNIT.is_multiple_of(weight), "a weight divides {UNIT}");
            Flow { weight, tag: 0 }
        };
        Self { now: 0, flows: weights.into_iter().map(flow).collect() }
    }

    /// Marks a flow as backlogged again after it was idle.
    fn activate(&mut self, flow: usize) {
        let flow = &mut self.flows[flow];
        flow.tag = flow.tag.max(self.now);
    }

    /// Returns the backlogged flow with the least tag; the first of equals.
    fn first_backlogged(&self, waits: impl Fn(usize) -> bool) -> Option<usize> {
        (0..self.flows.len()).filter(|flow| waits(*flow)).min_by_key(|flow| self.flows[*flow].tag)
    }

    /// Charges a request of the flow that goes now.
    fn charge(&mut self, flow: usize, cost: u64) {
        let flow = &mut self.flows[flow];
        self.now = self.now.max(flow.tag);
        flow.tag = flow.tag.saturating_add(cost.saturating_mul(UNIT / flow.weight));
    }
}

impl<T, const R: usize> FairSchedule<T, R> {
    /// Creates a schedule with these weights of lanes and ranks. Each weight must divide 16.
    pub(super) fn new(lanes: impl IntoIterator<Item = u64>, ranks: [u64; R]) -> Self {
        let order = FlowOrder::new(lanes);
        let lane =
            |_: &Flow| LaneQueues { order: FlowOrder::new(ranks), ranks: [const { VecDeque::new() }; R] };
        Self { lanes: order.flows.iter().map(lane).collect(), order }
    }

    /// Queues a request.
    pub(super) fn push(&mut self, at: usize, rank: usize, cost: u64, request: T) {
        let lane = &mut self.lanes[at];
        if lane.is_empty() {
            self.order.activate(at);
        }
        if lane.ranks[rank].is_empty() {
            lane.order.activate(rank);
        }
        lane.ranks[rank].push_back((cost, request));
    }

    /// Removes and returns the next request.
    pub(super) fn pop(&mut self) -> Option<T> {
        let at = self.order.first_backlogged(|at| !self.lanes[at].is_empty())?;
        let lane = &mut self.lanes[at];
        let rank = lane.order.first_backlogged(|rank| !lane.ranks[rank].is_empty())?;
        let (cost, request) = lane.ranks[rank].pop_front()?;
        lane.order.charge(rank, cost);
        self.order.charge(at, cost);
        Some(request)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(LaneQueues::is_empty)
    }

    /// Number of waiting requests in each lane.
    pub(super) fn waiting(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.ranks.iter().map(VecDeque::len).sum()).collect()
    }
}

impl<T, const R: usize> LaneQueues<T, R> {
    fn is_empty(&self) -> bool {
        self.ranks.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::FairSchedule;
    use proptest::prelude::*;

    const WEIGHTS: [u64; 4] = [4, 4, 4, 1];
    const RANKS: [u64; 4] = [1, 4, 8, 16];
    /// Rank of requests in tests in which ranks do not matter.
    const RANK: usize = 1;

    /// A request as (lane, cost).
    type Request = (usize, u64);

    fn arrive(schedule: &mut FairSchedule<Request, 4>, (lane, cost): Request) {
        schedule.push(lane, RANK, cost, (lane, cost));
    }

    proptest! {
        /// The bound of the paper, applied to requests that started: of two lanes that are backlogged all the
        /// time, neither gets more service per weight than the other by more than the longest request of
        /// each.
        #[test]
        fn backlogged_lanes_share_by_weight(
            before in prop::collection::vec((0usize..4, 1u64..1000), 0..50),
            costs in prop::collection::vec(prop::collection::vec(1u64..1000, 100), 4),
            turns in 1usize..80,
        ) {
            let mut schedule = FairSchedule::new(WEIGHTS, RANKS);
            for request in before {
                arrive(&mut schedule, request);
                schedule.pop();
            }
            for (lane, costs) in costs.iter().enumerate() {
                costs.iter().for_each(|cost| arrive(&mut schedule, (lane, *cost)));
            }
            let mut got = [0; 4];
            for _ in 0..turns {
                let (lane, cost) = schedule.pop().unwrap();
                got[lane] += cost;
            }
            prop_assume!(schedule.waiting().iter().all(|waiting| *waiting > 0));
            for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
                let share = |lane: usize| got[lane] as f64 / WEIGHTS[lane] as f64;
                let longest = |lane: usize| 1000.0 / WEIGHTS[lane] as f64;
                prop_assert!(share(one) - share(other) <= longest(one) + longest(other), "{got:?}");
            }
        }

        /// Regardless of the requests that arrive in other lanes: before a request at the head of its lane
        /// goes, each other lane gets at most the service due to it until then, and one request.
        #[test]
        fn no_lane_is_starved(
            victim in 0usize..4,
            first in 1u64..1000,
            flood in prop::collection::vec((0usize..4, 1u64..1000), 400),
        ) {
            let mut schedule = FairSchedule::new(WEIGHTS, RANKS);
            let flood: Vec<Request> = flood.into_iter().filter(|(lane, _)| *lane != victim).collect();
            for request in &flood[..20] {
                arrive(&mut schedule, *request);
            }
            arrive(&mut schedule, (victim, first));
            arrive(&mut schedule, (victim, 0));
            let (mut got, mut more) = ([0; 4], flood.iter().cycle());
            loop {
                // More requests arrive than are served.
                more.by_ref().take(2).for_each(|request| arrive(&mut schedule, *request));
                match schedule.pop().unwrap() {
                    (lane, 0) if lane == victim => break,
                    (lane, cost) => got[lane] += cost,
                }
                let due = |lane: usize| first as f64 / WEIGHTS[victim] as f64 * WEIGHTS[lane] as f64;
                for lane in (0..4).filter(|lane| *lane != victim) {
                    let beforehand = flood[..20].iter().filter(|(l, _)| *l == lane);
                    let beforehand: u64 = beforehand.map(|(_, c)| c).sum();
                    prop_assert!(got[lane] as f64 <= due(lane) + beforehand as f64 + 2000.0, "{got:?}");
                }
            }
        }

        #[test]
        fn every_request_goes_once_and_in_order_within_its_lane(
            requests in prop::collection::vec((0usize..4, 1u64..1000, any::<bool>()), 0..200),
        ) {
            let mut schedule = FairSchedule::new(WEIGHTS, RANKS);
            let (mut went, mut came) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
            for (number, (lane, cost, goes)) in requests.into_iter().enumerate() {
                schedule.push(lane, RANK, cost, (lane, number));
                came[lane].push(number);
                if goes {
                    let (lane, number) = schedule.pop().expect("a request waits, so one is scheduled");
                    went[lane].push(number);
                }
            }
            while let Some((lane, number)) = schedule.pop() {
                went[lane].push(number);
            }
            prop_assert!(schedule.is_empty());
            prop_assert_eq!(went, came);
        }
    }

    #[test]
    fn an_idle_lane_goes_next_and_has_no_accrued_credit() {
        let mut schedule = FairSchedule::new(WEIGHTS, RANKS);
        (0..100).for_each(|_| arrive(&mut schedule, (2, 10)));
        assert!((0..50).all(|_| schedule.pop().is_some()));
        (0..100).for_each(|_| arrive(&mut schedule, (0, 10)));
        let lanes: Vec<usize> = (0..6).map(|_| schedule.pop().unwrap().0).collect();
        assert_eq!(lanes, [0, 0, 2, 0, 2, 0], "immediately, then in turn");
        arrive(&mut schedule, (3, 10));
        assert!((0..3).any(|_| schedule.pop().unwrap().0 == 3), "the background, too");
    }

    #[test]
    fn a_lane_alone_gets_the_whole_disk() {
        let mut schedule = FairSchedule::new(WEIGHTS, RANKS);
        (0..1000).for_each(|_| arrive(&mut schedule, (3, 1 << 40)));
        assert_eq!((0..1000).filter_map(|_| schedule.pop()).count(), 1000);
    }

    #[test]
    fn ranks_of_a_lane_share_by_weight_and_are_fifo() {
        let mut schedule = FairSchedule::<(usize, usize), 4>::new(WEIGHTS, RANKS);
        for number in 0..100 {
            (0..4).for_each(|rank| schedule.push(2, rank, 10, (rank, number)));
        }
        let went: Vec<(usize, usize)> = (0..58).map(|_| schedule.pop().unwrap()).collect();
        let of_rank =
            |rank: usize| went.iter().filter(|(r, _)| *r == rank).map(|(_, n)| *n).collect::<Vec<_>>();
        for (rank, weight) in RANKS.into_iter().enumerate() {
            let went = of_rank(rank);
            assert!(went.iter().copied().eq(0..went.len()), "rank {rank} in its order: {went:?}");
            let due = 2 * usize::try_from(weight).unwrap();
            assert!(went.len().abs_diff(due) <= 1, "rank {rank}: {} of {due}", went.len());
        }
    }

    #[test]
    fn ranks_do_not_change_the_share_of_their_lane() {
        let mut schedule = FairSchedule::<usize, 4>::new(WEIGHTS, RANKS);
        (0..100).for_each(|_| schedule.push(1, 3, 10, 1));
        (0..100).for_each(|_| schedule.push(2, 0, 10, 2));
        let lanes: Vec<usize> = (0..100).map(|_| schedule.pop().unwrap()).collect();
        assert_eq!(
            lanes.iter().filter(|lane| **lane == 1).count(),
            50,
            "urgent ones of one lane, low ones of the other"
        );
    }
}
