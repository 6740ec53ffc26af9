//! `/v1/datasets`: named subsets of a bucket, the tiers of their bytes, and their scheduled jobs.

use super::change::{AuditedAction, AuditedChange, json, parse, parse_optional};
use super::extract::AdminPath;
use super::jobs::{catalogue_refusal, checked_params};
use super::signed::AdminCaller;
use super::words::{dataset_job_kind, job_kind, readiness, residency_tier};
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{
    DatasetInfo, DatasetJobKind, DatasetList, JobRequest, NewDataset, PinRequest, ResidencyInfo,
    ScheduleInfo, ScheduleRequest, SourceInfo,
};
use mlgw_background::jobs::cron::CronSchedule;
use mlgw_background::jobs::is_user_dataset;
use mlgw_background::jobs::residency::{Residency, ResidencyPlace};
use mlgw_common::limits::{DATASET_NAME_LEN_MAX, KEY_LEN_MAX, SLICES_MAX, SOURCES_MAX};
use mlgw_common::{ByteSize, NodeId, Timestamp};
use mlgw_formats::schema::{Dataset, ImportSource, Schedule};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Json<DatasetList> {
    let known = admin.jobs.residencies();
    let nothing = Residency::default();
    let datasets = admin.stored.catalogue.datasets();
    let shown = datasets.iter().filter(|dataset| is_user_dataset(dataset));
    let info = |dataset: &Arc<Dataset>| {
        admin.dataset_info(dataset, known.get(&dataset.name).map_or(&nothing, |known| known))
    };
    Json(DatasetList { datasets: shown.map(info).collect() })
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(name): AdminPath<String>,
) -> Result<Json<DatasetInfo>, ApiError> {
    let dataset = admin.dataset(&name)?;
    let residency = admin.jobs.residency(&dataset).await;
    Ok(Json(admin.dataset_info(&dataset, &residency)))
}

