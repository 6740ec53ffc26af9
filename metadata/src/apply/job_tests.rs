//! The rules of datasets and jobs, over rows in memory.

use super::{apply, seq_of};
use crate::view::{MemoryRows, RowReader as _, View};
use mlgw_common::limits::{DATASETS_MAX, JOBS_KEPT_MAX};
use mlgw_formats::command::{
    CancelJob, Change, ClaimJob, Command, CreateJob, DeleteDataset, EndJob, JobStep, PutDataset, Reject,
    Reply, SetDuty, StepJob, UpdateJobProgress,
};
use mlgw_formats::schema::{
    Dataset, DatasetSize, Duty, DutyPhase, Job, JobCursor, JobKind, JobParams, JobProgress, JobState,
    Schedule, dataset, job,
};

#[derive(Default)]
struct Bench {
    rows: MemoryRows,
    index: u64,
}

impl Bench {
    fn with_dataset() -> Self {
        let mut bench = Self::default();
        bench.put(dataset("d", 0)).unwrap();
        bench
    }

    fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
        let mut view = View::new(&self.rows);
        self.index += 1;
        let answer = apply(&mut view, &Command::from(change), seq_of(self.index, 0)).unwrap();
        let (changes, _) = view.into_changes();
        assert!(answer.is_ok() || changes.is_empty(), "a rejected command changes nothing");
        self.rows.write(changes);
        answer
    }

    fn put(&mut self, dataset: Dataset) -> Result<Reply, Reject> {
        self.apply(Change::PutDataset(PutDataset { dataset }))
    }

    fn create(&mut self, kind: JobKind, at_ms: i64, is_scheduled: bool) -> Result<Job, Reject> {
        let new = CreateJob {
            dataset: "d".into(),
            kind: kind as i32,
            params: JobParams::default(),
            created_ms: at_ms,
            requested_by: "AK".into(),
            is_scheduled,
            duty_term: None,
        };
        self.apply(Change::CreateJob(new)).map(job_of)
    }

    fn step(&mut self, id: u64, node: u64, step: JobStep) -> Result<Job, Reject> {
        self.step_of_term(id, node, None, step)
    }

    fn step_of_term(
        &mut self,
        id: u64,
        node: u64,
        duty_term: Option<u64>,
        step: JobStep,
    ) -> Result<Job, Reject> {
        let step = StepJob { dataset: "d".into(), job: id, node, now_ms: 50, step: Some(step), duty_term };
        self.apply(Change::StepJob(step)).map(job_of)
    }

    fn set_duty(&mut self, node: u64, term: u64, phase: DutyPhase) -> Result<Reply, Reject> {
        self.apply(Change::SetDuty(SetDuty { duty: Duty { node, term, phase: phase as i32 } }))
    }

    fn end(&mut self, id: u64, state: JobState) -> Result<Job, Reject> {
        let found = Some(DatasetSize { objects: 1, bytes: 2, at_ms: 3 });
        let end = EndJob { state: state as i32, progress: JobProgress::default(), error: "e".into(), found };
        self.step(id, 1, JobStep::End(end))
    }

    fn dataset(&self) -> Dataset {
        mlgw_formats::schema::decode(&self.rows.get(&dataset::row("d")).unwrap().unwrap()).unwrap()
    }

    fn jobs(&self) -> usize {
        let (first, end) = job::rows_of("d");
        self.rows.range(&first, &end, usize::MAX).unwrap().len()
    }
}

fn dataset(name: &str, revision: u64) -> Dataset {
    Dataset { name: name.into(), bucket: "data".into(), revision, ..Dataset::default() }
}

