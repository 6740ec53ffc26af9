//! Start-time fair queueing with depth: which of those who wait goes next. A pure decision.
//!
//! After P. Goyal, H. Vin and H. Cheng, "Start-time Fair Queueing" (SIGCOMM 1996), and W. Jin, J. Chase and
//! J. Kaur, "Interposed Proportional Sharing for a Storage Service Utility" (SIGMETRICS 2004), who give out
//! several places at a time. A lane has a tag, the virtual time at which its next request begins: now for one
//! that was idle, or when the request before it is done at its lane's weight. The least tag goes first, and
//! virtual time is the tag of who went last. So of two lanes that both have something waiting, neither is
//! ahead of the other by more than one request of each; what a lane did while others had nothing to do is not
//! held against it. Within a lane the same holds for its ranks, of whose requests the oldest goes first: a
//! low rank waits longer, and not for ever.

use std::collections::VecDeque;

/// Virtual time of a unit of cost at weight 1. Weights divide it.
const UNIT: u64 = 16;

/// Who waits, by lanes and by `R` ranks in each.
#[derive(Debug)]
pub(super) struct Schedule<T, const R: usize> {
    order: Order,
    lanes: Vec<Lane<T, R>>,
}

#[derive(Debug)]
struct Lane<T, const R: usize> {
    order: Order,
    /// Those who wait, with what they cost.
    ranks: [VecDeque<(u64, T)>; R],
}

/// Whose turn it is among flows of requests.
#[derive(Debug)]
struct Order {
    /// The tag of who went last.
    now: u64,
    flows: Vec<Flow>,
}

#[derive(Debug)]
struct Flow {
    weight: u64,
    /// When its next request begins.
    tag: u64,
}

impl Order {
    fn new(weights: impl IntoIterator<Item = u64>) -> Self {
        let flow = |weight: u64| {
            assert!(weight > 0 && UNIT.is_multiple_of(weight), "a weight divides {UNIT}");
            Flow { weight, tag: 0 }
        };
        Self { now: 0, flows: weights.into_iter().map(flow).collect() }
    }

    /// A flow in which nobody waited has somebody again.
    fn awakes(&mut self, flow: usize) {
        let flow = &mut self.flows[flow];
        flow.tag = flow.tag.max(self.now);
    }

    /// The flow of the least tag of those in which somebody waits, of equals the first.
    fn next(&self, waits: impl Fn(usize) -> bool) -> Option<usize> {
        (0..self.flows.len()).filter(|flow| waits(*flow)).min_by_key(|flow| self.flows[*flow].tag)
    }

    /// A request of the flow goes.
    fn goes(&mut self, flow: usize, cost: u64) {
        let flow = &mut self.flows[flow];
        self.now = self.now.max(flow.tag);
        flow.tag = flow.tag.saturating_add(cost.saturating_mul(UNIT / flow.weight));
    }
}

impl<T, const R: usize> Schedule<T, R> {
    /// Lanes and ranks of these weights, of which each divides 16.
    pub(super) fn new(lanes: impl IntoIterator<Item = u64>, ranks: [u64; R]) -> Self {
        let order = Order::new(lanes);
        let lane = |_: &Flow| Lane { order: Order::new(ranks), ranks: [const { VecDeque::new() }; R] };
        Self { lanes: order.flows.iter().map(lane).collect(), order }
    }

    /// A request comes in a lane.
    pub(super) fn arrive(&mut self, at: usize, rank: usize, cost: u64, request: T) {
        let lane = &mut self.lanes[at];
        if lane.is_empty() {
            self.order.awakes(at);
        }
        if lane.ranks[rank].is_empty() {
            lane.order.awakes(rank);
        }
        lane.ranks[rank].push_back((cost, request));
    }

    /// The request that goes now.
    pub(super) fn next(&mut self) -> Option<T> {
        let at = self.order.next(|at| !self.lanes[at].is_empty())?;
        let lane = &mut self.lanes[at];
        let rank = lane.order.next(|rank| !lane.ranks[rank].is_empty())?;
        let (cost, request) = lane.ranks[rank].pop_front()?;
        lane.order.goes(rank, cost);
        self.order.goes(at, cost);
        Some(request)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_empty)
    }

    /// How many wait in each lane.
    pub(super) fn waiting(&self) -> Vec<usize> {
        self.lanes.iter().map(|lane| lane.ranks.iter().map(VecDeque::len).sum()).collect()
    }
}

