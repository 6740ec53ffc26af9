//! Tests of the driver over a real catalogue, which one node leads.

use super::{DutyBeginError, DutyDriver, DutyLease, DutyWork, LEASE, OwnDuty, is_fittest};
use crate::admission::Admission;
use crate::admission::tests::TestMember;
use crate::services::NodeServices;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mlgw_common::time::{Instant, SuspendedTime, sleep};
use mlgw_common::{BucketName, CheckedClock, Clock, NodeId, SplitKeys, SuspensionWatch};
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, PutNode};
use mlgw_formats::schema::{Binding, Duty, DutyPhase, Node};
use mlgw_metadata::NewBucket;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Begin(Option<u64>),
    Acts,
    End,
}

/// Records the calls, except for the leases.
#[derive(Default)]
struct RecordedWork {
    events: Mutex<Vec<Event>>,
    lease: Mutex<Option<Instant>>,
    /// Outcomes of some changes are unknown.
    is_doubtful: AtomicBool,
    /// The next begin fails.
    fails: Mutex<Option<DutyBeginError>>,
    /// An end returns when the lease was extended meanwhile.
    ends_after_renewal: AtomicBool,
    /// Not all upstreams are configured.
    is_unfit: AtomicBool,
}

impl RecordedWork {
    fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    async fn until(&self, expected: &[Event]) {
        while self.events() != expected {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl DutyWork for RecordedWork {
    fn is_fit(&self) -> bool {
        !self.is_unfit.load(Relaxed)
    }

    fn begin(&self, term: Option<u64>) -> BoxFuture<'_, Result<(), DutyBeginError>> {
        self.events.lock().push(Event::Begin(term));
        let begun = self.fails.lock().take().map_or(Ok(()), Err);
        std::future::ready(begun).boxed()
    }

    fn extend(&self, lease: Instant) {
        *self.lease.lock() = Some(lease);
    }

    fn allow_acts(&self) {
        self.events.lock().push(Event::Acts);
    }

    fn end(&self) -> BoxFuture<'_, bool> {
        self.events.lock().push(Event::End);
        let before = *self.lease.lock();
        async move {
            while self.ends_after_renewal.load(Relaxed) && *self.lease.lock() == before {
                sleep(Duration::from_millis(5)).await;
            }
            !self.is_doubtful.load(Relaxed)
        }
        .boxed()
    }
}

/// A running driver.
struct RunningDriver {
    work: Arc<RecordedWork>,
    state: watch::Receiver<OwnDuty>,
    lease: Arc<DutyLease>,
    services: NodeServices,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningDriver {
    fn start(member: &TestMember) -> Self {
        Self::start_with(member, Arc::default())
    }

    fn start_with(member: &TestMember, work: Arc<RecordedWork>) -> Self {
        let catalogue = member.catalogue.clone();
        let clock: Arc<dyn Clock> = member.clock.clone();
        let admission = Admission::new(
            catalogue.clone(),
            member.sealer.clone(),
            member.dir.path().to_owned(),
            member.description.clone(),
            CheckedClock::alone(Arc::clone(&clock)),
        );
        let services = NodeServices::new(catalogue.clone(), Arc::default(), admission, clock);
        let lease = Arc::<DutyLease>::default();
        let driver = DutyDriver {
            own: NodeId(1),
            catalogue,
            probes: Arc::default(),
            services: services.clone(),
            lease: Arc::clone(&lease),
        };
        let stop = CancellationToken::new();
        let (sender, state) = watch::channel(OwnDuty::Unknown);
        let shared: Arc<dyn DutyWork> = work.clone();
        let task = tokio::spawn(driver.run(shared, sender, stop.clone()));
        Self { work, state, lease, services, stop, task }
    }

    async fn stop(self) -> Vec<Event> {
        self.stop.cancel();
        self.task.await.unwrap();
        self.work.events()
    }
}

#[test]
fn a_node_that_is_unfit_takes_the_duty_only_if_no_other_one_could_have_it() {
    let (own, others) = (NodeId(1), [NodeId(2), NodeId(3)]);
    assert!(is_fittest(own, true, &others));
    assert!(!is_fittest(own, false, &others));
    assert!(is_fittest(own, false, &[]));
}

fn duty(node: u64, term: u64, phase: DutyPhase) -> Duty {
    Duty { node, term, phase: phase as i32 }
}

/// A member that knows terms, after a term that has ended.
async fn member_at_rest() -> TestMember {
    let member = TestMember::new().await;
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    member.catalogue.set_duty(duty(1, 0, DutyPhase::Ended)).await.unwrap();
    member
}

async fn bind_bucket(member: &TestMember) {
    let bucket = NewBucket {
        name: BucketName::new("bound").unwrap(),
        owner: "owner".into(),
        region: String::new(),
        binding: Some(Binding { upstream: "store".into(), ..Binding::default() }),
        split_keys: SplitKeys::default(),
    };
    member.catalogue.create_bucket(bucket).await.unwrap();
}

#[tokio::test]
async fn the_only_node_has_the_duty_and_each_start_begins_a_term() {
    let member = member_at_rest().await;
    for term in [1, 2] {
        let mut driver = RunningDriver::start(&member);
        driver.work.until(&[Event::Begin(Some(term)), Event::Acts]).await;
        assert_eq!(member.catalogue.duty(), duty(1, term, DutyPhase::Active));
        driver.state.wait_for(|state| *state == OwnDuty::Here).await.unwrap();
        assert!(driver.work.lease.lock().is_some_and(|lease| lease > Instant::now()));
        let lease = Arc::clone(&driver.lease);
        assert!(lease.holds());
        assert_eq!(driver.stop().await.last(), Some(&Event::End));
        assert!(!lease.holds());
        assert_eq!(member.catalogue.duty(), duty(1, term, DutyPhase::Ended));
    }
    member.stop().await;
}

#[tokio::test]
async fn an_end_with_unknown_outcomes_is_recorded_and_the_next_process_does_not_act_yet() {
    let member = member_at_rest().await;
    let driver = RunningDriver::start(&member);
    driver.work.until(&[Event::Begin(Some(1)), Event::Acts]).await;
    driver.work.is_doubtful.store(true, Relaxed);
    driver.stop().await;
    assert_eq!(member.catalogue.duty(), duty(1, 1, DutyPhase::Left));
    let mut driver = RunningDriver::start(&member);
    driver.state.wait_for(|state| *state == OwnDuty::Here).await.unwrap();
    assert_eq!(member.catalogue.duty(), duty(1, 2, DutyPhase::Waiting));
    assert_eq!(driver.stop().await, [Event::Begin(Some(2)), Event::End]);
    assert_eq!(member.catalogue.duty(), duty(1, 2, DutyPhase::Left));
    member.stop().await;
}

#[tokio::test]
async fn a_process_that_starts_after_a_kill_does_not_act_yet() {
    let member = member_at_rest().await;
    bind_bucket(&member).await;
    member.catalogue.set_duty(duty(1, 1, DutyPhase::Active)).await.unwrap();
    let mut driver = RunningDriver::start(&member);
    driver.state.wait_for(|state| *state == OwnDuty::Here).await.unwrap();
    assert_eq!(member.catalogue.duty(), duty(1, 2, DutyPhase::Waiting));
    assert_eq!(driver.stop().await, [Event::Begin(Some(2)), Event::End]);
    member.stop().await;
}

#[tokio::test]
async fn the_lease_is_renewed_while_a_term_ends() {
    let member = member_at_rest().await;
    let driver = RunningDriver::start(&member);
    driver.work.until(&[Event::Begin(Some(1)), Event::Acts]).await;
    driver.work.ends_after_renewal.store(true, Relaxed);
    driver.stop().await;
    assert_eq!(member.catalogue.duty(), duty(1, 1, DutyPhase::Ended));
    member.stop().await;
}

#[tokio::test]
async fn a_term_whose_work_does_not_begin_ends_at_once_and_the_node_states_that_it_is_unfit() {
    let member = member_at_rest().await;
    let work = Arc::new(RecordedWork::default());
    *work.fails.lock() = Some(DutyBeginError::Failed("a file cannot be read".to_owned()));
    let driver = RunningDriver::start_with(&member, work);
    // No other node is fit, so this one begins again, and need not wait.
    let events = [Event::Begin(Some(1)), Event::End, Event::Begin(Some(2)), Event::Acts];
    driver.work.until(&events).await;
    assert!(driver.services.load().can_have_duty(), "its work has begun");
    driver.work.is_unfit.store(true, Relaxed);
    while driver.services.load().can_have_duty() {
        sleep(Duration::from_millis(5)).await;
    }
    driver.stop().await;
    member.stop().await;
}

#[tokio::test]
async fn a_node_stays_fit_if_too_few_others_confirm_its_rows() {
    let member = member_at_rest().await;
    let work = Arc::new(RecordedWork::default());
    *work.fails.lock() = Some(DutyBeginError::Unconfirmed("too few nodes respond".to_owned()));
    let driver = RunningDriver::start_with(&member, work);
    let events = [Event::Begin(Some(1)), Event::End, Event::Begin(Some(2)), Event::Acts];
    while driver.work.events() != events {
        assert!(driver.services.load().can_have_duty());
        sleep(Duration::from_millis(5)).await;
    }
    driver.stop().await;
    member.stop().await;
}

#[tokio::test]
async fn the_duty_ends_when_another_term_begins_and_its_row_stays() {
    let member = member_at_rest().await;
    let driver = RunningDriver::start(&member);
    driver.work.until(&[Event::Begin(Some(1)), Event::Acts]).await;
    let other = duty(2, 2, DutyPhase::Waiting);
    member.catalogue.set_duty(other).await.unwrap();
    driver.work.until(&[Event::Begin(Some(1)), Event::Acts, Event::End]).await;
    driver.stop().await;
    let now = member.catalogue.duty();
    // Node 2 has no record here, so this node takes over from it, and waits for its lease.
    assert!(now == other || now == duty(1, 3, DutyPhase::Waiting), "{now:?}");
    member.stop().await;
}

#[tokio::test]
async fn before_terms_are_known_the_duty_begins_without_a_row() {
    let member = TestMember::new().await;
    bind_bucket(&member).await;
    let driver = RunningDriver::start(&member);
    driver.work.until(&[Event::Begin(None), Event::Acts]).await;
    assert_eq!(member.catalogue.duty(), Duty::FIRST);
    // The term has no number, so it ends when terms are known. The process is too young: what the one before
    // it sent may still have an effect.
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    let events = [Event::Begin(None), Event::Acts, Event::End, Event::Begin(Some(1))];
    driver.work.until(&events).await;
    assert_eq!(member.catalogue.duty(), duty(1, 1, DutyPhase::Waiting));
    driver.stop().await;
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_does_not_hold_after_its_machine_was_suspended() {
    let suspended = Arc::new(AtomicBool::default());
    let source = Arc::clone(&suspended);
    let suspensions = SuspensionWatch::new(move || {
        let time = if source.load(Relaxed) { Duration::from_mins(1) } else { Duration::ZERO };
        SuspendedTime { at_least: time, at_most: time }
    });
    let lease = DutyLease { end: Mutex::default(), suspensions };
    lease.set(Some(Instant::now() + LEASE));
    assert!(lease.holds());
    suspended.store(true, Relaxed);
    sleep(LEASE / 2).await;
    assert!(!lease.holds(), "its clock stood still for a minute");
}

#[tokio::test]
async fn a_node_without_the_rows_of_all_groups_does_not_take_the_duty_over() {
    let member = TestMember::new().await;
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    let other = Change::PutNode(PutNode { node: Node { id: 2, ..Node::default() } });
    member.catalogue.propose(Command::from(other)).await.unwrap();
    member.catalogue.put_set(0, &[NodeId(2)], 0).await.unwrap();
    let mut driver = RunningDriver::start(&member);
    driver.state.wait_for(|state| *state == OwnDuty::Elsewhere).await.unwrap();
    assert_eq!(driver.stop().await, [Event::End], "it leads, and is not in the first set");
    assert_eq!(member.catalogue.duty(), Duty::FIRST);
    member.stop().await;
}
