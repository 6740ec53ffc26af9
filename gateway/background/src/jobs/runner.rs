//! Runs jobs: requested ones, those left by a restart, and those due by schedule.
//!
//! The runner checks for work at each change of a job in the catalogue, and every second. All of its inputs
//! are in the catalogue, so nothing is lost with the process.

use super::JobContext;
use super::cron::CronSchedule;
use super::running_job::{JobStopSignals, RunningJob};
use super::{JobOutcome, JobRun, JobStop, Jobs, kind_name, state_name};
use mlgw_cache::copies::PinnedCopies;
use mlgw_common::Timestamp;
use mlgw_common::limits::JOBS_RUNNING_MAX;
use mlgw_formats::command::Reject;
use mlgw_formats::command::{ClaimJob, CreateJob, EndJob, JobStep, StepJob, UpdateJobProgress};
use mlgw_formats::schema::{Dataset, Job, JobKind, JobState};
use mlgw_metadata::ProposeError;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Interval of checks without a change in the catalogue: a schedule may be due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which progress is recorded, which limits the work repeated after a crash.
const RECORD_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after the catalogue refused a step because of overload.
pub(super) const OVERLOAD_PAUSE: Duration = Duration::from_millis(200);
/// Requester of jobs that were due by schedule.
const BY_SCHEDULE: &str = "schedule";

impl Jobs {
    /// Starts running jobs, until [`Jobs::stop`].
    pub fn start(self: &Arc<Self>, context: JobContext) {
        self.tasks.spawn(Arc::clone(self).count_periodically());
        let jobs = Arc::clone(self);
        self.tasks.spawn(async move {
            loop {
                // Subscribed before the check, so that changes during the check are not missed.
                let changed = jobs.catalogue.job_changed();
                if jobs.closed.run_until_cancelled(jobs.check_jobs(&context)).await.is_none() {
                    return;
                }
                tokio::select! {
                    () = jobs.closed.cancelled() => return,
                    () = changed => {}
                    () = mlgw_common::time::sleep(CHECK_INTERVAL) => {}
                }
            }
        });
    }

    async fn check_jobs(self: &Arc<Self>, context: &JobContext) {
        let datasets = self.catalogue.datasets();
        self.set_pins();
        let mut waiting = Vec::new();
        for dataset in &datasets {
            match self.catalogue.job(dataset.active_job) {
                Some(job) => waiting.extend(self.claimable(dataset, &job)),
                None => self.create_due(dataset).await,
            }
        }
        waiting.sort_by_key(|(_, job)| job.id);
        for (dataset, job) in waiting {
            self.begin(context, dataset, &job);
        }
    }

    /// Forwards a cancellation to a job that runs here; returns a job that no task is running.
    fn claimable(&self, dataset: &Arc<Dataset>, job: &Arc<Job>) -> Option<(Arc<Dataset>, Arc<Job>)> {
        if let Some(live) = self.live.lock().get(&job.id) {
            if job.cancel_asked {
                live.cancel.cancel();
            }
            return None;
        }
        // The duty node continues what the one before it began.
        let is_ours = job.state() == JobState::Queued
            || job.node == self.catalogue.node().get()
            || self.duty_term.is_some();
        (is_ours && !job.has_ended()).then(|| (Arc::clone(dataset), Arc::clone(job)))
    }

    /// Replaces the copies pinned by rules. Copies pinned with datasets remain pinned.
    pub fn set_rule_pins(&self, pins: Vec<PinnedCopies>) {
        *self.rule_pins.lock() = pins;
        self.set_pins();
    }

    /// Passes the current pins to the policy driver and to the store of clean copies.
    pub fn set_pins(&self) {
        let mut pins = self.dataset_pins();
        // Dataset pins come first, so that the bytes they cover do not count for a rule.
        pins.extend(self.rule_pins.lock().iter().cloned());
        let mut set = self.pins.lock();
        if *set != pins {
            self.bound.set_pins(pins.clone());
            *set = pins;
        }
    }

    /// Returns the copies pinned with datasets.
    #[must_use]
    pub fn dataset_pins(&self) -> Vec<PinnedCopies> {
        let pin = |dataset: &Arc<Dataset>| {
            Some(PinnedCopies {
                bucket: self.catalogue.bucket(&dataset.bucket)?.bucket_id(),
                prefixes: dataset.slices.clone(),
                keys: None,
                bytes_max: dataset.pin_bytes_max?,
            })
        };
        self.catalogue.datasets().iter().filter_map(pin).collect()
    }

