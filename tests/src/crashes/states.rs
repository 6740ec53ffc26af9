//! The real recovery on crash states: writes a state out, starts the shipped binary on it and reads directly
//! after the start.

use mlgw_common::time::Instant;
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::directory_in_memory;
use super::recorded::{DATA_DIR, RecordedRun, with_small_settings};
use crate::check::check;
use crate::power_cut::{CutStyle, IgnoredSyncs, PowerCut, crash_state};
use crate::seed::Rng;
use crate::server::ServerSetup;

/// States recovered concurrently: the number of cores of the CI machine.
const CONCURRENCY: usize = 2;

/// Recovery time above which a state is reported, with a breakdown of the time.
const SLOW: Duration = Duration::from_secs(5);

/// A promise that a power cut broke.
pub(super) struct BrokenState {
    seed: u64,
    cut: PowerCut,
    reasons: Vec<String>,
    log: String,
    /// Directory of the state, kept for inspection by a person.
    kept_dir: Option<PathBuf>,
}

impl BrokenState {
    /// A one-line summary.
    pub(super) fn summary(&self) -> String {
        let reason = self.reasons.first().map_or("", String::as_str);
        format!("{:?} at {}: {}", self.cut.style, self.cut.at, reason.chars().take(160).collect::<String>())
    }
}

impl fmt::Display for BrokenState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, cut, reasons, log, kept_dir: kept } = self;
        writeln!(f, "recording of seed {seed}, {cut:?}, state kept in {kept:?}")?;
        for reason in reasons {
            writeln!(f, "  {reason}")?;
        }
        let tail: Vec<&str> = log.lines().rev().take(30).collect();
        tail.iter().rev().try_for_each(|line| writeln!(f, "  | {line}"))
    }
}

/// The cuts of a recording: some at the moments of responses, where a missing sync shows; some just before a
/// sync, where most is undecided; some at random positions.
pub(super) fn cuts(recorded: &RecordedRun, count: usize, styles: fn(&mut Rng) -> CutStyle) -> Vec<PowerCut> {
    let own = |at: &usize| *at >= recorded.server_start;
    let answers: Vec<usize> = recorded.history.answer_positions().into_iter().filter(own).collect();
    let syncs: Vec<usize> = recorded.recording.syncs(|_, _| true).into_iter().filter(own).collect();
    let end = recorded.recording.position();
    let mut rng = Rng::new(recorded.seed).fork(0x6375_7473);
    (0..count)
        .map(|_| {
            let at = match rng.below(8) {
                0..=3 => *rng.pick(&answers),
                4..=5 => *rng.pick(&syncs),
                _ => recorded.server_start + rng.index(end + 1 - recorded.server_start),
            };
            PowerCut { at, style: styles(&mut rng), seed: rng.next() }
        })
        .collect()
}

/// Cuts just before the syncs of one class, with every unsynced write torn: the worst moment for a file that
/// is being appended to.
pub(super) fn cuts_before(recorded: &RecordedRun, class: IgnoredSyncs, count: usize) -> Vec<PowerCut> {
    let syncs = recorded.recording.syncs(class);
    let syncs: Vec<usize> = syncs.into_iter().filter(|at| *at >= recorded.server_start).collect();
    let mut rng = Rng::new(recorded.seed).fork(0x746f_726e);
    let cut = |_| PowerCut { at: *rng.pick(&syncs), style: CutStyle::Torn, seed: rng.next() };
    (0..if syncs.is_empty() { 0 } else { count }).map(cut).collect()
}

/// Recovers every state, [`CONCURRENCY`] concurrently; stops early once `enough` states broke a promise.
/// Returns the broken states and the number of states tried.
pub(super) fn recover_all(
    recorded: &RecordedRun,
    cuts: &[PowerCut],
    ignored: IgnoredSyncs,
    broken_max: usize,
) -> (Vec<BrokenState>, usize) {
    let next = AtomicUsize::new(0);
    let broken = Mutex::new(Vec::new());
    let found = || broken.lock().expect("lock is not poisoned").len();
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENCY {
            scope.spawn(|| {
                while found() < broken_max
                    && let Some(cut) = cuts.get(next.fetch_add(1, Ordering::SeqCst))
                {
                    if let Err(one) = recover(recorded, *cut, ignored) {
                        broken.lock().expect("lock is not poisoned").push(one);
                    }
                }
            });
        }
    });
    let tried = next.into_inner().min(cuts.len());
    (broken.into_inner().expect("lock is not poisoned"), tried)
}

/// Ratio of states that are also checked before recovery: 1 in [`CHECKED_ONE_IN`]. The state that a power
/// loss leaves is not damage.
const CHECKED_ONE_IN: u64 = 8;

/// Recovers one state and reads everything.
pub(super) fn recover(
    recorded: &RecordedRun,
    cut: PowerCut,
    ignored: IgnoredSyncs,
) -> Result<(), BrokenState> {
    let dir = directory_in_memory();
    crash_state(&recorded.recording, cut, ignored).write_to(dir.path()).expect("the state is written");
    let Err((reasons, log)) =
        read_back(&with_small_settings(ServerSetup::new(dir.path().join(DATA_DIR))), recorded, cut)
    else {
        return Ok(());
    };
    let kept = std::env::var_os("MLGW_CRASH_KEEP").map(|_| dir.keep());
    Err(BrokenState { seed: recorded.seed, cut, reasons, log, kept_dir: kept })
}

fn read_back(
    setup: &ServerSetup,
    recorded: &RecordedRun,
    cut: PowerCut,
) -> Result<(), (Vec<String>, String)> {
    let start = Instant::now();
    // Before `node.json` is written there is no data directory to check.
    if cut.seed.is_multiple_of(CHECKED_ONE_IN) && setup.data_dir.join("node.json").exists() {
        let damage = crate::store::check(&setup.data_dir);
        if !damage.is_empty() {
            return Err((vec![format!("`mlgw store check` reports damage: {damage:?}")], String::new()));
        }
    }
    let mut server = setup
        .try_start()
        .map_err(|failure| (vec![format!("the server does not start: {:?}", failure.status)], failure.log))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut rng = Rng::new(cut.seed);
    let started = start.elapsed();
    let found = runtime.block_on(check(&server.client(), &recorded.history, cut.at, &mut rng));
    let checked = start.elapsed();
    if let Err(reasons) = found {
        return Err((reasons, server.log()));
    }
    drop(runtime);
    server.send_sigterm();
    let status = server.try_wait_exit();
    if start.elapsed() > SLOW {
        let stopped = start.elapsed();
        eprintln!("slow: {cut:?} ready {started:?}, read {checked:?}, ended {stopped:?}\n{}", server.log());
    }
    if status.and_then(|status| status.code()) != Some(0) {
        return Err((vec![format!("SIGTERM ended in {status:?}")], server.log()));
    }
    Ok(())
}

/// States per second, for the progress lines.
pub(super) fn describe_rate(states: usize, since: Instant) -> String {
    let elapsed = since.elapsed().max(Duration::from_millis(1));
    format!(
        "{states} states in {:.1} s, {:.1}/s",
        elapsed.as_secs_f64(),
        states as f64 / elapsed.as_secs_f64()
    )
}
