//! Reads a server that has just started, before anything is written to it, and compares the values it finds
//! with the promises made before.
//!
//! Everything that any client ever touched is read in full: the value must be one of the allowed ones, byte
//! for byte, under its ETag; LIST must show exactly the objects that GET finds; some objects are read again
//! by HEAD and by range. The observed values are returned, so that the next round can build on them.

use std::collections::BTreeMap;

use crate::history::{History, Stored, Thing, Value};
use crate::s3::{Client, Failure};
use crate::seed::Rng;

mod uploads;

/// The bucket of all crash tests.
pub(crate) const BUCKET: &str = "crash-tests";

/// The observed value of each item.
pub(crate) type Found = BTreeMap<Thing, Value>;

/// Reads everything and returns the observed values.
///
/// # Errors
/// The broken promises, one line each.
pub(crate) async fn check(
    client: &Client,
    history: &History,
    at: usize,
    rng: &mut Rng,
) -> Result<Found, Vec<String>> {
    let mut reader = Reader { client, history, at, rng, found: Found::new(), broken: Vec::new() };
    if reader.bucket().await {
        reader.objects().await;
        reader.uploads().await;
        reader.completes();
    }
    if reader.broken.is_empty() { Ok(reader.found) } else { Err(reader.broken) }
}

struct Reader<'a> {
    client: &'a Client,
    history: &'a History,
    at: usize,
    rng: &'a mut Rng,
    found: Found,
    broken: Vec<String>,
}

impl Reader<'_> {
    /// Checks the bucket; true if it exists.
    async fn bucket(&mut self) -> bool {
        let allowed = self.history.allowed(&Thing::Bucket, self.at);
        let value = match self.client.list(BUCKET, 1).await {
            Ok(_) => Value::Present(None),
            Err(failure) if failure.is_not_found() => Value::Absent,
            Err(failure) => {
                self.broken.push(format!("listing the bucket: {failure:?}"));
                return false;
            }
        };
        if !allowed.contains(&value) {
            self.broken.push(format!("the bucket is {value:?}, allowed is {allowed:?}"));
        }
        let there = value != Value::Absent;
        self.found.insert(Thing::Bucket, value);
        there
    }

    async fn objects(&mut self) {
        let page_keys = *self.rng.pick(&[3, 10, 1000]);
        let listed = match self.client.list(BUCKET, page_keys).await {
            Ok(listed) => listed,
            Err(failure) => return self.broken.push(format!("LIST by {page_keys}: {failure:?}")),
        };
        if !listed.is_sorted_by(|a, b| a.key < b.key) {
            self.broken.push(format!("LIST is not in strict order: {listed:?}"));
        }
        let mut rows: BTreeMap<String, (String, u64)> =
            listed.into_iter().map(|row| (row.key, (row.etag, row.size))).collect();
        for thing in self.history.things(self.at) {
            if let Thing::Object(key) = &thing {
                let row = rows.remove(key);
                self.object(key, row).await;
            }
        }
        for key in rows.keys() {
            self.broken.push(format!("LIST shows {key:?}, which nobody wrote by then"));
        }
    }

    async fn object(&mut self, key: &str, row: Option<(String, u64)>) {
        let thing = Thing::Object(key.to_owned());
        let allowed = self.history.allowed(&thing, self.at);
        let value = match self.client.get(BUCKET, key).await {
            Ok(answer) => match matching(&allowed, &answer.etag(), &answer.body) {
                Ok(stored) => Value::Present(Some(stored)),
                Err(difference) => return self.broken.push(format!("GET {key:?}: {difference}")),
            },
            Err(failure) if failure.is_not_found() && allowed.contains(&Value::Absent) => Value::Absent,
            Err(failure) => {
                let allowed = names(&allowed);
                return self.broken.push(format!("GET {key:?}: {failure:?}, allowed is {allowed}"));
            }
        };
        self.list_agrees(key, &value, row.as_ref());
        if let Value::Present(Some(stored)) = &value
            && self.rng.chance(1, 4)
        {
            self.head_and_range_agree(key, stored).await;
        }
        self.found.insert(thing, value);
    }

    fn list_agrees(&mut self, key: &str, value: &Value, row: Option<&(String, u64)>) {
        let expected = match value {
            Value::Present(Some(stored)) => Some((stored.etag.clone(), stored.length())),
            Value::Present(None) | Value::Absent => None,
        };
        if row != expected.as_ref() {
            self.broken.push(format!("LIST shows {row:?} for {key:?}, GET {expected:?}"));
        }
    }

    async fn head_and_range_agree(&mut self, key: &str, stored: &Stored) {
        match self.client.head(BUCKET, key).await {
            Ok(answer) => {
                let length = answer.header("content-length").map(str::to_owned);
                if answer.etag() != stored.etag || length != Some(stored.length().to_string()) {
                    self.broken.push(format!("HEAD {key:?} differs: {:?}, {length:?}", answer.etag()));
                }
            }
            Err(failure) => self.broken.push(format!("HEAD {key:?}: {failure:?}")),
        }
        if stored.length() == 0 {
            return;
        }
        let first = self.rng.below(stored.length());
        let last = first + self.rng.below(stored.length() - first);
        match self.client.get_range(BUCKET, key, (first, last)).await {
            Ok(answer) => {
                let range = usize::try_from(first).expect("fits")..=usize::try_from(last).expect("fits");
                if answer.body != stored.bytes()[range] {
                    self.broken.push(format!("bytes {first}-{last} of {key:?} differ from the whole"));
                }
            }
            Err(failure) => self.broken.push(format!("bytes {first}-{last} of {key:?}: {failure:?}")),
        }
    }
}

/// Returns the allowed value that has this ETag and body.
fn matching(allowed: &[Value], etag: &str, body: &[u8]) -> Result<Stored, String> {
    let bodies = allowed.iter().filter_map(|value| match value {
        Value::Present(Some(stored)) => Some(stored),
        Value::Present(None) | Value::Absent => None,
    });
    for stored in bodies {
        if stored.etag == etag {
            return match stored.pieces.as_slice() {
                [only] => only.difference(body).map_or(Ok(stored.clone()), Err),
                _ if stored.bytes() == body => Ok(stored.clone()),
                _ => Err(format!("the {} bytes under the right ETag are not those written", body.len())),
            };
        }
    }
    let claimed = crate::content::Content::claimed_by(body);
    Err(format!("ETag {etag}, {} bytes that claim {claimed:?}; allowed is {}", body.len(), names(allowed)))
}

/// Values in short form, for a report.
fn names(values: &[Value]) -> String {
    let name = |value: &Value| match value {
        Value::Absent => "absent".to_owned(),
        Value::Present(None) => "present".to_owned(),
        Value::Present(Some(stored)) => {
            let pieces: Vec<String> = stored.pieces.iter().map(ToString::to_string).collect();
            format!("{} = {}", stored.etag, pieces.join(" + "))
        }
    };
    format!("[{}]", values.iter().map(name).collect::<Vec<_>>().join(", "))
}

/// A 404 for an upload is a valid response; any other failure is an error.
fn presence<T>(result: &Result<T, Failure>) -> Result<Value, String> {
    match result {
        Ok(_) => Ok(Value::Present(None)),
        Err(failure) if failure.is_not_found() => Ok(Value::Absent),
        Err(failure) => Err(format!("{failure:?}")),
    }
}