fn job_of(reply: Reply) -> Job {
    match reply {
        Reply::Job(job) => *job,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dataset_is_made_once_and_changed_by_compare_and_set() {
    let mut bench = Bench::with_dataset();
    assert_eq!(bench.put(dataset("d", 0)), Err(Reject::DatasetExists));
    assert_eq!(bench.put(dataset("d", 7)), Err(Reject::DatasetChanged));
    assert_eq!(bench.put(dataset("e", 1)), Err(Reject::NoSuchDataset));
    let id = bench.create(JobKind::Warm, 1, false).unwrap().id;
    bench.put(Dataset { pin_bytes_max: Some(5), active_job: 0, ..dataset("d", 1) }).unwrap();
    let found = bench.dataset();
    assert_eq!((found.revision, found.active_job, found.pin_bytes_max), (2, id, Some(5)));
    for n in 1..DATASETS_MAX {
        bench.put(dataset(&format!("d{n}"), 0)).unwrap();
    }
    assert_eq!(bench.put(dataset("one-more", 0)), Err(Reject::TooManyDatasets));
}

#[test]
fn a_second_job_waits_for_the_end_of_the_first() {
    let mut bench = Bench::with_dataset();
    let first = bench.create(JobKind::Warm, 1, false).unwrap();
    assert_eq!(bench.create(JobKind::Clear, 2, false), Err(Reject::DatasetBusy { job: first.id }));
    let delete = Change::DeleteDataset(DeleteDataset { name: "d".into() });
    assert_eq!(bench.apply(delete.clone()), Err(Reject::DatasetBusy { job: first.id }));
    bench.step(first.id, 1, JobStep::Acquire(ClaimJob {})).unwrap();
    let ended = bench.end(first.id, JobState::Done).unwrap();
    assert_eq!((ended.state(), ended.ended_ms, ended.error.as_str()), (JobState::Done, 50, "e"));
    assert_eq!(bench.dataset().found.map(|found| found.bytes), Some(2));
    assert_eq!(bench.end(first.id, JobState::Done), Err(Reject::JobEnded));
    assert!(bench.create(JobKind::Clear, 3, false).unwrap().id > first.id);
    let second = bench.dataset().active_job;
    bench.step(second, 0, JobStep::Cancel(CancelJob {})).unwrap();
    bench.apply(delete).unwrap();
    assert_eq!(bench.jobs(), 0);
}

#[test]
fn a_job_belongs_to_one_node_and_resumes_from_its_last_progress() {
    let mut bench = Bench::with_dataset();
    let id = bench.create(JobKind::Warm, 1, false).unwrap().id;
    let progress = JobProgress { objects_done: 3, ..JobProgress::default() };
    let note = UpdateJobProgress { progress, cursor: Some(JobCursor { part: 0, after: "k3".into() }) };
    let too_early = bench.step(id, 1, JobStep::Progress(note.clone()));
    assert!(matches!(too_early, Err(Reject::Malformed { .. })), "{too_early:?}");
    bench.step(id, 1, JobStep::Acquire(ClaimJob {})).unwrap();
    assert_eq!(bench.step(id, 2, JobStep::Acquire(ClaimJob {})), Err(Reject::JobElsewhere { node: 1 }));
    assert_eq!(bench.step(id, 2, JobStep::Progress(note.clone())), Err(Reject::JobElsewhere { node: 1 }));
    bench.step(id, 1, JobStep::Progress(note)).unwrap();
    let again = bench.step(id, 1, JobStep::Acquire(ClaimJob {})).unwrap();
    assert_eq!((again.starts, again.started_ms, again.progress.objects_done), (2, 50, 3));
    assert_eq!(again.cursor.map(|cursor| cursor.after), Some("k3".into()));
    let not_over = bench.end(id, JobState::Running);
    assert!(matches!(not_over, Err(Reject::Malformed { .. })), "{not_over:?}");
    assert_eq!(bench.step(id + 1, 1, JobStep::Acquire(ClaimJob {})), Err(Reject::NoSuchJob));
}

#[test]
fn the_next_duty_node_takes_a_job_over_and_the_former_one_records_nothing_any_more() {
    let mut bench = Bench::with_dataset();
    let id = bench.create(JobKind::Warm, 1, false).unwrap().id;
    let acquire = || JobStep::Acquire(ClaimJob {});
    let progress = JobProgress { objects_done: 3, ..JobProgress::default() };
    let note = UpdateJobProgress { progress, cursor: Some(JobCursor { part: 0, after: "k3".into() }) };
    // Term 0 is that of node 1, without a row.
    bench.step_of_term(id, 1, Some(0), acquire()).unwrap();
    bench.step_of_term(id, 1, Some(0), JobStep::Progress(note.clone())).unwrap();
    let taken = Err(Reject::DutyTaken { node: 1, term: 0 });
    assert_eq!(bench.step_of_term(id, 2, Some(1), acquire()), taken, "its term has not begun");
    bench.set_duty(2, 1, DutyPhase::Waiting).unwrap();
    let taken = bench.step_of_term(id, 2, Some(1), acquire()).unwrap();
    assert_eq!((taken.node, taken.starts, taken.progress.objects_done), (2, 2, 3));
    assert_eq!(taken.cursor.map(|cursor| cursor.after), Some("k3".into()));
    let refused = Err(Reject::DutyTaken { node: 2, term: 1 });
    assert_eq!(bench.step_of_term(id, 1, Some(0), JobStep::Progress(note)), refused);
    assert_eq!(bench.step_of_term(id, 1, Some(0), acquire()), refused);
}

#[test]
fn work_without_a_term_ends_with_the_first_term_of_another_node() {
    let mut bench = Bench::with_dataset();
    let id = bench.create(JobKind::Warm, 1, false).unwrap().id;
    let note = || JobStep::Progress(UpdateJobProgress { progress: JobProgress::default(), cursor: None });
    bench.step(id, 1, JobStep::Acquire(ClaimJob {})).unwrap();
    bench.set_duty(1, 1, DutyPhase::Waiting).unwrap();
    bench.step(id, 1, note()).unwrap();
    bench.set_duty(2, 2, DutyPhase::Waiting).unwrap();
    let refused = Err(Reject::DutyTaken { node: 2, term: 2 });
    assert_eq!(bench.step(id, 1, note()), refused);
    assert_eq!(bench.end(id, JobState::Failed), refused);
    assert!(bench.step(id, 0, JobStep::Cancel(CancelJob {})).unwrap().cancel_asked, "a request of a user");
}

#[test]
fn a_schedule_of_a_former_duty_node_creates_no_job() {
    let mut bench = Bench::with_dataset();
    let create = |duty_term| {
        let due = CreateJob { dataset: "d".into(), created_ms: 1, duty_term, ..CreateJob::default() };
        Change::CreateJob(due)
    };
    bench.set_duty(2, 1, DutyPhase::Waiting).unwrap();
    assert_eq!(bench.apply(create(Some(0))), Err(Reject::DutyTaken { node: 2, term: 1 }));
    bench.apply(create(Some(1))).unwrap();
}

#[test]
fn a_term_of_duty_begins_once() {
    let mut bench = Bench::default();
    bench.set_duty(2, 1, DutyPhase::Waiting).unwrap();
    let refused = Err(Reject::DutyTaken { node: 2, term: 1 });
    assert_eq!(bench.set_duty(3, 1, DutyPhase::Waiting), refused);
    assert_eq!(bench.set_duty(1, 0, DutyPhase::Ended), refused);
    assert_eq!(bench.set_duty(3, 2, DutyPhase::Active), refused, "node 2 has not stopped");
    bench.set_duty(2, 1, DutyPhase::Waiting).unwrap();
    bench.set_duty(2, 1, DutyPhase::Active).unwrap();
    bench.set_duty(2, 1, DutyPhase::Ended).unwrap();
    bench.set_duty(3, 2, DutyPhase::Active).unwrap();
    let refused = Err(Reject::DutyTaken { node: 3, term: 2 });
    assert_eq!(bench.set_duty(3, 3, DutyPhase::Active), refused, "also after a restart");
    bench.set_duty(3, 2, DutyPhase::Left).unwrap();
    bench.set_duty(1, 3, DutyPhase::Waiting).unwrap();
}

#[test]
fn cancelling_ends_a_queued_job_and_flags_a_running_one() {
    let mut bench = Bench::with_dataset();
    let id = bench.create(JobKind::Warm, 1, false).unwrap().id;
    let cancelled = bench.step(id, 0, JobStep::Cancel(CancelJob {})).unwrap();
    assert_eq!((cancelled.state(), bench.dataset().active_job), (JobState::Cancelled, 0));
    let id = bench.create(JobKind::Warm, 1, false).unwrap().id;
    bench.step(id, 1, JobStep::Acquire(ClaimJob {})).unwrap();
    let flagged = bench.step(id, 0, JobStep::Cancel(CancelJob {})).unwrap();
    assert_eq!((flagged.state(), flagged.cancel_asked), (JobState::Running, true));
    assert_eq!(bench.end(id, JobState::Cancelled).unwrap().state(), JobState::Cancelled);
}

#[test]
fn a_schedule_is_due_once_for_each_time() {
    let mut bench = Bench::with_dataset();
    let schedule = Schedule { kind: 0, cron: "@daily".into(), params: JobParams::default(), after_ms: 100 };
    bench.put(Dataset { schedules: vec![schedule], ..dataset("d", 1) }).unwrap();
    assert_eq!(bench.create(JobKind::Sync, 200, true), Err(Reject::DatasetChanged), "of another kind");
    assert_eq!(bench.create(JobKind::Warm, 100, true), Err(Reject::DatasetChanged), "already done");
    let id = bench.create(JobKind::Warm, 200, true).unwrap().id;
    assert_eq!((bench.dataset().schedules[0].after_ms, bench.dataset().active_job), (200, id));
}

#[test]
fn the_oldest_job_records_are_deleted() {
    let mut bench = Bench::with_dataset();
    let mut last = 0;
    for _ in 0..JOBS_KEPT_MAX + 5 {
        last = bench.create(JobKind::Warm, 1, false).unwrap().id;
        bench.step(last, 1, JobStep::Acquire(ClaimJob {})).unwrap();
        bench.end(last, JobState::Failed).unwrap();
    }
    assert_eq!(bench.jobs(), JOBS_KEPT_MAX);
    assert!(bench.rows.get(&job::row("d", last)).unwrap().is_some());
    assert!(bench.rows.get(&job::row("d", 1)).unwrap().is_none());
}
