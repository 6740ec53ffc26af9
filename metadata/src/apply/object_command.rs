//! Changes of one key: the checks of its bucket, then the change of the object or upload.

use super::object_target::ObjectTarget;
use super::quota::GroupLimits;
use super::{bucket, malformed, object, upload};
use crate::view::{ApplyError, View};
use mlgw_common::Seq;
use mlgw_common::limits::KEY_LEN_MAX;
use mlgw_formats::command::{ObjectChange, ObjectCommand, Reject, Reply};
use mlgw_formats::schema::Mirror;
use mlgw_formats::schema::bucket::mirror_row;

pub(super) fn apply(view: &mut View<'_>, command: &ObjectCommand, seq: Seq) -> Result<Reply, ApplyError> {
    let mirror: Mirror = view.get_cached(&mirror_row(command.bucket()))?.ok_or(Reject::NoSuchBucket)?;
    if mirror.frozen {
        return Err(Reject::BucketFrozen.into());
    }
    if mirror.epoch != command.epoch {
        return Err(Reject::StaleEpoch.into());
    }
    bucket::check_term(&mirror, command.duty_term)?;
    if command.key.is_empty() || command.key.len() > KEY_LEN_MAX {
        return Err(malformed("the key is empty or too long"));
    }
    let place = ObjectTarget {
        bucket: command.bucket(),
        key: command.key.as_bytes(),
        seq,
        limits: GroupLimits::from(&mirror),
        grows_times: command.grows_times,
    };
    match &command.change {
        Some(ObjectChange::Put(put)) => object::put(view, place, put),
        Some(ObjectChange::Delete(delete)) => object::delete(view, place, delete),
        Some(ObjectChange::Update(update)) => object::update(view, place, update),
        Some(ObjectChange::CreateUpload(create)) => upload::create(view, place, create),
        Some(ObjectChange::PutPart(part)) => upload::put_part(view, place, part),
        Some(ObjectChange::CompleteUpload(complete)) => upload::complete(view, place, complete),
        Some(ObjectChange::AbortUpload(abort)) => upload::abort(view, place, *abort),
        None => Err(malformed("the object command has no change")),
    }
}
