//! Record of a write that is not at its origin yet. Pure.
//!
//! It is an object record like any other, among the bucket's own local names, under a name that no other
//! record has. The facts of the write are among its headers, under names that no HTTP header has. At the
//! origin an object carries the mark of the write that made it, with the ETag returned to the client, so that
//! a write that was sent before a crash is recognized.

use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::{BodyId, Incarnation, ObjectKey};
use mlgw_formats::schema::{Bucket, ObjectVersion, Pair};

const KEY: &str = ":key";
const AFTER: &str = ":after";
const DELETED: &str = ":deleted";
const FOREIGN: &str = ":foreign";
const UPLOAD: &str = ":upload";
const KNOWN_ETAG: &str = ":knew";
const PENDING_UPLOAD: &str = ":begins";
/// Separator of upload ids, which no id contains.
const BETWEEN_IDS: char = '\n';
/// Name of the mark in the user metadata at the origin.
pub const WRITE_MARK_NAME: &str = "mlgw-write";
/// Prefix of a mark that names an incarnation; marks of earlier versions begin with a digit.
const INCARNATION_PREFIX: char = 'i';
/// Request header of the mark.
pub const WRITE_MARK_HEADER: HeaderName = HeaderName::from_static("x-amz-meta-mlgw-write");

/// Facts of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFacts {
    /// Key.
    pub key: ObjectKey,
    /// `seq` of the last write that was acknowledged before this one began; 0 if there was none.
    pub after: u64,
    /// True if the write deletes the object.
    pub is_delete: bool,
    /// Foreign object that another program has written under the key at the origin since, if any.
    pub foreign: Option<ForeignObject>,
    /// Multipart upload at the origin by which it is sent.
    pub upload: Option<OriginUpload>,
    /// ETag under which this server knew the origin's object when the write was made, if it did.
    pub known_etag: Option<String>,
    /// Upload at the origin that is about to be created.
    pub pending_upload: Option<PendingOriginUpload>,
}

/// Object of another program, found at the origin instead of the one that a write expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    /// ETag, if it was recorded.
    pub etag: Option<String>,
    /// Number of the write; recording this fact has given the record another `seq`.
    pub number: u64,
}

/// Upload that is about to be created at the origin for a write, and whose id is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingOriginUpload {
    /// Ids of the uploads of the key that existed before: they must not be aborted by this server.
    pub others: Vec<String>,
    /// Number of the write; recording this fact has given the record another `seq`.
    pub number: u64,
}

/// Upload that was created at the origin for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginUpload {
    /// Id at the origin.
    pub id: String,
    /// Number of the write; recording this fact has given the record another `seq`.
    pub number: u64,
}

impl WriteFacts {
    /// Creates the facts of a new object under a key, written when `after` was the last acknowledged write
    /// and the origin's object had the given ETag, if it was known.
    #[must_use]
    pub const fn of_write(key: ObjectKey, after: u64, knew: Option<String>) -> Self {
        Self {
            key,
            after,
            is_delete: false,
            foreign: None,
            upload: None,
            known_etag: knew,
            pending_upload: None,
        }
    }

    /// Creates the facts of a deletion, like [`Self::of_write`].
    #[must_use]
    pub fn of_deletion(key: ObjectKey, after: u64, knew: Option<String>) -> Self {
        Self { is_delete: true, ..Self::of_write(key, after, knew) }
    }

    /// Adds the facts to the headers of a record.
    pub fn put(&self, headers: &mut Vec<Pair>) {
        Self::put_key(&self.key, headers);
        self.put_rest(headers);
    }

    /// Adds the key to the headers of a record, for an upload that will become a write of the key.
    pub fn put_key(key: &ObjectKey, headers: &mut Vec<Pair>) {
        headers.push(Pair::new(KEY, key.as_str()));
    }

    /// Returns the key among the headers of a record.
    #[must_use]
    pub fn key_of(headers: &[Pair]) -> Option<ObjectKey> {
        let found = headers.iter().find(|pair| pair.name == KEY)?;
        ObjectKey::new(&found.value).ok()
    }

