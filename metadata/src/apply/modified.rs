//! Last-Modified of a version that replaces another one. It never falls, although the clocks of nodes differ.
//!
//! Each node sends the time of its own clock. A client that revalidates by If-Modified-Since compares whole
//! seconds, and keeps old bytes if the time of the new ones is not later. So a version that is older than the
//! one it replaces gets the next second.
//!
//! Two exceptions. Times that are less than a second apart may come from two writes in the same second, which
//! a client cannot distinguish on one node either: the earlier time becomes the later one. Otherwise a key
//! that many clients overwrite at once would run ahead of all clocks, a second with each write. And time
//! runs ahead by [`AHEAD_MAX_MS`] at most: then it stays, until the clocks have reached it.
//!
//! The rules are a part of the log: all members and all later versions must compute the same times.

use super::object_target::ObjectTarget;
use mlgw_formats::schema::ObjectVersion;

const SECOND_MS: i64 = 1000;

/// Longest time by which Last-Modified runs ahead of the clock of a node. A node whose clock is as wrong
/// refuses the signatures of clients.
const AHEAD_MAX_MS: i64 = 15 * 60 * SECOND_MS;

/// The Last-Modified of a version that replaces `current` and was sent with the time `sent_ms`.
pub(super) fn modified_ms(target: ObjectTarget<'_>, current: Option<&ObjectVersion>, sent_ms: i64) -> i64 {
    match current {
        Some(current) if target.grows_times => grown(current.modified_ms, sent_ms),
        Some(_) | None => sent_ms,
    }
}