pub(super) async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let new: NewDataset = parse(&body)?;
    let action =
        AuditedAction { action: "dataset.create", resource: new.name.clone(), status: StatusCode::CREATED };
    let shared = Arc::clone(&admin);
    let work = async move {
        let resource = new.name.clone();
        let dataset = shared.new_dataset(new)?;
        let put = shared
            .stored
            .catalogue
            .put_dataset(dataset)
            .await
            .map_err(|error| catalogue_refusal(error, &resource))?;
        let after = json(&shared.counted_info(&put))?;
        Ok(AuditedChange { resource, before: Value::Null, after, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn delete(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "dataset.delete", resource: name.clone(), status: StatusCode::OK };
    let shared = Arc::clone(&admin);
    let work = async move {
        let dataset = shared.dataset(&name)?;
        let before = json(&shared.counted_info(&dataset))?;
        shared
            .stored
            .catalogue
            .delete_dataset(&name)
            .await
            .map_err(|error| catalogue_refusal(error, &name))?;
        Ok(AuditedChange { resource: name, before, after: Value::Null, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn pin(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: PinRequest = parse_optional(&body)?;
    let shared = Arc::clone(&admin);
    let change = move |dataset: &Dataset| {
        let pin_bytes_max = Some(shared.pin_bytes(dataset, &request)?);
        Ok(Dataset { pin_bytes_max, ..dataset.clone() })
    };
    admin.change_dataset(caller, "dataset.pin", name, change).await
}

pub(super) async fn unpin(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
) -> Result<Response, ApiError> {
    let change = |dataset: &Dataset| Ok(Dataset { pin_bytes_max: None, ..dataset.clone() });
    admin.change_dataset(caller, "dataset.unpin", name, change).await
}

pub(super) async fn schedule(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath((name, kind)): AdminPath<(String, String)>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: ScheduleRequest = parse(&body)?;
    let kind = known_kind(&kind)?;
    let shared = Arc::clone(&admin);
    let change = move |dataset: &Dataset| {
        CronSchedule::parse(&request.cron).map_err(ApiError::invalid)?;
        let of_job = JobRequest {
            kind,
            older_than: request.older_than.clone(),
            delete: request.delete,
            prefix: request.prefix.clone(),
            order: request.order,
        };
        let (kind, params) = checked_params(&of_job, dataset, &shared)?;
        let after_ms = shared.clock.now().as_millis();
        let mut schedules = dataset.schedules.clone();
        schedules.retain(|schedule| schedule.kind != kind as i32);
        schedules.push(Schedule { kind: kind as i32, cron: request.cron.clone(), params, after_ms });
        schedules.sort_by_key(|schedule| schedule.kind);
        Ok(Dataset { schedules, ..dataset.clone() })
    };
    admin.change_dataset(caller, "dataset.schedule", name, change).await
}

pub(super) async fn unschedule(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath((name, kind)): AdminPath<(String, String)>,
) -> Result<Response, ApiError> {
    let kind = known_kind(&kind)?;
    let change = move |dataset: &Dataset| {
        let mut schedules = dataset.schedules.clone();
        schedules.retain(|schedule| schedule.kind() != job_kind(kind));
        if schedules.len() == dataset.schedules.len() {
            let why = format!("The dataset {:?} has no schedule for {:?}.", dataset.name, kind.name());
            return Err(ApiError::new(StatusCode::NOT_FOUND, "NoSuchSchedule", why));
        }
        Ok(Dataset { schedules, ..dataset.clone() })
    };
    admin.change_dataset(caller, "dataset.unschedule", name, change).await
}

impl Admin {
    /// Changes a dataset by compare-and-set.
    async fn change_dataset(
        self: &Arc<Self>,
        caller: AdminCaller,
        action: &'static str,
        name: String,
        change: impl FnOnce(&Dataset) -> Result<Dataset, ApiError> + Send + 'static,
    ) -> Result<Response, ApiError> {
        let action = AuditedAction { action, resource: name.clone(), status: StatusCode::OK };
        let admin = Arc::clone(self);
        let work = async move {
            let dataset = admin.dataset(&name)?;
            let before = json(&admin.counted_info(&dataset))?;
            let changed = change(&dataset)?;
            let put = admin
                .stored
                .catalogue
                .put_dataset(changed)
                .await
                .map_err(|error| catalogue_refusal(error, &name))?;
            admin.jobs.set_pins();
            let after = json(&admin.counted_info(&put))?;
            Ok(AuditedChange { resource: name, before, after, answer: None })
        };
        self.change(caller, action, work).await
    }

    pub(super) fn dataset(&self, name: &str) -> Result<Arc<Dataset>, ApiError> {
        self.stored.catalogue.dataset(name).filter(|dataset| is_user_dataset(dataset)).ok_or_else(|| {
            let why = format!("No such dataset: {name:?}; see `mlgw dataset list`.");
            ApiError::new(StatusCode::NOT_FOUND, "NoSuchDataset", why)
        })
    }

    /// Returns a dataset with the bytes of the last count; a new count may take long.
    fn counted_info(&self, dataset: &Dataset) -> DatasetInfo {
        let known = self.jobs.residencies().remove(&dataset.name).unwrap_or_default();
        self.dataset_info(dataset, &known)
    }

    fn dataset_info(&self, dataset: &Dataset, residency: &Residency) -> DatasetInfo {
        let source = |source: &ImportSource| SourceInfo {
            upstream: source.upstream.clone(),
            prefix: source.prefix.clone(),
            into: source.into.clone(),
        };
        let is_counted = residency.counted != Timestamp::default();
        DatasetInfo {
            name: dataset.name.clone(),
            bucket: dataset.bucket.clone(),
            slices: dataset.slices.clone(),
            sources: dataset.sources.iter().map(source).collect(),
            created: Timestamp(dataset.created_ms).to_string(),
            readiness: readiness(residency.readiness()),
            fault: residency.fault.clone(),
            objects: residency.objects,
            bytes: residency.bytes,
            cached_bytes: residency.cached_bytes,
            space_left_bytes: residency.room_bytes,
            pinned_bytes_max: dataset.pin_bytes_max,
            residency: residency_infos(residency),
            counted: is_counted.then(|| residency.counted.to_string()),
            schedules: dataset.schedules.iter().map(schedule_info).collect(),
            job: self.stored.catalogue.job(dataset.active_job).map(|job| self.job_info(&job)),
        }
    }

    /// Validates a new dataset.
    fn new_dataset(&self, new: NewDataset) -> Result<Dataset, ApiError> {
        check_name(&new.name)?;
        let bucket = self.stored.catalogue.bucket(&new.bucket).ok_or_else(|| {
            ApiError::new(StatusCode::NOT_FOUND, "NoSuchBucket", format!("No such bucket: {:?}.", new.bucket))
        })?;
        let slices = checked_slices(new.slices)?;
        if bucket.binding.is_some() && !new.sources.is_empty() {
            let why = format!(
                "The bucket {:?} is remote-backed and shows all objects of its origin: sync imports into \
                 local buckets only.",
                bucket.name
            );
            return Err(ApiError::invalid(why));
        }
        let sources = self.checked_sources(new.sources, &slices)?;
        let created_ms = self.clock.now().as_millis();
        Ok(Dataset { name: new.name, bucket: new.bucket, slices, sources, created_ms, ..Dataset::default() })
    }

    fn checked_sources(
        &self,
        sources: Vec<SourceInfo>,
        slices: &[String],
    ) -> Result<Vec<ImportSource>, ApiError> {
        if sources.len() > SOURCES_MAX {
            return Err(ApiError::invalid(format!("A dataset has at most {SOURCES_MAX} sources.")));
        }
        let mut checked: Vec<ImportSource> = Vec::new();
        for SourceInfo { upstream, prefix, into } in sources {
            if self.stored.remote_backed.origin(&upstream).is_none() {
                let known = self.stored.remote_backed.upstreams();
                let why = format!(
                    "Upstream {upstream:?} is not configured, or is not of kind s3. Configured: {}.",
                    known.join(", ")
                );
                return Err(ApiError::invalid(why));
            }
            if prefix.len() > KEY_LEN_MAX || into.len() > KEY_LEN_MAX {
                return Err(ApiError::invalid(format!("A prefix has at most {KEY_LEN_MAX} bytes.")));
            }
            if let Some(other) = checked.iter().find(|other| overlap(&other.into, &into)) {
                let why = format!(
                    "The sources {:?} and {upstream:?} would both import into {:?}: use a separate prefix \
                     for each.",
                    other.upstream,
                    if other.into.len() > into.len() { &other.into } else { &into }
                );
                return Err(ApiError::invalid(why));
            }
            if !slices.is_empty() && !slices.iter().any(|slice| into.starts_with(slice.as_str())) {
                let why =
                    format!("The source {upstream:?} would import into {into:?}, outside of all slices.");
                return Err(ApiError::invalid(why));
            }
            checked.push(ImportSource { upstream, prefix, into });
        }
        Ok(checked)
    }

    /// Returns the maximum number of bytes that a pin may keep.
    fn pin_bytes(&self, dataset: &Dataset, request: &PinRequest) -> Result<u64, ApiError> {
        let bucket = self.stored.catalogue.bucket(&dataset.bucket);
        let copies = self
            .stored
            .remote_backed
            .copies()
            .filter(|_| bucket.is_some_and(|bucket| bucket.binding.is_some()));
        let copies = copies.ok_or_else(|| {
            let why = format!(
                "The bucket {:?} is not remote-backed: its objects are never evicted and need no pin.",
                dataset.bucket
            );
            ApiError::invalid(why)
        })?;
        let requested = request.bytes_max.as_deref().map(str::parse::<ByteSize>).transpose();
        let requested = requested.map_err(|why| ApiError::invalid(format!("bytes_max: {why}")))?;
        let found = dataset.found.map(|found| ByteSize(found.bytes));
        let ByteSize(bytes) = requested.or(found).ok_or_else(|| {
            ApiError::invalid(
                "The size of the dataset is unknown: warm the dataset first, or give the number of bytes.",
            )
        })?;
        let datasets = self.stored.catalogue.datasets();
        let others = datasets.iter().filter(|other| other.name != dataset.name);
        let pinned: u64 = others.filter_map(|other| other.pin_bytes_max).sum();
        let limit = copies.pinned_bytes_max();
        if pinned.saturating_add(bytes) > limit {
            let why = format!(
                "At most {} may be pinned, half of the capacity for copies (bound.capacity): {} are pinned \
                 already, and {} more do not fit.",
                ByteSize(limit).human(),
                ByteSize(pinned).human(),
                ByteSize(bytes).human()
            );
            return Err(ApiError::new(StatusCode::CONFLICT, "TooMuchPinned", why));
        }
        Ok(bytes)
    }
}

/// Parses the kind of job in a path.
fn known_kind(word: &str) -> Result<DatasetJobKind, ApiError> {
    DatasetJobKind::of(word).ok_or_else(|| {
        let kinds: Vec<_> = DatasetJobKind::ALL.iter().map(|kind| kind.name()).collect();
        ApiError::invalid(format!("Unknown kind of job {word:?}: expected one of {kinds:?}."))
    })
}

/// Returns the bytes of a dataset by node and tier, in the order of the ids of the nodes.
fn residency_infos(residency: &Residency) -> Vec<ResidencyInfo> {
    let on_node = |(node, places): (&NodeId, &BTreeMap<ResidencyPlace, u64>)| {
        let info = |(place, bytes): (&ResidencyPlace, &u64)| ResidencyInfo {
            node: node.get(),
            tier: residency_tier(*place),
            bytes: *bytes,
        };
        places.iter().map(info).collect::<Vec<_>>()
    };
    residency.bytes_on.iter().flat_map(on_node).collect()
}

fn schedule_info(schedule: &Schedule) -> ScheduleInfo {
    let next =
        CronSchedule::parse(&schedule.cron).ok().and_then(|times| times.after(Timestamp(schedule.after_ms)));
    ScheduleInfo {
        kind: dataset_job_kind(schedule.kind()),
        cron: schedule.cron.clone(),
        next: next.map(|next| next.to_string()),
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_right = (1..=DATASET_NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(|b| plain(b) || b == b'-' || b == b'.')
        && name.bytes().next().is_some_and(plain);
    match is_right {
        true => Ok(()),
        false => Err(ApiError::invalid(format!(
            "Invalid dataset name {name:?}: expected 1 to {DATASET_NAME_LEN_MAX} of a-z, 0-9, '-' and '.', \
             beginning with a letter or digit."
        ))),
    }
}

/// Sorts slices and refuses those that contain each other.
fn checked_slices(mut slices: Vec<String>) -> Result<Vec<String>, ApiError> {
    if slices.len() > SLICES_MAX {
        return Err(ApiError::invalid(format!("A dataset has at most {SLICES_MAX} slices.")));
    }
    slices.sort_unstable();
    if let Some(long) = slices.iter().find(|slice| slice.is_empty() || slice.len() > KEY_LEN_MAX) {
        let why = format!("Invalid slice {long:?}: a key prefix has 1 to {KEY_LEN_MAX} bytes.");
        return Err(ApiError::invalid(why));
    }
    // After sorting, a slice that is within another one directly follows it, or follows another such slice.
    if let Some(pair) = slices.windows(2).find(|pair| pair[1].starts_with(&pair[0])) {
        let why = format!("The slice {:?} is within the slice {:?}.", pair[1], pair[0]);
        return Err(ApiError::invalid(why));
    }
    Ok(slices)
}

fn overlap(one: &str, other: &str) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

#[cfg(test)]
mod tests {
    use super::{check_name, checked_slices, residency_infos};
    use mlgw_api::{ResidencyInfo, ResidencyTier};
    use mlgw_background::jobs::residency::{Residency, ResidencyPlace};
    use mlgw_common::NodeId;
    use std::collections::BTreeMap;

    #[test]
    fn residency_is_listed_by_node_and_tier() {
        let on = |hot, cold| BTreeMap::from([(ResidencyPlace::Hot, hot), (ResidencyPlace::Cold, cold)]);
        let bytes_on = BTreeMap::from([(NodeId(12), on(7, 0)), (NodeId(2), on(4, 3))]);
        let of = |node, tier, bytes| ResidencyInfo { node, tier, bytes };
        assert_eq!(
            residency_infos(&Residency { bytes_on, ..Residency::default() }),
            [
                of(2, ResidencyTier::Cold, 3),
                of(2, ResidencyTier::Hot, 4),
                of(12, ResidencyTier::Cold, 0),
                of(12, ResidencyTier::Hot, 7),
            ]
        );
    }

    #[test]
    fn names_and_slices_are_checked() {
        for name in ["a", "imagenet-1k", "2024.v1", &"x".repeat(63)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "A", "a b", "-a", "a/b", "ä", &"x".repeat(64)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        let of = |slices: &[&str]| checked_slices(slices.iter().map(|&slice| slice.to_owned()).collect());
        assert_eq!(of(&["b/", "a/"]).unwrap(), ["a/", "b/"]);
        for slices in [&["a", "b", "ab"][..], &["a/", "a/"], &[""]] {
            assert!(of(slices).is_err(), "{slices:?}");
        }
    }
}