    /// Adds all facts but the key to the headers of a record that already has the key.
    pub fn put_rest(&self, headers: &mut Vec<Pair>) {
        headers.push(Pair::new(AFTER, self.after.to_string()));
        headers.extend(self.is_delete.then(|| Pair::new(DELETED, "")));
        headers.extend(self.foreign.iter().map(|foreign| Pair::new(FOREIGN, foreign.text())));
        let text = |upload: &OriginUpload| format!("{}:{}", upload.number, upload.id);
        headers.extend(self.upload.iter().map(|upload| Pair::new(UPLOAD, text(upload))));
        headers.extend(self.known_etag.iter().map(|etag| Pair::new(KNOWN_ETAG, etag.as_str())));
        headers.extend(self.pending_upload.iter().map(|begins| Pair::new(PENDING_UPLOAD, begins.text())));
    }

    /// Returns the number of the write whose record has this `seq`.
    #[must_use]
    pub fn number(&self, seq: u64) -> u64 {
        let recorded = self.upload.as_ref().map(|upload| upload.number);
        let begins = self.pending_upload.as_ref().map(|begins| begins.number);
        let foreign = self.foreign.as_ref().map(|foreign| foreign.number);
        foreign.or(recorded).or(begins).unwrap_or(seq)
    }

    /// Takes the facts out of the headers of a record; `None` if it is not the record of a write.
    pub fn take(headers: &mut Vec<Pair>) -> Option<Self> {
        let ours: Vec<Pair> = headers.extract_if(.., |pair| pair.name.starts_with(':')).collect();
        let value = |name: &str| ours.iter().find(|pair| pair.name == name).map(|pair| pair.value.as_str());
        Some(Self {
            key: ObjectKey::new(value(KEY)?).ok()?,
            after: value(AFTER)?.parse().ok()?,
            is_delete: value(DELETED).is_some(),
            foreign: match value(FOREIGN) {
                Some(text) => Some(ForeignObject::parse(text)?),
                None => None,
            },
            upload: match value(UPLOAD) {
                Some(text) => Some(OriginUpload::parse(text)?),
                None => None,
            },
            known_etag: value(KNOWN_ETAG).map(str::to_owned),
            pending_upload: match value(PENDING_UPLOAD) {
                Some(text) => Some(PendingOriginUpload::parse(text)?),
                None => None,
            },
        })
    }
}

impl ForeignObject {
    fn text(&self) -> String {
        let etag = self.etag.iter().map(|etag| format!(":{etag}"));
        std::iter::once(self.number.to_string()).chain(etag).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        let (number, etag) = text.split_once(':').map_or((text, None), |(number, etag)| (number, Some(etag)));
        Some(Self { etag: etag.map(str::to_owned), number: number.parse().ok()? })
    }
}

impl PendingOriginUpload {
    /// Creates the state of a pending upload beside the existing uploads `others`; `None` if their ids cannot
    /// be recorded.
    #[must_use]
    pub fn beside(others: Vec<String>, number: u64) -> Option<Self> {
        let is_plain = |id: &String| !id.is_empty() && !id.contains(BETWEEN_IDS);
        others.iter().all(is_plain).then_some(Self { others, number })
    }

    fn text(&self) -> String {
        format!("{}:{}", self.number, self.others.join(&BETWEEN_IDS.to_string()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (number, ids) = text.split_once(':')?;
        let others = ids.split(BETWEEN_IDS).filter(|id| !id.is_empty()).map(str::to_owned).collect();
        Some(Self { others, number: number.parse().ok()? })
    }
}

impl OriginUpload {
    fn parse(text: &str) -> Option<Self> {
        let (number, id) = text.split_once(':').filter(|(_, id)| !id.is_empty())?;
        Some(Self { id: id.to_owned(), number: number.parse().ok()? })
    }
}

/// Returns the name of a record; no two writes have the same name.
///
/// # Panics
/// Never: sixteen digits are a valid key.
#[must_use]
pub fn record_name(write: BodyId) -> ObjectKey {
    ObjectKey::new(&format!("{:016x}", write.get())).expect("sixteen digits are a key")
}

/// Incarnation that marks the writes of this server, and its ancestors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timelines {
    /// `None` if the catalogue has no identity.
    own: Option<Incarnation>,
    /// Ancestors, each with the first body id that it had not assigned before this server's history left it.
    ended: Vec<(Incarnation, u64)>,
}

impl Timelines {
    /// Creates the timelines of a catalogue without an identity.
    #[must_use]
    pub const fn none() -> Self {
        Self { own: None, ended: Vec::new() }
    }

