//! Commands that change one key: put, delete, update, and those of [`upload`](super::upload).

use super::conditions::Conditions;
use super::upload::{AbortUpload, CompleteUpload, CreateUpload, PutPart};
use crate::schema::{ExtentPage, ObjectVersion, Pair};
use mlgw_common::{BucketId, Epoch};

/// A change of one key of a bucket.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectCommand {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The bucket's epoch when the command was built.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The key.
    #[prost(string, tag = "3")]
    pub key: String,
    /// Wall-clock time at which the command was built, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub now_ms: i64,
    /// The change.
    #[prost(oneof = "ObjectChange", tags = "5, 6, 7, 8, 9, 10, 11")]
    pub change: Option<ObjectChange>,
    /// True if `apply` raises the Last-Modified of a version that would be older than the one it replaces:
    /// the clocks of nodes differ. Since cluster version 4; without it, the time is stored as it was sent.
    #[prost(bool, tag = "12")]
    pub grows_times: bool,
    /// Term of the duty node that writes in a remote-backed bucket; rejected if the bucket has a later one.
    /// Since cluster version 5; without it, every term is accepted.
    #[prost(uint64, optional, tag = "13")]
    pub duty_term: Option<u64>,
}

impl ObjectCommand {
    /// Returns the bucket's id.
    #[must_use]
    pub const fn bucket(&self) -> BucketId {
        BucketId(self.bucket_id)
    }

    /// Returns the bucket's epoch when the command was built.
    #[must_use]
    pub const fn built_at(&self) -> Epoch {
        Epoch(self.epoch)
    }

    /// True if the change has a new Last-Modified.
    #[must_use]
    pub const fn has_time(&self) -> bool {
        match &self.change {
            Some(ObjectChange::Put(_) | ObjectChange::CompleteUpload(_)) => true,
            Some(ObjectChange::Update(update)) => match &update.update {
                Some(update_object::Update::Replace(_)) => true,
                Some(update_object::Update::SetTags(_)) | None => false,
            },
            Some(
                ObjectChange::Delete(_)
                | ObjectChange::CreateUpload(_)
                | ObjectChange::PutPart(_)
                | ObjectChange::AbortUpload(_),
            )
            | None => false,
        }
    }
}

/// Change that an [`ObjectCommand`] makes.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ObjectChange {
    /// Writes a version. Replies with [`Reply::Written`](super::Reply::Written).
    #[prost(message, tag = "5")]
    Put(PutObject),
    /// Deletes the current version. Replies with [`Reply::Deleted`](super::Reply::Deleted).
    #[prost(message, tag = "6")]
    Delete(DeleteObject),
    /// Changes metadata of the same body. Replies with [`Reply::Written`](super::Reply::Written).
    #[prost(message, tag = "7")]
    Update(UpdateObject),
    /// Begins a multipart upload. Replies with [`Reply::Done`](super::Reply::Done).
    #[prost(message, tag = "8")]
    CreateUpload(CreateUpload),
    /// Writes a part of an upload. Replies with [`Reply::Part`](super::Reply::Part).
    #[prost(message, tag = "9")]
    PutPart(PutPart),
    /// Makes a version of an upload's parts. Replies with [`Reply::Written`](super::Reply::Written).
    #[prost(message, tag = "10")]
    CompleteUpload(CompleteUpload),
    /// Aborts an upload. Replies with [`Reply::Done`](super::Reply::Done).
    #[prost(message, tag = "11")]
    AbortUpload(AbortUpload),
}

/// Writes a new version of a key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutObject {
    /// The version; its `seq` is set by `apply`.
    #[prost(message, required, tag = "1")]
    pub version: ObjectVersion,
    /// The body's map, in order, if it does not fit in the record; the version's own extents are empty then.
    #[prost(message, repeated, tag = "2")]
    pub pages: Vec<ExtentPage>,
    /// Conditions on the version that is replaced.
    #[prost(message, required, tag = "3")]
    pub conditions: Conditions,
    /// True if no quota may refuse the command although usage is counted: the row records a deletion that is
    /// still to be made at the origin.
    #[prost(bool, tag = "4")]
    pub is_exempt: bool,
}

/// Deletes a key's current version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteObject {
    /// Conditions on the version that is deleted.
    #[prost(message, required, tag = "1")]
    pub conditions: Conditions,
}

/// Changes metadata without changing the body.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateObject {
    /// Body that the current version must have. Otherwise the command is rejected as a failed precondition.
    #[prost(uint64, tag = "1")]
    pub expected_body: u64,
    /// The change.
    #[prost(oneof = "update_object::Update", tags = "2, 3")]
    pub update: Option<update_object::Update>,
    /// Further conditions on the version.
    #[prost(message, required, tag = "4")]
    pub conditions: Conditions,
}

/// Kinds of [`UpdateObject`].
pub mod update_object {
    /// A change of metadata.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Update {
        /// Sets the tags; Last-Modified stays.
        #[prost(message, tag = "2")]
        SetTags(super::SetTags),
        /// Sets headers and user metadata, for a copy of an object onto itself.
        #[prost(message, tag = "3")]
        Replace(super::Replace),
    }
}

/// Replaces the tags.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetTags {
    /// The complete list of tags.
    #[prost(message, repeated, tag = "1")]
    pub tags: Vec<Pair>,
}

/// Replaces headers and user metadata.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Replace {
    /// All stored system headers.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<Pair>,
    /// All user metadata.
    #[prost(message, repeated, tag = "2")]
    pub metadata: Vec<Pair>,
    /// All tags, if they change too.
    #[prost(message, optional, tag = "3")]
    pub tags: Option<SetTags>,
    /// The new Last-Modified, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub modified_ms: i64,
    /// The new storage class.
    #[prost(string, tag = "5")]
    pub storage_class: String,
}

#[cfg(test)]
mod tests {
    use super::{DeleteObject, ObjectChange, ObjectCommand, PutObject, UpdateObject, update_object};
    use crate::schema::golden;

    fn command(change: ObjectChange, grows_times: bool) -> ObjectCommand {
        let (key, change) = ("k".to_owned(), Some(change));
        ObjectCommand { bucket_id: 1, epoch: 2, key, now_ms: 1000, change, grows_times, duty_term: None }
    }

    #[test]
    fn object_commands_have_these_bytes() {
        let delete = || ObjectChange::Delete(DeleteObject::default());
        golden::check(&command(delete(), false), "01 0801 1002 1a016b 20e807 3202 0a00");
        golden::check(&command(delete(), true), "01 0801 1002 1a016b 20e807 3202 0a00 6001");
        let of_term = ObjectCommand { duty_term: Some(300), ..command(delete(), false) };
        golden::check(&of_term, "01 0801 1002 1a016b 20e807 3202 0a00 68ac02");
    }

    #[test]
    fn puts_and_replacements_of_metadata_have_a_time() {
        let update = |update| ObjectChange::Update(UpdateObject { update, ..UpdateObject::default() });
        let replace = update_object::Update::Replace(super::Replace::default());
        let tags = update_object::Update::SetTags(super::SetTags::default());
        for (change, has_time) in [
            (ObjectChange::Put(PutObject::default()), true),
            (ObjectChange::CompleteUpload(super::CompleteUpload::default()), true),
            (update(Some(replace)), true),
            (update(Some(tags)), false),
            (ObjectChange::Delete(DeleteObject::default()), false),
        ] {
            assert_eq!(command(change, false).has_time(), has_time);
        }
    }
}
