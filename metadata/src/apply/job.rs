//! Group 0: jobs. A dataset has at most one active job; the records of job and dataset change in the same
//! command.

use super::bucket::next_id;
use super::{duty, malformed};
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::limits::{JOB_ROWS_MAX, JOBS_KEPT_MAX};
use mlgw_formats::command::{CreateJob, EndJob, JobStep, Reject, Reply, StepJob};
use mlgw_formats::schema::meta::MetaRow;
use mlgw_formats::schema::{Dataset, Job, JobKind, JobProgress, JobState, dataset, decode, job};

pub(super) fn create(view: &mut View<'_>, command: &CreateJob) -> Result<Reply, ApplyError> {
    if JobKind::try_from(command.kind).is_err() {
        return Err(malformed("the job has an unknown kind"));
    }
    duty::check_term(view, command.duty_term)?;
    let row = dataset::row(&command.dataset);
    let mut of: Dataset = view.get(&row)?.ok_or(Reject::NoSuchDataset)?;
    if of.active_job != 0 {
        return Err(Reject::DatasetBusy { job: of.active_job }.into());
    }
    if command.is_scheduled {
        let due = of.schedules.iter_mut().find(|schedule| schedule.kind == command.kind);
        // The schedule was removed, or another proposer has already created the job that was due.
        let due = due.filter(|schedule| schedule.after_ms < command.created_ms);
        due.ok_or(Reject::DatasetChanged)?.after_ms = command.created_ms;
    }
    delete_oldest_records(view, &command.dataset)?;
    let made = Job {
        id: next_id(view, MetaRow::NextJob, 1)?,
        dataset: command.dataset.clone(),
        kind: command.kind,
        state: JobState::Queued as i32,
        params: command.params.clone(),
        requested_by: command.requested_by.clone(),
        created_ms: command.created_ms,
        progress: JobProgress::default(),
        ..Job::default()
    };
    of.active_job = made.id;
    view.put(row, &of);
    view.put(job::row(&made.dataset, made.id), &made);
    Ok(Reply::Job(Box::new(made)))
}

/// Makes room for one more record: deletes the oldest ones, which have all ended.
fn delete_oldest_records(view: &mut View<'_>, dataset: &str) -> Result<(), StoreError> {
    let (first, end) = job::rows_of(dataset);
    let rows = view.range(&first, &end, JOB_ROWS_MAX)?;
    for (row, value) in rows.iter().take((rows.len() + 1).saturating_sub(JOBS_KEPT_MAX)) {
        if decode::<Job>(value)?.has_ended() {
            view.delete(row.clone());
        }
    }
    Ok(())
}

pub(super) fn step(view: &mut View<'_>, command: &StepJob) -> Result<Reply, ApplyError> {
    let row = job::row(&command.dataset, command.job);
    let mut job: Job = view.get(&row)?.ok_or(Reject::NoSuchJob)?;
    if job.has_ended() {
        return Err(Reject::JobEnded.into());
    }
    let Some(step) = &command.step else { return Err(malformed("the job step is empty")) };
    match step {
        JobStep::Cancel(_) => duty::check_term(view, command.duty_term)?,
        JobStep::Acquire(_) | JobStep::Progress(_) | JobStep::End(_) => {
            duty::check_worker(view, command.node, command.duty_term)?;
        }
    }
    // A node of the present term takes over what the duty node before it left.
    let takes_over = command.duty_term.is_some() && matches!(step, JobStep::Acquire(_));
    let is_elsewhere = job.state() == JobState::Running && job.node != command.node && !takes_over;
    match step {
        JobStep::Cancel(_) if job.state() == JobState::Running => job.cancel_asked = true,
        JobStep::Cancel(_) => {
            job.cancel_asked = true;
            let end = EndJob { state: JobState::Cancelled as i32, ..EndJob::default() };
            finish(view, &mut job, &end, command.now_ms)?;
        }
        _ if is_elsewhere => return Err(Reject::JobElsewhere { node: job.node }.into()),
        JobStep::Acquire(_) => {
            job.state = JobState::Running as i32;
            job.node = command.node;
            job.starts += 1;
            if job.started_ms == 0 {
                job.started_ms = command.now_ms;
            }
        }
        JobStep::Progress(_) | JobStep::End(_) if job.state() == JobState::Queued => {
            return Err(malformed("a queued job cannot report progress or end"));
        }
        JobStep::Progress(note) => {
            job.progress = note.progress;
            job.cursor.clone_from(&note.cursor);
        }
        JobStep::End(end) => finish(view, &mut job, end, command.now_ms)?,
    }
    view.put(row, &job);
    Ok(Reply::Job(Box::new(job)))
}

fn finish(view: &mut View<'_>, job: &mut Job, end: &EndJob, now_ms: i64) -> Result<(), ApplyError> {
    (job.state, job.ended_ms) = (end.state, now_ms);
    if !job.has_ended() {
        return Err(malformed("the final state of the job is not an end state"));
    }
    job.progress = end.progress;
    job.error.clone_from(&end.error);
    job.cursor = None;
    let row = dataset::row(&job.dataset);
    let mut of: Dataset = view.get(&row)?.ok_or(Reject::NoSuchDataset)?;
    of.active_job = 0;
    of.found = end.found.or(of.found);
    view.put(row, &of);
    Ok(())
}
