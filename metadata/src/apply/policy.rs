//! Group 0: versions of the running policy. Each follows the newest by compare and set; the oldest are
//! deleted.

use super::{duty, malformed};
use crate::view::{ApplyError, View};
use mlgw_common::limits::{
    POLICY_BYTES_MAX, POLICY_FILE_BYTES_MAX, POLICY_FILES_KEPT_MAX, POLICY_FILES_MAX, POLICY_LEARNT_MAX,
    POLICY_TEXT_BYTES_MAX, POLICY_VERSIONS_MAX,
};
use mlgw_formats::command::{PutPolicy, Reject, Reply};
use mlgw_formats::key::{Family, parse_number_key};
use mlgw_formats::schema::{LearntBound, PolicyFiles, PolicyKind, PolicyVersion, decode, policy};

pub(super) fn put(view: &mut View<'_>, command: &PutPolicy) -> Result<Reply, ApplyError> {
    duty::check_term(view, command.duty_term)?;
    let rows = view.range(&Family::Policy.start(), &Family::Policy.end(), POLICY_VERSIONS_MAX + 1)?;
    let newest = rows.last().map(|(row, _)| parse_number_key(Family::Policy, row)).transpose()?.unwrap_or(0);
    if command.after != newest {
        return Err(Reject::PolicyChanged { newest }.into());
    }
    let new = &command.version;
    let texts = [&new.who, &new.message, &new.changes];
    if PolicyKind::try_from(new.kind).is_err() || texts.iter().any(|text| text.len() > POLICY_TEXT_BYTES_MAX)
    {
        return Err(malformed("the policy version has an unknown kind or a text that is too long"));
    }
    let is_long = |bound: &LearntBound| bound.name.len() > POLICY_TEXT_BYTES_MAX;
    if new.learnt.len() > POLICY_LEARNT_MAX || new.learnt.iter().any(is_long) {
        return Err(malformed("the policy has too many learned bounds, or a name of one is too long"));
    }
    let number = newest + 1;
    let mut put = PolicyVersion { number, ..new.clone() };
    match &command.files {
        Some(files) => {
            check(files)?;
            put.files = number;
            view.put(policy::files_row(number), files);
        }
        None if put.files == 0 => {}
        None if view.get::<PolicyFiles>(&policy::files_row(put.files))?.is_some() => {}
        None => return Err(Reject::NoSuchPolicy { number: put.files }.into()),
    }
    view.put(policy::row(number), &put);
    for (row, _) in rows.iter().take((rows.len() + 1).saturating_sub(POLICY_VERSIONS_MAX)) {
        view.delete(row.clone());
    }
    delete_old_files(view, &rows, put.files)?;
    Ok(Reply::Policy(Box::new(put)))
}

/// Deletes the files of the newest version whose files are no longer kept, unless a newer version uses them
/// too.
fn delete_old_files(
    view: &mut View<'_>,
    before: &[(Vec<u8>, Vec<u8>)],
    newest: u64,
) -> Result<(), ApplyError> {
    let Some(leaves) = before.len().checked_sub(POLICY_FILES_KEPT_MAX) else { return Ok(()) };
    let files = |value: &[u8]| decode::<PolicyVersion>(value).map(|version| version.files);
    let leaving = files(&before[leaves].1)?;
    let mut kept = vec![newest];
    for (_, value) in &before[leaves + 1..] {
        kept.push(files(value)?);
    }
    if leaving != 0 && !kept.contains(&leaving) {
        view.delete(policy::files_row(leaving));
    }
    Ok(())
}

fn check(files: &PolicyFiles) -> Result<(), ApplyError> {
    let is_many = files.custom.len().max(files.frameworks.len()) > POLICY_FILES_MAX;
    let all = || files.custom.iter().chain(&files.frameworks);
    let is_large =
        all().any(|file| file.name.len() > POLICY_TEXT_BYTES_MAX || file.text.len() > POLICY_FILE_BYTES_MAX);
    let bytes: usize = all().map(|file| file.text.len()).sum();
    if is_many || is_large || bytes > POLICY_BYTES_MAX {
        return Err(malformed("the policy has too many files, or they are too large"));
    }
    Ok(())
}
