//! Group 0: datasets.

use super::malformed;
use crate::view::{ApplyError, View};
use mlgw_common::limits::{DATASETS_MAX, JOB_ROWS_MAX, JOBS_KEPT_MAX};
use mlgw_formats::command::{DeleteDataset, PutDataset, Reject, Reply};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{Dataset, dataset, job};

const _: () = assert!(JOBS_KEPT_MAX < JOB_ROWS_MAX);

pub(super) fn put(view: &mut View<'_>, command: &PutDataset) -> Result<Reply, ApplyError> {
    let new = &command.dataset;
    if new.name.is_empty() || new.bucket.is_empty() {
        return Err(malformed("the dataset has no name or no bucket"));
    }
    let row = dataset::row(&new.name);
    let known: Option<Dataset> = view.get(&row)?;
    match &known {
        Some(_) if new.revision == 0 => return Err(Reject::DatasetExists.into()),
        Some(known) if known.revision != new.revision => return Err(Reject::DatasetChanged.into()),
        None if new.revision != 0 => return Err(Reject::NoSuchDataset.into()),
        None if is_full(view)? => return Err(Reject::TooManyDatasets.into()),
        _ => {}
    }
    let known = known.unwrap_or_default();
    let put = Dataset {
        revision: new.revision + 1,
        active_job: known.active_job,
        found: known.found,
        ..new.clone()
    };
    view.put(row, &put);
    Ok(Reply::Dataset(put))
}

fn is_full(view: &View<'_>) -> Result<bool, ApplyError> {
    let rows = view.range(&Family::Dataset.start(), &Family::Dataset.end(), DATASETS_MAX)?;
    Ok(rows.len() >= DATASETS_MAX)
}

pub(super) fn delete(view: &mut View<'_>, command: &DeleteDataset) -> Result<Reply, ApplyError> {
    let row = dataset::row(&command.name);
    let known: Option<Dataset> = view.get(&row)?;
    match known {
        None => return Err(Reject::NoSuchDataset.into()),
        Some(Dataset { active_job: 0, .. }) => {}
        Some(busy) => return Err(Reject::DatasetBusy { job: busy.active_job }.into()),
    }
    let (first, end) = job::rows_of(&command.name);
    for (job, _) in view.range(&first, &end, JOB_ROWS_MAX)? {
        view.delete(job);
    }
    view.delete(row);
    Ok(Reply::Done)
}