    /// Creates the job of a schedule that is due. In a cluster it is due only by a clock that other nodes
    /// confirm.
    async fn create_due(&self, dataset: &Dataset) {
        // Read before the check, which finds every jump of the clock until then.
        let now = self.clock.now();
        if !self.checked_clock.is_confirmed() {
            return;
        }
        for schedule in &dataset.schedules {
            let times = match CronSchedule::parse(&schedule.cron) {
                Ok(times) => times,
                Err(why) => {
                    tracing::error!(dataset = dataset.name, why, "invalid schedule");
                    continue;
                }
            };
            if times.after(Timestamp(schedule.after_ms)).is_none_or(|due| due > now) {
                continue;
            }
            let due = CreateJob {
                dataset: dataset.name.clone(),
                kind: schedule.kind,
                params: schedule.params.clone(),
                created_ms: now.as_millis(),
                requested_by: BY_SCHEDULE.to_owned(),
                is_scheduled: true,
                duty_term: self.duty_term,
            };
            // A job that is refused because another one is active remains due, and is created when that one
            // has ended.
            match self.catalogue.create_job(due).await {
                Ok(job) => {
                    tracing::info!(
                        job = job.id,
                        dataset = job.dataset,
                        kind = kind_name(job.kind()),
                        "scheduled job created"
                    );
                    return;
                }
                Err(error) => {
                    tracing::debug!(dataset = dataset.name, %error, "cannot create a scheduled job")
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, context: &JobContext, dataset: Arc<Dataset>, job: &Job) {
        let stop = JobStopSignals {
            closed: self.closed.clone(),
            stop: self.stop.clone(),
            lease: context.lease.clone(),
        };
        let live = Arc::new(RunningJob::new(job, stop));
        {
            let mut all = self.live.lock();
            if live.is_frozen() || all.len() >= JOBS_RUNNING_MAX {
                return;
            }
            all.insert(job.id, Arc::clone(&live));
            assert!(all.len() <= JOBS_RUNNING_MAX, "the number of running jobs is bounded");
        }
        let (jobs, context) = (Arc::clone(self), context.clone());
        let job = job.clone();
        self.tasks.spawn(async move {
            let work = JobRun { jobs: Arc::clone(&jobs), context, dataset, job, live: Arc::clone(&live) };
            let (id, kind) = (work.job.id, work.job.kind());
            let ended = work.carry_out().await;
            jobs.finish(id, kind, &live, ended);
        });
    }

    /// Removes an ended run, and adds its totals.
    fn finish(&self, id: u64, kind: JobKind, live: &RunningJob, ended: Option<JobState>) {
        let (objects, bytes) = live.moved();
        let mut all = self.live.lock();
        let mut moved = self.moved.lock();
        let sum = moved.entry(kind).or_default();
        (sum.objects, sum.bytes) = (sum.objects + objects, sum.bytes + bytes);
        assert!(all.remove(&id).is_some(), "a job that ends was running");
        if let Some(state) = ended {
            *self.counts.lock().entry((kind, state)).or_default() += 1;
        }
    }

    /// Applies a step to a job, retrying while the catalogue is overloaded. Returns `None` if the step is
    /// refused.
    async fn step(&self, job: &Job, step: JobStep) -> Option<Job> {
        let step = StepJob {
            dataset: job.dataset.clone(),
            job: job.id,
            node: self.catalogue.node().get(),
            now_ms: self.clock.now().as_millis(),
            step: Some(step),
            duty_term: self.duty_term,
        };
        loop {
            match self.catalogue.step_job(step.clone()).await {
                Ok(job) => return Some(job),
                Err(ProposeError::Overloaded) => mlgw_common::time::sleep(OVERLOAD_PAUSE).await,
                Err(
                    ProposeError::Rejected(Reject::JobEnded | Reject::DutyTaken { .. })
                    | ProposeError::Stopping,
                ) => return None,
                Err(error) => {
                    tracing::warn!(job = job.id, %error, "cannot record a step of a job");
                    return None;
                }
            }
        }
    }
}

impl JobRun {
    /// Claims the job, runs it and records the result. Returns `None` if the job is not over.
    async fn carry_out(mut self) -> Option<JobState> {
        let jobs = Arc::clone(&self.jobs);
        self.job = jobs.step(&self.job, JobStep::Acquire(ClaimJob {})).await?;
        let job = self.job.clone();
        tracing::info!(
            job = job.id,
            dataset = job.dataset,
            kind = kind_name(job.kind()),
            starts = job.starts,
            "job started"
        );
        if job.cancel_asked {
            self.live.cancel.cancel();
        }
        let live = Arc::clone(&self.live);
        let outcome = {
            let recording = record_progress(&jobs, &job, &live);
            tokio::select! {
                outcome = self.run() => outcome,
                never = recording => match never {},
            }
        };
        // The failure of a job that stops may be one of the stop.
        let is_over = outcome == Err(JobStop::Cancelled) || !live.is_frozen();
        let outcome = if is_over { outcome } else { Err(JobStop::Stopping) };
        let (state, error, found) = match outcome {
            Ok(found) => (JobState::Done, String::new(), found),
            Err(JobStop::Failed(why)) => (JobState::Failed, why, None),
            Err(JobStop::Cancelled) => (JobState::Cancelled, String::new(), None),
            Err(JobStop::Stopping) => {
                let (progress, cursor) = live.progress_and_cursor();
                jobs.step(&job, JobStep::Progress(UpdateJobProgress { progress, cursor })).await;
                return None;
            }
        };
        tracing::info!(job = job.id, dataset = job.dataset, state = state_name(state), error, "job ended");
        let end = EndJob { state: state as i32, progress: live.progress(), error, found };
        jobs.step(&job, JobStep::End(end)).await?;
        jobs.count_soon(&job.dataset);
        Some(state)
    }

    async fn run(&self) -> JobOutcome {
        match self.job.kind() {
            JobKind::Warm => self.warm().await,
            JobKind::Sync => self.sync().await,
            JobKind::Evict | JobKind::Clear => self.evict_copies().await,
            JobKind::Migrate => self.migrate().await,
        }
    }
}

/// Records the progress of a job periodically.
async fn record_progress(jobs: &Jobs, job: &Job, live: &RunningJob) -> Infallible {
    loop {
        mlgw_common::time::sleep(RECORD_INTERVAL).await;
        let (progress, cursor) = live.progress_and_cursor();
        if let Some(updated) = jobs.step(job, JobStep::Progress(UpdateJobProgress { progress, cursor })).await
            && updated.cancel_asked
        {
            live.cancel.cancel();
        }
    }
}
