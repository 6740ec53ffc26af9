//! Tests of the driver over a real catalogue, which one node leads.

use super::{DutyDriver, DutyLease, DutyWork, LEASE, OwnDuty};
use crate::admission::Admission;
use crate::admission::tests::TestMember;
use crate::services::NodeServices;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mlgw_common::time::{Instant, SuspendedTime, sleep};
use mlgw_common::{CheckedClock, Clock, NodeId, SuspensionWatch};
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::schema::{Duty, DutyPhase};
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

/// Records what it is told, except for the leases.
#[derive(Default)]
struct RecordedWork {
    events: Mutex<Vec<Event>>,
    lease: Mutex<Option<Instant>>,
    /// Outcomes of some changes are unknown.
    is_doubtful: AtomicBool,
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
    fn begin(&self, term: Option<u64>) -> BoxFuture<'_, Result<(), String>> {
        self.events.lock().push(Event::Begin(term));
        async { Ok(()) }.boxed()
    }

    fn extend(&self, lease: Instant) {
        *self.lease.lock() = Some(lease);
    }

    fn allow_acts(&self) {
        self.events.lock().push(Event::Acts);
    }

    fn end(&self) -> BoxFuture<'_, bool> {
        self.events.lock().push(Event::End);
        std::future::ready(!self.is_doubtful.load(Relaxed)).boxed()
    }
}

/// A running driver.
struct RunningDriver {
    work: Arc<RecordedWork>,
    state: watch::Receiver<OwnDuty>,
    lease: Arc<DutyLease>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningDriver {
    fn start(member: &TestMember) -> Self {
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
            services,
            lease: Arc::clone(&lease),
        };
        let (work, stop) = (Arc::new(RecordedWork::default()), CancellationToken::new());
        let (sender, state) = watch::channel(OwnDuty::Unknown);
        let shared: Arc<dyn DutyWork> = work.clone();
        let task = tokio::spawn(driver.run(shared, sender, stop.clone()));
        Self { work, state, lease, stop, task }
    }

    async fn stop(self) -> Vec<Event> {
        self.stop.cancel();
        self.task.await.unwrap();
        self.work.events()
    }
}

fn duty(node: u64, term: u64, phase: DutyPhase) -> Duty {
    Duty { node, term, phase: phase as i32 }
}

#[tokio::test]
async fn the_only_node_has_the_duty_and_each_start_begins_a_term() {
    let member = TestMember::new().await;
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    for term in [1, 2] {
        let mut driver = RunningDriver::start(&member);
        driver.work.until(&[Event::Begin(Some(term)), Event::Acts]).await;
        assert_eq!(member.catalogue.duty(), duty(1, term, DutyPhase::Writing));
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
async fn an_end_with_unknown_outcomes_is_not_recorded() {
    let member = TestMember::new().await;
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    let driver = RunningDriver::start(&member);
    driver.work.until(&[Event::Begin(Some(1)), Event::Acts]).await;
    driver.work.is_doubtful.store(true, Relaxed);
    driver.stop().await;
    assert_eq!(member.catalogue.duty(), duty(1, 1, DutyPhase::Writing));
    member.stop().await;
}

#[tokio::test]
async fn the_duty_ends_when_another_term_begins_and_its_row_stays() {
    let member = TestMember::new().await;
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
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
    let driver = RunningDriver::start(&member);
    driver.work.until(&[Event::Begin(None), Event::Acts]).await;
    assert_eq!(member.catalogue.duty(), Duty::FIRST);
    // The term goes on when terms are known.
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    assert_eq!(driver.stop().await, [Event::Begin(None), Event::Acts, Event::End]);
    assert_eq!(member.catalogue.duty(), Duty { phase: DutyPhase::Ended as i32, ..Duty::FIRST });
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
