//! Reads a server that has just started, before anything is written to it, and compares the values it finds
//! with the promises made before.
//!
//! Everything that any client ever touched is read in full: the value must be one of the allowed ones, byte
//! for byte, under its ETag; LIST must show exactly the objects that GET finds; some objects are read again
//! by HEAD and by range. The observed values are returned, so that the next round can build on them.

use std::collections::BTreeMap;

use crate::history::{ExpectedBody, History, HistoryItem, ItemValue};
use crate::s3::{CallFailure, S3TestClient};
use crate::seed::Rng;

mod uploads;

/// The bucket of all crash tests.
pub(crate) const BUCKET: &str = "crash-tests";

/// The observed value of each item.
pub(crate) type ObservedValues = BTreeMap<HistoryItem, ItemValue>;

/// Reads everything and returns the observed values.
///
/// # Errors
/// The broken promises, one line each.
pub(crate) async fn check(
    client: &S3TestClient,
    history: &History,
    at: usize,
    rng: &mut Rng,
) -> Result<ObservedValues, Vec<String>> {
    let mut checker =
        ServerChecker { client, history, at, rng, observed: ObservedValues::new(), violations: Vec::new() };
    if checker.check_bucket().await {
        checker.check_objects().await;
        checker.check_uploads().await;
        checker.check_completes();
    }
    if checker.violations.is_empty() { Ok(checker.observed) } else { Err(checker.violations) }
}

struct ServerChecker<'a> {
    client: &'a S3TestClient,
    history: &'a History,
    at: usize,
    rng: &'a mut Rng,
    observed: ObservedValues,
    violations: Vec<String>,
}

impl ServerChecker<'_> {
    /// Checks the bucket; true if it exists.
    async fn check_bucket(&mut self) -> bool {
        let allowed = self.history.allowed(&HistoryItem::Bucket, self.at);
        let value = match self.client.list(BUCKET, 1).await {
            Ok(_) => ItemValue::Present(None),
            Err(failure) if failure.is_not_found() => ItemValue::Absent,
            Err(failure) => {
                self.violations.push(format!("listing the bucket: {failure:?}"));
                return false;
            }
        };
        if !allowed.contains(&value) {
            self.violations.push(format!("the bucket is {value:?}, allowed is {allowed:?}"));
        }
        let exists = value != ItemValue::Absent;
        self.observed.insert(HistoryItem::Bucket, value);
        exists
    }

    async fn check_objects(&mut self) {
        let page_keys = *self.rng.pick(&[3, 10, 1000]);
        let listed = match self.client.list(BUCKET, page_keys).await {
            Ok(listed) => listed,
            Err(failure) => return self.violations.push(format!("LIST by {page_keys}: {failure:?}")),
        };
        if !listed.is_sorted_by(|a, b| a.key < b.key) {
            self.violations.push(format!("LIST is not in strict order: {listed:?}"));
        }
        let mut rows: BTreeMap<String, (String, u64)> =
            listed.into_iter().map(|row| (row.key, (row.etag, row.size))).collect();
        for item in self.history.items(self.at) {
            if let HistoryItem::Object(key) = &item {
                let row = rows.remove(key);
                self.check_object(key, row).await;
            }
        }
        for key in rows.keys() {
            self.violations.push(format!("LIST shows {key:?}, which was not written by then"));
        }
    }

    async fn check_object(&mut self, key: &str, row: Option<(String, u64)>) {
        let item = HistoryItem::Object(key.to_owned());
        let allowed = self.history.allowed(&item, self.at);
        let value = match self.client.get(BUCKET, key).await {
            Ok(answer) => match find_matching_value(&allowed, &answer.etag(), &answer.body) {
                Ok(stored) => ItemValue::Present(Some(stored)),
                Err(difference) => return self.violations.push(format!("GET {key:?}: {difference}")),
            },
            Err(failure) if failure.is_not_found() && allowed.contains(&ItemValue::Absent) => {
                ItemValue::Absent
            }
            Err(failure) => {
                let allowed = describe_values(&allowed);
                return self.violations.push(format!("GET {key:?}: {failure:?}, allowed is {allowed}"));
            }
        };
        self.compare_with_list(key, &value, row.as_ref());
        if let ItemValue::Present(Some(stored)) = &value
            && self.rng.chance(1, 4)
        {
            self.compare_head_and_range(key, stored).await;
        }
        self.observed.insert(item, value);
    }

    fn compare_with_list(&mut self, key: &str, value: &ItemValue, row: Option<&(String, u64)>) {
        let expected = match value {
            ItemValue::Present(Some(stored)) => Some((stored.etag.clone(), stored.length())),
            ItemValue::Present(None) | ItemValue::Absent => None,
        };
        if row != expected.as_ref() {
            self.violations.push(format!("LIST shows {row:?} for {key:?}, GET {expected:?}"));
        }
    }

    async fn compare_head_and_range(&mut self, key: &str, stored: &ExpectedBody) {
        match self.client.head(BUCKET, key).await {
            Ok(answer) => {
                let length = answer.header("content-length").map(str::to_owned);
                if answer.etag() != stored.etag || length != Some(stored.length().to_string()) {
                    self.violations.push(format!("HEAD {key:?} differs: {:?}, {length:?}", answer.etag()));
                }
            }
            Err(failure) => self.violations.push(format!("HEAD {key:?}: {failure:?}")),
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
                    self.violations.push(format!("bytes {first}-{last} of {key:?} differ from the whole"));
                }
            }
            Err(failure) => self.violations.push(format!("bytes {first}-{last} of {key:?}: {failure:?}")),
        }
    }
}

/// Returns the allowed value that has this ETag and body.
fn find_matching_value(allowed: &[ItemValue], etag: &str, body: &[u8]) -> Result<ExpectedBody, String> {
    let bodies = allowed.iter().filter_map(|value| match value {
        ItemValue::Present(Some(stored)) => Some(stored),
        ItemValue::Present(None) | ItemValue::Absent => None,
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
    let claimed = crate::content::TestContent::parse_identity(body);
    Err(format!(
        "ETag {etag}, {} bytes that claim {claimed:?}; allowed is {}",
        body.len(),
        describe_values(allowed)
    ))
}

/// Values in short form, for a report.
fn describe_values(values: &[ItemValue]) -> String {
    let name = |value: &ItemValue| match value {
        ItemValue::Absent => "absent".to_owned(),
        ItemValue::Present(None) => "present".to_owned(),
        ItemValue::Present(Some(stored)) => {
            let pieces: Vec<String> = stored.pieces.iter().map(ToString::to_string).collect();
            format!("{} = {}", stored.etag, pieces.join(" + "))
        }
    };
    format!("[{}]", values.iter().map(name).collect::<Vec<_>>().join(", "))
}

/// A 404 for an upload is a valid response; any other failure is an error.
fn presence<T>(result: &Result<T, CallFailure>) -> Result<ItemValue, String> {
    match result {
        Ok(_) => Ok(ItemValue::Present(None)),
        Err(failure) if failure.is_not_found() => Ok(ItemValue::Absent),
        Err(failure) => Err(format!("{failure:?}")),
    }
}
