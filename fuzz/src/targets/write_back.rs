//! Records of writes that an origin does not have yet, and the marks on objects at an origin. Property:
//! what is put into headers or metadata is taken out unchanged, and no other header is touched.

use crate::input::Input;
use crate::write_back_record::{
    ForeignObject, OriginUpload, PendingOriginUpload, Timelines, WRITE_MARK_HEADER, WRITE_MARK_NAME,
    WriteFacts, WriteMark, record_name, unmarked,
};
use http::HeaderMap;
use mlgw_common::{BodyId, Incarnation, ObjectKey};
use mlgw_formats::schema::{Bucket, ObjectVersion, Pair};

/// The first byte selects the decoder.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 3 {
        0 => facts(input),
        1 => taken(input),
        _ => marks(input),
    }
}

fn number(input: &mut Input<'_>) -> u64 {
    (0..8).fold(0, |number, _| number << 8 | u64::from(input.byte()))
}

/// Reads lines `name=value`.
fn pairs(input: &mut Input<'_>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    while !input.0.is_empty() {
        let line = input.text();
        let (name, value) = line.split_once('=').unwrap_or((&line, ""));
        pairs.push(Pair::new(name, value));
    }
    pairs
}

/// Reads facts, then headers that are not facts.
fn facts(mut input: Input<'_>) {
    let (kind, after, one, other) =
        (input.byte(), number(&mut input), number(&mut input), number(&mut input));
    let Ok(key) = ObjectKey::new(&input.text()) else { return };
    let id = input.text();
    // An upload without an id is never recorded.
    let upload = (kind & 4 != 0 && !id.is_empty()).then_some(OriginUpload { id, number: other });
    let facts = WriteFacts {
        key: key.clone(),
        after,
        is_delete: kind & 1 != 0,
        foreign: (kind & 2 != 0)
            .then(|| ForeignObject { etag: (kind & 32 != 0).then(|| format!("{other:x}:")), number: one }),
        upload,
        known_etag: (kind & 8 != 0).then(|| format!("{one:x}")),
        pending_upload: (kind & 16 != 0)
            .then(|| PendingOriginUpload { others: vec![format!("{other:x}")], number: one }),
    };
    let mut headers = pairs(&mut input);
    headers.retain(|pair| !pair.name.starts_with(':'));
    let before = headers.clone();
    facts.put(&mut headers);
    assert_eq!(WriteFacts::key_of(&headers), Some(key));
    assert_eq!((WriteFacts::take(&mut headers), headers), (Some(facts), before));
    let name = record_name(BodyId(after));
    assert_eq!(u64::from_str_radix(name.as_str(), 16), Ok(after));
}

/// Reads arbitrary headers. Facts that are taken from them can be put into headers again.
fn taken(mut input: Input<'_>) {
    let mut headers = pairs(&mut input);
    let key = WriteFacts::key_of(&headers);
    let theirs: Vec<Pair> = headers.iter().filter(|pair| !pair.name.starts_with(':')).cloned().collect();
    let facts = WriteFacts::take(&mut headers);
    assert_eq!(headers, theirs);
    if let Some(facts) = facts {
        assert_eq!(key.as_ref(), Some(&facts.key));
        facts.put(&mut headers);
        assert_eq!((WriteFacts::take(&mut headers), headers), (Some(facts), theirs));
    }
}

/// Reads a bucket and a write, then the ETag and metadata of an object.
fn marks(mut input: Input<'_>) {
    let (id, created_ms, write) =
        (number(&mut input), number(&mut input).cast_signed(), BodyId(number(&mut input)));
    let bucket = Bucket { id, created_ms, ..Bucket::default() };
    let (etag_shown, etag) = (input.text(), input.text());
    let object = ObjectVersion { etag, metadata: pairs(&mut input), ..ObjectVersion::default() };
    let shown = unmarked(&object);
    assert_eq!(shown.is_some(), WriteMark::of_object(&object).is_some());
    let timelines = match write.get() % 2 {
        0 => Timelines::none(),
        _ => Timelines::new(Incarnation(id), vec![(Incarnation(1), write.get())]),
    };
    let ours = WriteMark::new(&bucket, &timelines, write, &etag_shown);
    let moved = WriteMark::of_moved_object(&bucket, &timelines, &object);
    assert!(timelines.has_made(&ours));
    if let Some(shown) = &shown {
        assert!(shown.metadata.iter().all(|pair| pair.name != WRITE_MARK_NAME) && unmarked(shown).is_none());
        assert!(
            WriteMark::of_object(&object)
                .is_some_and(|mark| mark.is_of_bucket(&moved) == mark.is_of_write(&moved))
        );
    }
    let shown = shown.unwrap_or(object);
    for (mark, etag_shown) in [(&ours, &etag_shown), (&moved, &shown.etag)] {
        let mut carries = shown.clone();
        carries.metadata.retain(|pair| pair.name != WRITE_MARK_NAME);
        let without = carries.metadata.clone();
        carries.metadata.push(Pair::new(WRITE_MARK_NAME, mark.text()));
        "theirs".clone_into(&mut carries.etag);
        assert_eq!(WriteMark::of_object(&carries).as_ref(), Some(mark));
        assert!(mark.is_of_bucket(&WriteMark::of_write_through(&bucket, &timelines)), "{mark:?}");
        let shown = unmarked(&carries).expect("it is marked");
        assert_eq!(shown.etag, if etag_shown.is_empty() { "theirs" } else { etag_shown.as_str() });
        assert_eq!(shown.metadata, without);
        let mut headers = HeaderMap::new();
        mark.put(&mut headers);
        assert!(
            headers.get(WRITE_MARK_HEADER).is_none_or(|value| value.as_bytes() == mark.text().as_bytes())
        );
    }
}