fn grown(current_ms: i64, sent_ms: i64) -> i64 {
    let behind_ms = current_ms.saturating_sub(sent_ms);
    if (SECOND_MS..AHEAD_MAX_MS).contains(&behind_ms) {
        current_ms.div_euclid(SECOND_MS).saturating_add(1).saturating_mul(SECOND_MS)
    } else {
        current_ms.max(sent_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_MAX_MS, SECOND_MS, grown};
    use crate::apply::{apply, seq_of};
    use crate::catalogue::testing::{put, version};
    use crate::view::{MemoryRows, View};
    use mlgw_common::{BodyId, BucketId};
    use mlgw_formats::command::update_object::Update;
    use mlgw_formats::command::{
        Change, Command, CompleteUpload, CreateUpload, MirrorBucket, NamedPart, ObjectChange, ObjectCommand,
        PutPart, Replace, Reply, UpdateObject,
    };
    use mlgw_formats::schema::{ObjectVersion, PartRecord, Upload, decode, object};

    /// A current time in the middle of a second.
    const CURRENT: i64 = 100_300;

    #[test]
    fn a_later_or_equal_time_stays_as_it_was_sent() {
        for sent in [CURRENT, CURRENT + 1, CURRENT + 200, CURRENT + 10 * AHEAD_MAX_MS] {
            assert_eq!(grown(CURRENT, sent), sent);
        }
    }

    #[test]
    fn a_time_that_is_a_second_or_more_behind_becomes_the_next_second() {
        for behind in [SECOND_MS, 5 * SECOND_MS, AHEAD_MAX_MS - 1] {
            assert_eq!(grown(CURRENT, CURRENT - behind), 101_000, "{behind} ms behind");
        }
        assert_eq!(grown(100_000, 90_000), 101_000, "a whole second is followed by the next one");
        assert_eq!(grown(-300, -5_000), 0, "before 1970");
    }

    #[test]
    fn writes_of_the_same_second_and_hot_keys_do_not_run_ahead() {
        assert_eq!(grown(CURRENT, CURRENT - 1), CURRENT);
        assert_eq!(grown(CURRENT, CURRENT - SECOND_MS + 1), CURRENT);
        // One clock is 5 s behind the other one.
        let mut last = CURRENT;
        for write in 0..10_000 {
            last = grown(last, CURRENT - 5_000 + write % 2 * 5_000);
        }
        assert!(last <= CURRENT + AHEAD_MAX_MS + SECOND_MS, "{last}");
        assert_eq!(grown(CURRENT, CURRENT - AHEAD_MAX_MS), CURRENT, "it stays until the clocks reach it");
        assert_eq!(grown(i64::MAX, i64::MAX - 5_000), i64::MAX);
        assert_eq!(grown(i64::MAX, i64::MIN), i64::MAX);
    }

    /// A key, and the index of the last command.
    struct WrittenKey {
        rows: MemoryRows,
        index: u64,
    }

    impl WrittenKey {
        fn new() -> Self {
            let mut written = Self { rows: MemoryRows::default(), index: 0 };
            let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
            written.apply(Change::MirrorBucket(mirror));
            written
        }

        fn apply(&mut self, change: Change) -> Reply {
            self.index += 1;
            let mut view = View::new(&self.rows);
            let reply = apply(&mut view, &Command::from(change), seq_of(self.index, 0)).unwrap().unwrap();
            let (changes, _) = view.into_changes();
            self.rows.write(changes);
            reply
        }

        /// Applies a change; returns the time in its reply and the stored time.
        fn change(&mut self, change: ObjectChange, grows_times: bool) -> [i64; 2] {
            let (key, change) = ("k".to_owned(), Some(change));
            let command = ObjectCommand {
                bucket_id: 1,
                epoch: 1,
                key,
                now_ms: 1,
                change,
                grows_times,
                duty_term: None,
            };
            let reply = self.apply(Change::Object(command));
            let Reply::Written(written) = reply else { panic!("{reply:?}") };
            let stored: ObjectVersion = decode(&self.rows.0[&object::row(BucketId(1), b"k")]).unwrap();
            [written.modified_ms, stored.modified_ms]
        }

        fn put(&mut self, body: u64, modified_ms: i64, grows_times: bool) -> [i64; 2] {
            let version = ObjectVersion { modified_ms, ..version(BodyId(body), 1) };
            self.change(put(version), grows_times)
        }
    }

    #[test]
    fn the_time_of_a_put_grows_if_the_command_has_the_flag() {
        let mut key = WrittenKey::new();
        assert_eq!(key.put(1, CURRENT, true), [CURRENT; 2], "nothing is replaced");
        assert_eq!(key.put(2, 90_000, true), [101_000; 2]);
        assert_eq!(key.put(3, 102_500, true), [102_500; 2]);
        assert_eq!(key.put(4, 90_000, false), [90_000; 2], "of an earlier cluster version");
    }

    #[test]
    fn the_time_of_new_metadata_grows_and_an_equal_one_stays() {
        let mut key = WrittenKey::new();
        key.put(1, CURRENT, true);
        let replace = |modified_ms| {
            let update = Some(Update::Replace(Replace { modified_ms, ..Replace::default() }));
            ObjectChange::Update(UpdateObject { expected_body: 1, update, ..UpdateObject::default() })
        };
        assert_eq!(key.change(replace(CURRENT), true), [CURRENT; 2], "facts of a write keep its time");
        assert_eq!(key.change(replace(90_000), true), [101_000; 2]);
        assert_eq!(key.change(replace(90_000), false), [90_000; 2]);
    }

    #[test]
    fn the_time_of_a_completed_upload_grows() {
        let mut key = WrittenKey::new();
        key.put(1, CURRENT, true);
        let on = |change| {
            let (key, change) = ("k".to_owned(), Some(change));
            Change::Object(ObjectCommand { bucket_id: 1, epoch: 1, key, change, ..ObjectCommand::default() })
        };
        let upload = Upload { body_id: 2, key: "k".into(), ..Upload::default() };
        key.apply(on(ObjectChange::CreateUpload(CreateUpload { upload })));
        let extents = version(BodyId(2), 7).extents;
        let part = PartRecord { size: 7, extents, ..PartRecord::default() };
        let reply = key.apply(on(ObjectChange::PutPart(PutPart { body_id: 2, number: 1, part })));
        let Reply::Part { seq } = reply else { panic!("{reply:?}") };
        let complete = CompleteUpload {
            body_id: 2,
            parts: vec![NamedPart { number: 1, seq }],
            modified_ms: 90_000,
            ..CompleteUpload::default()
        };
        assert_eq!(key.change(ObjectChange::CompleteUpload(complete), true), [101_000; 2]);
    }
}
