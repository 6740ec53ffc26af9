//! Whether a file beside checkpoints, or the state of the Trainer in one of them, names one that is about to be deleted: somebody goes on from it.

use crate::admin::Admin;
use crate::s3::reader::BodyReader;
use mlgw_common::{BucketId, ObjectKey};
use mlgw_policies::checkpoints::{
    Checkpoints, GroupId, POINTER_BEGINNINGS, POINTER_NAME, folders_of_pointers, may_point, names, names_best,
};
use std::ops::Bound;

/// Such a file names it in its first line or two; what follows of a longer one, as a list of all that there are, is not read.
const BYTES_MAX: u64 = 16 << 10;
/// So many files that begin so are looked at in a folder: where there are more, nothing is let go.
const FILES_MAX: usize = 1000;

/// What such a file may name: a checkpoint by its prefix, the folder of its run, and its step.
pub(crate) struct Pointee {
    bucket: BucketId,
    prefix: String,
    parent: String,
    step: Option<u64>,
    /// Where the Trainer may have written which one is the best, if its folders are called so.
    states: Vec<String>,
}

impl Pointee {
    /// A checkpoint, if it is known.
    pub(crate) fn of(known: &Checkpoints, id: GroupId) -> Option<Self> {
        let one = known.group(id)?;
        let states = known.states_of_trainer(id);
        let (bucket, prefix, parent) = (BucketId(one.bucket), one.prefix.to_owned(), one.parent.to_owned());
        Some(Self { bucket, prefix, parent, step: one.step, states })
    }
}

/// Why a checkpoint is still needed: a file names it, or cannot be read.
pub(crate) async fn pointed_at(admin: &Admin, one: &Pointee) -> Option<String> {
    let pointers = match pointers(admin, one) {
        Ok(pointers) => pointers,
        Err(why) => return Some(why),
    };
    let states = one.states.iter().filter_map(|key| ObjectKey::new(key).ok());
    let all = pointers.into_iter().map(|key| (key, false)).chain(states.map(|key| (key, true)));
    for (key, is_state) in all {
        let is_named = if is_state { names_best } else { names };
        match content(admin, one.bucket, &key).await {
            Ok(Some(text)) if is_named(&text, &one.prefix, one.step) => {
                return Some(format!("{key} names it"));
            }
            Ok(_) => {}
            Err(error) => return Some(format!("{key}, which may name it, cannot be read: {error}")),
        }
    }
    None
}

/// Files that may name a checkpoint of a run.
///
/// # Errors
/// Why they are not known.
fn pointers(admin: &Admin, one: &Pointee) -> Result<Vec<ObjectKey>, String> {
    let mut pointers = Vec::new();
    for folder in folders_of_pointers(&one.parent) {
        pointers.extend(ObjectKey::new(&format!("{folder}{POINTER_NAME}")));
        for beginning in POINTER_BEGINNINGS {
            let begin = format!("{folder}{beginning}");
            files(admin, one.bucket, (folder, &begin), &mut pointers)?;
        }
    }
    Ok(pointers)
}

/// Adds the files of a folder that may name one and begin so; what is in folders that begin so is passed over, however much it is.
fn files(
    admin: &Admin,
    bucket: BucketId,
    (folder, begin): (&str, &str),
    pointers: &mut Vec<ObjectKey>,
) -> Result<(), String> {
    let (reader, mut from, mut left) = (admin.catalogue.reader(), begin.to_owned(), FILES_MAX);
    while let Some(found) = reader.scan(bucket, Bound::Included(from.as_bytes())).next() {
        let (key, entry) = found.map_err(|error| error.to_string())?;
        let Some(name) = key.as_str().strip_prefix(folder).filter(|_| key.as_str().starts_with(begin)) else {
            return Ok(());
        };
        left = left
            .checked_sub(1)
            .ok_or_else(|| format!("more than {FILES_MAX} files may name it that begin with {begin:?}"))?;
        if let Some(slash) = name.find('/') {
            // What follows a slash, in the order of bytes.
            from = format!("{folder}{}0", &name[..slash]);
            continue;
        }
        from = format!("{key}\0");
        let object = entry.version().map_err(|error| error.to_string())?;
        if !object.delete_marker && may_point(name, object.size) {
            pointers.push(key);
        }
    }
    Ok(())
}

/// What an object begins with; nothing if there is none.
async fn content(admin: &Admin, bucket: BucketId, key: &ObjectKey) -> Result<Option<String>, String> {
    let found = admin.catalogue.object(bucket, key).map_err(|error| error.to_string())?;
    let Some(object) = found.filter(|object| !object.delete_marker && object.size > 0) else {
        return Ok(None);
    };
    let range = 0..object.size.min(BYTES_MAX);
    let mut reader = BodyReader::new(&admin.catalogue, &admin.tiers, bucket, key, &object, range);
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await.map_err(|error| error.to_string())? {
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
