//! Records of writes that an origin does not have yet, and the marks on objects at an origin. Property:
//! what is put into headers or metadata is taken out unchanged, and no other header is touched.

use crate::input::Input;
use crate::write_back_record::{
    Facts, Foreign, MARK, MARK_HEADER, Mark, Timelines, UploadBegins, UploadThere, name_of, unmarked,
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
    let upload = (kind & 4 != 0 && !id.is_empty()).then_some(UploadThere { id, number: other });
    let facts = Facts {
        key: key.clone(),
        after,
        deleted: kind & 1 != 0,
        foreign: (kind & 2 != 0)
            .then(|| Foreign { etag: (kind & 32 != 0).then(|| format!("{other:x}:")), number: one }),
        upload,
        knew: (kind & 8 != 0).then(|| format!("{one:x}")),
        begins: (kind & 16 != 0).then(|| UploadBegins { others: vec![format!("{other:x}")], number: one }),
    };
    let mut headers = pairs(&mut input);
    headers.retain(|pair| !pair.name.starts_with(':'));
    let before = headers.clone();
    facts.put(&mut headers);
    assert_eq!(Facts::key_of(&headers), Some(key));
    assert_eq!((Facts::take(&mut headers), headers), (Some(facts), before));
    let name = name_of(BodyId(after));
    assert_eq!(u64::from_str_radix(name.as_str(), 16), Ok(after));
}

/// Reads arbitrary headers. Facts that are taken from them can be put into headers again.
fn taken(mut input: Input<'_>) {
    let mut headers = pairs(&mut input);
    let key = Facts::key_of(&headers);
    let theirs: Vec<Pair> = headers.iter().filter(|pair| !pair.name.starts_with(':')).cloned().collect();
    let facts = Facts::take(&mut headers);
    assert_eq!(headers, theirs);
    if let Some(facts) = facts {
        assert_eq!(key.as_ref(), Some(&facts.key));
        facts.put(&mut headers);
        assert_eq!((Facts::take(&mut headers), headers), (Some(facts), theirs));
    }
}

/// Reads a bucket and a write, then the ETag and metadata of an object.
fn marks(mut input: Input<'_>) {
    let (id, created_ms, write) =
        (number(&mut input), number(&mut input).cast_signed(), BodyId(number(&mut input)));
    let bucket = Bucket { id, created_ms, ..Bucket::default() };
    let (told, etag) = (input.text(), input.text());
    let object = ObjectVersion { etag, metadata: pairs(&mut input), ..ObjectVersion::default() };
    let shown = unmarked(&object);
    assert_eq!(shown.is_some(), Mark::of(&object).is_some());
    let timelines = match write.get() % 2 {
        0 => Timelines::none(),
        _ => Timelines::new(Incarnation(id), vec![(Incarnation(1), write.get())]),
    };
    let ours = Mark::new(&bucket, &timelines, write, &told);
    let moved = Mark::of_moved(&bucket, &timelines, &object);
    assert!(timelines.made(&ours));
    if let Some(shown) = &shown {
        assert!(shown.metadata.iter().all(|pair| pair.name != MARK) && unmarked(shown).is_none());
        assert!(Mark::of(&object).is_some_and(|mark| mark.is_of_bucket(&moved) == mark.is_of_write(&moved)));
    }
    let shown = shown.unwrap_or(object);
    for (mark, told) in [(&ours, &told), (&moved, &shown.etag)] {
        let mut carries = shown.clone();
        carries.metadata.retain(|pair| pair.name != MARK);
        let without = carries.metadata.clone();
        carries.metadata.push(Pair::new(MARK, mark.text()));
        "theirs".clone_into(&mut carries.etag);
        assert_eq!(Mark::of(&carries).as_ref(), Some(mark));
        assert!(mark.is_of_bucket(&Mark::of_through(&bucket, &timelines)), "{mark:?}");
        let shown = unmarked(&carries).expect("it is marked");
        assert_eq!(shown.etag, if told.is_empty() { "theirs" } else { told.as_str() });
        assert_eq!(shown.metadata, without);
        let mut headers = HeaderMap::new();
        mark.put(&mut headers);
        assert!(headers.get(MARK_HEADER).is_none_or(|value| value.as_bytes() == mark.text().as_bytes()));
    }
}
