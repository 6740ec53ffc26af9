//! Checks of uploads in progress: an acknowledged part is promised like an object.

use super::{BUCKET, Reader, names, presence};
use crate::history::{Stored, Thing, Value};
use crate::s3::PartListed;

impl Reader<'_> {
    pub(super) async fn uploads(&mut self) {
        let open = match self.client.list_uploads(BUCKET).await {
            Ok(open) => open,
            Err(failure) => return self.broken.push(format!("listing uploads: {failure:?}")),
        };
        for thing in self.history.things(self.at) {
            if let Thing::Upload { key, id } = &thing {
                let value = self.upload(key, id).await;
                if (value == Value::Absent) == open.contains(id) {
                    self.broken.push(format!("ListParts says upload {id} of {key:?} is {value:?}, LIST not"));
                }
                self.found.insert(thing, value);
            }
        }
    }

    /// Checks that each complete took effect as a whole or not at all.
    pub(super) fn completes(&mut self) {
        for complete in self.history.completes(self.at) {
            let gone = self.found.get(&complete.upload) == Some(&Value::Absent);
            // Compared by ETag: the reader cannot distinguish two equal bodies.
            let made = etag(self.found.get(&complete.object)) == etag(Some(&complete.value));
            if made && !gone {
                self.broken.push(format!("completed, and the upload is still there: {:?}", complete.upload));
            }
            if gone && !made && !complete.contested {
                self.broken
                    .push(format!("the upload is gone and its object not made: {:?}", complete.upload));
            }
        }
    }

    async fn upload(&mut self, key: &str, id: &str) -> Value {
        let thing = Thing::Upload { key: key.to_owned(), id: id.to_owned() };
        let allowed = self.history.allowed(&thing, self.at);
        let parts = self.client.list_parts(BUCKET, key, id).await;
        let value = match presence(&parts) {
            Ok(value) => value,
            Err(failure) => {
                self.broken.push(format!("ListParts of {key:?}: {failure}"));
                return Value::Absent;
            }
        };
        if !allowed.contains(&value) {
            self.broken.push(format!("upload {id} of {key:?} is {value:?}, allowed is {}", names(&allowed)));
        }
        for part in self.history.things(self.at) {
            if let (Thing::Part { id: of, number, .. }, Ok(parts)) = (&part, &parts)
                && of == id
            {
                let row = parts.iter().find(|row| row.number == *number);
                self.part(&part, row);
            }
        }
        value
    }

    fn part(&mut self, thing: &Thing, row: Option<&PartListed>) {
        let allowed = self.history.allowed(thing, self.at);
        let fits = |value: &&Value| match (value, row) {
            (Value::Absent, None) => true,
            (Value::Present(Some(stored)), Some(row)) => is(stored, row),
            _ => false,
        };
        match allowed.iter().find(fits) {
            Some(value) => drop(self.found.insert(thing.clone(), value.clone())),
            None => self.broken.push(format!("{thing:?} is {row:?}, allowed is {}", names(&allowed))),
        }
    }
}

fn etag(value: Option<&Value>) -> Option<&str> {
    match value {
        Some(Value::Present(Some(stored))) => Some(&stored.etag),
        _ => None,
    }
}

fn is(stored: &Stored, row: &PartListed) -> bool {
    stored.etag == row.etag && stored.length() == row.size
}