    /// Creates the timelines of the incarnation `own` and its ancestors, each with the first body id that it
    /// had not assigned before it ended.
    #[must_use]
    pub const fn new(own: Incarnation, ended: Vec<(Incarnation, u64)>) -> Self {
        Self { own: Some(own), ended }
    }

    /// True if this server made a write, in this incarnation or in an ancestor before that ended. A server
    /// that continued in an ancestor's incarnation, beside this one, is a foreign server.
    #[must_use]
    pub fn has_made(&self, mark: &WriteMark) -> bool {
        let ended_after = |of: Incarnation| {
            self.ended.iter().any(|(earlier, before)| *earlier == of && (1..*before).contains(&mark.write))
        };
        // A mark of an earlier version names no incarnation, and counts as made by this server.
        mark.incarnation.is_none_or(|of| Some(of) == self.own || ended_after(of))
    }
}

/// Mark of a write, with the ETag returned to its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteMark {
    /// Incarnation that made the write; `None` in a mark of an earlier version.
    incarnation: Option<Incarnation>,
    /// Bucket to which it was written.
    bucket: String,
    /// Body id of the write; 0 for a write-through.
    write: u64,
    /// ETag returned to the client; empty if it was the origin's own.
    etag: String,
}

impl WriteMark {
    /// Creates the mark of a write.
    #[must_use]
    pub fn new(bucket: &Bucket, timelines: &Timelines, write: BodyId, etag: &str) -> Self {
        // Another data directory may assign the same bucket id, but not with the same creation time.
        let bucket = format!("{:x}.{:x}", bucket.created_ms, bucket.id);
        Self { incarnation: timelines.own, bucket, write: write.get(), etag: etag.to_owned() }
    }

    /// Creates the mark of a write-through.
    #[must_use]
    pub fn of_write_through(bucket: &Bucket, timelines: &Timelines) -> Self {
        Self::new(bucket, timelines, BodyId(0), "")
    }

    /// Creates the mark of an object that is copied when its bucket moves to another origin: the mark of the
    /// write that made the object, with the ETag that clients have seen so far.
    #[must_use]
    pub fn of_moved_object(bucket: &Bucket, timelines: &Timelines, object: &ObjectVersion) -> Self {
        let ours = Self::of_write_through(bucket, timelines);
        let made = Self::of_object(object).filter(|mark| mark.is_of_bucket(&ours));
        let shown = unmarked(object).map_or_else(|| object.etag.clone(), |shown| shown.etag);
        Self { etag: shown, ..made.unwrap_or(ours) }
    }

    /// Returns the value in the user metadata.
    #[must_use]
    pub fn text(&self) -> String {
        let incarnation = self.incarnation.map(|of| format!("{INCARNATION_PREFIX}{of}.")).unwrap_or_default();
        format!("{incarnation}{}.{:x}.{}", self.bucket, self.write, self.etag)
    }

    /// Adds the mark to the headers of a request to the origin.
    pub fn put(&self, headers: &mut HeaderMap) {
        if let Ok(value) = HeaderValue::from_str(&self.text()) {
            headers.insert(WRITE_MARK_HEADER, value);
        }
    }

