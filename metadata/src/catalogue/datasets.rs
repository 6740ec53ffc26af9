//! Datasets and jobs; all their records are in memory.

use super::{Catalogue, ProposeError};
use mlgw_formats::command::{Change, Command, CreateJob, DeleteDataset, PutDataset, Reply, StepJob};
use mlgw_formats::schema::{Dataset, Job};
use std::sync::Arc;

impl Catalogue {
    /// All datasets, by name.
    #[must_use]
    pub fn datasets(&self) -> Vec<Arc<Dataset>> {
        self.inner.resident.datasets.read().values().cloned().collect()
    }

    /// The dataset `name`.
    #[must_use]
    pub fn dataset(&self, name: &str) -> Option<Arc<Dataset>> {
        self.inner.resident.datasets.read().get(name).cloned()
    }

    /// All recorded jobs, ordered by id.
    #[must_use]
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.inner.resident.jobs.read().values().cloned().collect()
    }

    /// The job `id`.
    #[must_use]
    pub fn job(&self, id: u64) -> Option<Arc<Job>> {
        self.inner.resident.jobs.read().get(&id).cloned()
    }

    /// Completes when a dataset or a job changes after this call, even if the change comes before the first
    /// poll.
    pub fn job_changed(&self) -> impl Future<Output = ()> + '_ {
        self.inner.resident.job_changed.notified()
    }

    /// Creates or changes a dataset by compare and set, and returns the new record.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn put_dataset(&self, dataset: Dataset) -> Result<Dataset, ProposeError> {
        match self.change(Change::PutDataset(PutDataset { dataset })).await? {
            Reply::Dataset(dataset) => Ok(dataset),
            other => unreachable!("unexpected reply to a dataset put: {other:?}"),
        }
    }

    /// Deletes a dataset and the records of its jobs.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn delete_dataset(&self, name: &str) -> Result<(), ProposeError> {
        self.change(Change::DeleteDataset(DeleteDataset { name: name.to_owned() })).await.map(drop)
    }

    /// Creates a job, unless the dataset has an active one, and returns it.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn create_job(&self, job: CreateJob) -> Result<Job, ProposeError> {
        self.change(Change::CreateJob(job)).await.map(job_of)
    }

    /// Applies a step to a job and returns the new record.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn step_job(&self, step: StepJob) -> Result<Job, ProposeError> {
        self.change(Change::StepJob(step)).await.map(job_of)
    }

    async fn change(&self, change: Change) -> Result<Reply, ProposeError> {
        self.propose(Command::from(change)).await
    }
}

fn job_of(reply: Reply) -> Job {
    match reply {
        Reply::Job(job) => *job,
        other => unreachable!("unexpected reply to a job change: {other:?}"),
    }
}