impl<T, const R: usize> Lane<T, R> {
    fn is_empty(&self) -> bool {
        self.ranks.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;
    use proptest::prelude::*;

    const WEIGHTS: [u64; 4] = [4, 4, 4, 1];
    const RANKS: [u64; 4] = [1, 4, 8, 16];
    /// The rank of a request where ranks do not matter.
    const RANK: usize = 1;

    /// A request by its lane and its cost.
    type Request = (usize, u64);

    fn arrive(schedule: &mut Schedule<Request, 4>, (lane, cost): Request) {
        schedule.arrive(lane, RANK, cost, (lane, cost));
    }

    proptest! {
        /// The bound of the paper, for what has begun: of two lanes that have something waiting all the time,
        /// neither gets more for its weight than the other by more than the longest request of each.
        #[test]
        fn lanes_that_have_something_to_do_get_their_weights_share(
            before in prop::collection::vec((0usize..4, 1u64..1000), 0..50),
            costs in prop::collection::vec(prop::collection::vec(1u64..1000, 100), 4),
            turns in 1usize..80,
        ) {
            let mut schedule = Schedule::new(WEIGHTS, RANKS);
            for request in before {
                arrive(&mut schedule, request);
                schedule.next();
            }
            for (lane, costs) in costs.iter().enumerate() {
                costs.iter().for_each(|cost| arrive(&mut schedule, (lane, *cost)));
            }
            let mut got = [0; 4];
            for _ in 0..turns {
                let (lane, cost) = schedule.next().unwrap();
                got[lane] += cost;
            }
            prop_assume!(schedule.waiting().iter().all(|waiting| *waiting > 0));
            for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
                let share = |lane: usize| got[lane] as f64 / WEIGHTS[lane] as f64;
                let longest = |lane: usize| 1000.0 / WEIGHTS[lane] as f64;
                prop_assert!(share(one) - share(other) <= longest(one) + longest(other), "{got:?}");
            }
        }

        /// Whatever comes meanwhile in other lanes: before a request that waits at the head of its lane, each
        /// of them gets no more than what is due to it until then, and a request.
        #[test]
        fn nobody_waits_for_ever(
            victim in 0usize..4,
            first in 1u64..1000,
            flood in prop::collection::vec((0usize..4, 1u64..1000), 400),
        ) {
            let mut schedule = Schedule::new(WEIGHTS, RANKS);
            let flood: Vec<Request> = flood.into_iter().filter(|(lane, _)| *lane != victim).collect();
            for request in &flood[..20] {
                arrive(&mut schedule, *request);
            }
            arrive(&mut schedule, (victim, first));
            arrive(&mut schedule, (victim, 0));
            let (mut got, mut more) = ([0; 4], flood.iter().cycle());
            loop {
                // More comes than can go.
                more.by_ref().take(2).for_each(|request| arrive(&mut schedule, *request));
                match schedule.next().unwrap() {
                    (lane, 0) if lane == victim => break,
                    (lane, cost) => got[lane] += cost,
                }
                let due = |lane: usize| first as f64 / WEIGHTS[victim] as f64 * WEIGHTS[lane] as f64;
                for lane in (0..4).filter(|lane| *lane != victim) {
                    let beforehand: u64 = flood[..20].iter().filter(|(l, _)| *l == lane).map(|(_, c)| c).sum();
                    prop_assert!(got[lane] as f64 <= due(lane) + beforehand as f64 + 2000.0, "{got:?}");
                }
            }
        }

        #[test]
        fn everything_that_comes_goes_once_and_in_its_lane_in_order(
            requests in prop::collection::vec((0usize..4, 1u64..1000, any::<bool>()), 0..200),
        ) {
            let mut schedule = Schedule::new(WEIGHTS, RANKS);
            let (mut went, mut came) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
            for (number, (lane, cost, goes)) in requests.into_iter().enumerate() {
                schedule.arrive(lane, RANK, cost, (lane, number));
                came[lane].push(number);
                if goes {
                    let (lane, number) = schedule.next().expect("somebody waits, so somebody goes");
                    went[lane].push(number);
                }
            }
            while let Some((lane, number)) = schedule.next() {
                went[lane].push(number);
            }
            prop_assert!(schedule.is_empty());
            prop_assert_eq!(went, came);
        }
    }

    #[test]
    fn a_lane_that_was_idle_goes_next_and_is_owed_nothing() {
        let mut schedule = Schedule::new(WEIGHTS, RANKS);
        (0..100).for_each(|_| arrive(&mut schedule, (2, 10)));
        assert!((0..50).all(|_| schedule.next().is_some()));
        (0..100).for_each(|_| arrive(&mut schedule, (0, 10)));
        let lanes: Vec<usize> = (0..6).map(|_| schedule.next().unwrap().0).collect();
        assert_eq!(lanes, [0, 0, 2, 0, 2, 0], "at once, and then in turns");
        arrive(&mut schedule, (3, 10));
        assert!((0..3).any(|_| schedule.next().unwrap().0 == 3), "the background, too");
    }

    #[test]
    fn what_nobody_else_wants_a_lane_gets_all_of() {
        let mut schedule = Schedule::new(WEIGHTS, RANKS);
        (0..1000).for_each(|_| arrive(&mut schedule, (3, 1 << 40)));
        assert_eq!((0..1000).filter_map(|_| schedule.next()).count(), 1000);
    }

    #[test]
    fn ranks_of_a_lane_share_it_by_weight_in_the_order_of_coming() {
        let mut schedule = Schedule::<(usize, usize), 4>::new(WEIGHTS, RANKS);
        for number in 0..100 {
            (0..4).for_each(|rank| schedule.arrive(2, rank, 10, (rank, number)));
        }
        let went: Vec<(usize, usize)> = (0..58).map(|_| schedule.next().unwrap()).collect();
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
    fn a_rank_gets_no_more_for_its_lane() {
        let mut schedule = Schedule::<usize, 4>::new(WEIGHTS, RANKS);
        (0..100).for_each(|_| schedule.arrive(1, 3, 10, 1));
        (0..100).for_each(|_| schedule.arrive(2, 0, 10, 2));
        let lanes: Vec<usize> = (0..100).map(|_| schedule.next().unwrap()).collect();
        assert_eq!(
            lanes.iter().filter(|lane| **lane == 1).count(),
            50,
            "urgent ones of one lane, low ones of the other"
        );
    }
}