    /// Parses the mark of an origin's object.
    #[must_use]
    pub fn of_object(object: &ObjectVersion) -> Option<Self> {
        let text = &object.metadata.iter().find(|pair| pair.name == WRITE_MARK_NAME)?.value;
        let (incarnation, text) = match text.strip_prefix(INCARNATION_PREFIX) {
            Some(rest) => {
                let (incarnation, rest) = rest.split_once('.')?;
                (Some(incarnation.parse().ok()?), rest)
            }
            None => (None, text.as_str()),
        };
        let mut fields = text.splitn(4, '.');
        let (created, id, write) = (fields.next()?, fields.next()?, fields.next()?);
        let write = u64::from_str_radix(write, 16).ok()?;
        let etag = fields.next()?.to_owned();
        Some(Self { incarnation, bucket: format!("{created}.{id}"), write, etag })
    }

    /// True if both marks are of the same write, whatever ETag was returned. No two incarnations assign one
    /// body id to different writes, because a new incarnation skips ahead.
    #[must_use]
    pub fn is_of_write(&self, other: &Self) -> bool {
        self.is_of_bucket(other) && self.write == other.write
    }

    /// True if the same ETag was returned to the client.
    #[must_use]
    pub fn has_etag_of(&self, other: &Self) -> bool {
        self.etag == other.etag
    }

    /// True if the object was made by a write to the same bucket.
    #[must_use]
    pub fn is_of_bucket(&self, other: &Self) -> bool {
        self.bucket == other.bucket
    }
}

