//! Group 0: ids, timelines, the key of upload ids, access keys, the cluster's version.

use super::bucket::next_id;
use super::{malformed, node, quota};
use crate::view::{ApplyError, View};
use mlgw_common::limits::UPLOAD_KEY_BYTES;
use mlgw_formats::command::{
    BeginIncarnation, DeleteCredential, LeaseBodies, PutCredential, PutUploadKey, Reject, Reply,
    SetClusterVersion,
};
use mlgw_formats::schema::meta::{
    ClusterVersion, Counter, EarlierTimelines, EndedTimeline, MetaRow, Timeline, UploadKey,
};
use mlgw_formats::schema::{Credential, credential};

pub(super) fn lease_bodies(view: &mut View<'_>, command: LeaseBodies) -> Result<Reply, ApplyError> {
    if command.count == 0 || command.count > u64::from(u32::MAX) {
        return Err(malformed("the lease has no IDs or too many"));
    }
    Ok(Reply::Bodies { first: next_id(view, MetaRow::NextBody, command.count)? })
}

/// Starts a timeline. Skips ids before it names the timeline, so that no id of an older timeline is allocated
/// again.
pub(super) fn begin_incarnation(view: &mut View<'_>, command: BeginIncarnation) -> Result<Reply, ApplyError> {
    let timeline = Timeline { cluster: command.cluster, incarnation: command.incarnation };
    if timeline.cluster == 0 || timeline.incarnation == 0 {
        return Err(malformed("the timeline has no name"));
    }
    let row = MetaRow::Incarnation.row();
    let before = view.get::<Timeline>(&row)?;
    if before == Some(timeline) {
        return Ok(Reply::Done);
    }
    if command.skipped_ids > 0 {
        let bodies_before = next_id(view, MetaRow::NextBody, command.skipped_ids)?;
        if let Some(Timeline { incarnation, .. }) = before {
            let row = MetaRow::EarlierTimelines.row();
            let mut earlier: EarlierTimelines = view.get(&row)?.unwrap_or_default();
            earlier.ended.push(EndedTimeline { incarnation, bodies_before });
            view.put(row, &earlier);
        }
        next_id(view, MetaRow::NextSegment, command.skipped_ids)?;
    }
    view.put(row, &timeline);
    Ok(Reply::Done)
}

pub(super) fn put_credential(view: &mut View<'_>, command: &PutCredential) -> Result<Reply, ApplyError> {
    if command.credential.access_key.is_empty() {
        return Err(malformed("the access key is empty"));
    }
    // The quota is changed by another command.
    let row = credential::row(&command.credential.access_key);
    let quota = view.get::<Credential>(&row)?.and_then(|known| known.quota);
    view.put(row, &Credential { quota, ..command.credential.clone() });
    Ok(Reply::Done)
}

pub(super) fn delete_credential(
    view: &mut View<'_>,
    command: &DeleteCredential,
) -> Result<Reply, ApplyError> {
    let row = credential::row(&command.access_key);
    if !view.has(&row)? {
        return Err(Reject::NoSuchCredential.into());
    }
    view.delete(row);
    quota::set_payer_quota(view, &command.access_key, None)?;
    Ok(Reply::Done)
}

/// Stores the key of upload ids unless there is one: ids made with the first key must stay valid.
pub(super) fn put_upload_key(view: &mut View<'_>, command: &PutUploadKey) -> Result<Reply, ApplyError> {
    if command.key.len() != UPLOAD_KEY_BYTES {
        return Err(malformed("the key of upload IDs has the wrong length"));
    }
    let row = MetaRow::UploadKey.row();
    if !view.has(&row)? {
        let next = view.get::<Counter>(&MetaRow::NextBody.row())?.unwrap_or_default().next;
        view.put(row, &UploadKey { key: command.key.clone(), bodies_from: next.max(1) });
    }
    Ok(Reply::Done)
}

/// Raises the cluster's version, which every node must have reported; it never falls.
pub(super) fn set_cluster_version(
    view: &mut View<'_>,
    command: SetClusterVersion,
) -> Result<Reply, ApplyError> {
    let before = node::cluster_version(view)?;
    if command.version < before {
        return Err(malformed(format!("the cluster has version {before} already")));
    }
    if command.version > before {
        node::check_all_know(view, command.version)?;
    }
    view.put(MetaRow::ClusterVersion.row(), &ClusterVersion { version: command.version });
    Ok(Reply::Done)
}
