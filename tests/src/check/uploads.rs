//! Checks of uploads in progress: an acknowledged part is promised like an object.

use super::{BUCKET, ServerChecker, describe_values, presence};
use crate::history::{ExpectedBody, HistoryItem, ItemValue};
use crate::s3::ListedPartRow;

impl ServerChecker<'_> {
    pub(super) async fn check_uploads(&mut self) {
        let open_ids = match self.client.list_uploads(BUCKET).await {
            Ok(open) => open,
            Err(failure) => return self.violations.push(format!("listing uploads: {failure:?}")),
        };
        for item in self.history.items(self.at) {
            if let HistoryItem::Upload { key, id } = &item {
                let value = self.check_upload(key, id).await;
                if (value == ItemValue::Absent) == open_ids.contains(id) {
                    self.violations.push(format!(
                        "ListParts reports upload {id} of {key:?} as {value:?}, LIST does not"
                    ));
                }
                self.observed.insert(item, value);
            }
        }
    }

    /// Checks that each complete took effect as a whole or not at all.
    pub(super) fn check_completes(&mut self) {
        for complete in self.history.completes(self.at) {
            let gone = self.observed.get(&complete.upload) == Some(&ItemValue::Absent);
            // Compared by ETag: the reader cannot distinguish two equal bodies.
            let made = etag(self.observed.get(&complete.object)) == etag(Some(&complete.value));
            if made && !gone {
                self.violations
                    .push(format!("completed, but the upload still exists: {:?}", complete.upload));
            }
            if gone && !made && !complete.contested {
                self.violations
                    .push(format!("the upload is gone but its object does not exist: {:?}", complete.upload));
            }
        }
    }

    async fn check_upload(&mut self, key: &str, id: &str) -> ItemValue {
        let item = HistoryItem::Upload { key: key.to_owned(), id: id.to_owned() };
        let allowed = self.history.allowed(&item, self.at);
        let parts = self.client.list_parts(BUCKET, key, id).await;
        let value = match presence(&parts) {
            Ok(value) => value,
            Err(failure) => {
                self.violations.push(format!("ListParts of {key:?}: {failure}"));
                return ItemValue::Absent;
            }
        };
        if !allowed.contains(&value) {
            self.violations.push(format!(
                "upload {id} of {key:?} is {value:?}, allowed is {}",
                describe_values(&allowed)
            ));
        }
        for part in self.history.items(self.at) {
            if let (HistoryItem::Part { id: upload_id, number, .. }, Ok(parts)) = (&part, &parts)
                && upload_id == id
            {
                let row = parts.iter().find(|row| row.number == *number);
                self.check_part(&part, row);
            }
        }
        value
    }

    fn check_part(&mut self, thing: &HistoryItem, row: Option<&ListedPartRow>) {
        let allowed = self.history.allowed(thing, self.at);
        let fits = |value: &&ItemValue| match (value, row) {
            (ItemValue::Absent, None) => true,
            (ItemValue::Present(Some(stored)), Some(row)) => matches_row(stored, row),
            _ => false,
        };
        match allowed.iter().find(fits) {
            Some(value) => drop(self.observed.insert(thing.clone(), value.clone())),
            None => self
                .violations
                .push(format!("{thing:?} is {row:?}, allowed is {}", describe_values(&allowed))),
        }
    }
}

fn etag(value: Option<&ItemValue>) -> Option<&str> {
    match value {
        Some(ItemValue::Present(Some(stored))) => Some(&stored.etag),
        _ => None,
    }
}

fn matches_row(stored: &ExpectedBody, row: &ListedPartRow) -> bool {
    stored.etag == row.etag && stored.length() == row.size
}