/// Returns an origin's object as clients see it: without its mark, and with the ETag returned to the writer.
/// `None` if it has no mark.
#[must_use]
pub fn unmarked(object: &ObjectVersion) -> Option<ObjectVersion> {
    let mark = WriteMark::of_object(object)?;
    let mut object = object.clone();
    object.metadata.retain(|pair| pair.name != WRITE_MARK_NAME);
    if !mark.etag.is_empty() {
        object.etag = mark.etag;
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::{
        ForeignObject, OriginUpload, PendingOriginUpload, Timelines, WRITE_MARK_NAME, WriteFacts, WriteMark,
        record_name, unmarked,
    };
    use mlgw_common::{BodyId, Incarnation, ObjectKey};
    use mlgw_formats::schema::{Bucket, ObjectVersion, Pair};

    #[test]
    fn facts_survive_a_round_trip_and_leave_other_headers_unchanged() {
        let upload = |number| Some(OriginUpload { id: "a:b=".into(), number });
        let foreign = |etag: &str, number| Some(ForeignObject { etag: Some(etag.to_owned()), number });
        let unnamed = Some(ForeignObject { etag: None, number: 1 });
        for (deleted, foreign, upload, number) in [
            (false, None, None, 7),
            (true, None, None, 7),
            (false, unnamed, None, 1),
            (true, foreign("e", u64::MAX), None, u64::MAX),
            (false, None, upload(2), 2),
            (false, foreign("e:f-2", 2), upload(2), 2),
        ] {
            let key = ObjectKey::new(":key ü").unwrap();
            let (knew, begins) = (None, None);
            let facts = WriteFacts {
                key: key.clone(),
                after: u64::MAX,
                is_delete: deleted,
                foreign,
                upload,
                known_etag: knew,
                pending_upload: begins,
            };
            assert_eq!(facts.number(7), number);
            let before = vec![Pair::new("content-type", "text/plain")];
            let mut headers = before.clone();
            facts.put(&mut headers);
            assert_eq!(WriteFacts::key_of(&headers), Some(key));
            assert_eq!((WriteFacts::take(&mut headers), headers), (Some(facts), before));
        }
        assert_eq!(WriteFacts::take(&mut vec![Pair::new("content-type", "x")]), None);
        for (knew, others, number) in
            [(Some("e".to_owned()), None, 7), (None, Some(vec![]), 3), (None, Some(vec!["a", "b:c"]), 3)]
        {
            let key = ObjectKey::new("k").unwrap();
            let others: Option<Vec<String>> = others.map(|ids| ids.into_iter().map(str::to_owned).collect());
            let begins = others.map(|others| PendingOriginUpload::beside(others, 3).unwrap());
            let facts = WriteFacts {
                key,
                after: 1,
                is_delete: false,
                foreign: None,
                upload: None,
                known_etag: knew,
                pending_upload: begins,
            };
            assert_eq!(facts.number(7), number);
            let mut headers = Vec::new();
            facts.put(&mut headers);
            assert_eq!(WriteFacts::take(&mut headers), Some(facts));
        }
        assert_eq!(PendingOriginUpload::beside(vec!["a\nb".into()], 1), None, "it would be read as two");
        for text in ["", "1", ":", "x:y", "1:"] {
            let mut headers =
                vec![Pair::new(":key", "k"), Pair::new(":after", "0"), Pair::new(":upload", text)];
            assert_eq!(WriteFacts::take(&mut headers), None, "{text}");
        }
    }

    #[test]
    fn a_mark_survives_a_round_trip_and_is_hidden() {
        let bucket = Bucket { id: 7, created_ms: 1_700_000_000_000, ..Bucket::default() };
        let none = Timelines::default();
        let named = Timelines { own: Some(Incarnation(0xfe)), ended: Vec::new() };
        for timelines in [&none, &named] {
            let mark = WriteMark::new(&bucket, timelines, BodyId(0xabc), "01.23-1");
            let metadata = vec![Pair::new(WRITE_MARK_NAME, mark.text())];
            assert_eq!(
                WriteMark::of_object(&ObjectVersion { metadata, ..ObjectVersion::default() }),
                Some(mark)
            );
        }
        let written = |timelines| WriteMark::new(&bucket, timelines, BodyId(0xabc), "e").text();
        assert_eq!(written(&none), "18bcfe56800.7.abc.e", "the format of earlier versions");
        assert_eq!(written(&named), "i00000000000000fe.18bcfe56800.7.abc.e");
        let mark = WriteMark::new(&bucket, &none, BodyId(0xabc), "0123-1");
        let metadata = vec![Pair::new("a", "b"), Pair::new(WRITE_MARK_NAME, mark.text())];
        let object = ObjectVersion { metadata, etag: "theirs".into(), ..ObjectVersion::default() };
        assert_eq!(WriteMark::of_object(&object), Some(mark.clone()));
        let shown = unmarked(&object).unwrap();
        assert_eq!((shown.etag.as_str(), shown.metadata), ("0123-1", vec![Pair::new("a", "b")]));
        let other = WriteMark::of_write_through(&Bucket { id: 8, ..bucket.clone() }, &none);
        assert!(
            !mark.is_of_bucket(&other) && mark.is_of_bucket(&WriteMark::of_write_through(&bucket, &named))
        );
        for text in ["", "1.2", "1.2.x.e", "1.2.3", "i1.2.3", "i1.2.3.4.e", "i00000000000000fe.2.3.4"] {
            let metadata = vec![Pair::new(WRITE_MARK_NAME, text)];
            assert_eq!(
                WriteMark::of_object(&ObjectVersion { metadata, ..ObjectVersion::default() }),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn a_write_is_recognised_if_made_before_this_history_left_that_of_its_incarnation() {
        let incarnation = |of| Some(Incarnation(of));
        let timelines =
            Timelines { own: incarnation(9), ended: vec![(Incarnation(5), 100), (Incarnation(7), 5000)] };
        for (of, write, made) in [
            (None, 0, true),
            (None, 1 << 40, true),
            (incarnation(9), 0, true),
            (incarnation(9), 1 << 40, true),
            (incarnation(5), 1, true),
            (incarnation(5), 99, true),
            (incarnation(5), 100, false),
            (incarnation(7), 100, true),
            (incarnation(7), 4999, true),
            (incarnation(7), 5000, false),
            // A write-through has no id, so one of an earlier incarnation is not recognized.
            (incarnation(7), 0, false),
            (incarnation(8), 1, false),
        ] {
            let mark = WriteMark {
                incarnation: of,
                ..WriteMark::new(&Bucket::default(), &timelines, BodyId(write), "e")
            };
            assert_eq!(timelines.has_made(&mark), made, "{of:?}, {write}");
        }
    }

    #[test]
    fn names_sort_as_ids() {
        assert!(
            record_name(BodyId(9)) < record_name(BodyId(10))
                && record_name(BodyId(u64::MAX)).as_str().len() == 16
        );
    }
}
