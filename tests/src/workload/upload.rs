//! Multipart uploads: some are completed, some aborted, some left open for the crash.

use super::{BUCKET, PART_BYTES, WorkloadWorker};
use crate::content::{IDENTITY_BYTES, TestContent};
use crate::history::{ExpectedBody, HistoryItem, ItemValue};
use crate::s3::{CallFailure, full_body};

const PART_NUMBER_MAX: u32 = 10_000;
/// A part of this length under the largest number is beyond an upload's first 64 MiB.
const DISTANT_PART_BYTES: usize = 7_000;

impl WorkloadWorker {
    pub(super) async fn upload(&mut self) -> Result<(), CallFailure> {
        let key = self.own_key();
        let id = self.client.create_upload(BUCKET, &key).await?;
        let item = HistoryItem::Upload { key: key.clone(), id: id.clone() };
        // The id is known only from the response, so the upload is promised as soon as it has a name.
        self.history.acknowledge(self.history.send(item.clone(), ItemValue::Present(None)));
        // Long enough to hold its id and length: `check` distinguishes completes of one key by their ETags.
        let piece = self.content();
        let mut pieces = vec![TestContent { length: piece.length.max(IDENTITY_BYTES), ..piece }];
        if self.rng.chance(1, self.plan.full_part_in) {
            pieces.insert(0, self.content_of(PART_BYTES));
        }
        // Part numbers have gaps, as clients may leave them.
        let mut numbered: Vec<(u32, TestContent)> = (1..).step_by(3).zip(pieces).collect();
        if let Some((number, last)) = numbered.last_mut().filter(|_| self.rng.chance(1, 2)) {
            // With this size and number the part is so far into its upload that it gets a segment of its own.
            *number = PART_NUMBER_MAX;
            last.length = last.length.max(DISTANT_PART_BYTES);
        }
        for (number, piece) in &numbered {
            self.part((&key, &id), *number, *piece).await?;
        }
        match self.rng.below(10) {
            0..=6 => self.complete(item, &numbered).await,
            7 => self.abort(item).await,
            _ => Ok(()),
        }
    }

    async fn part(
        &mut self,
        (key, id): (&str, &str),
        number: u32,
        content: TestContent,
    ) -> Result<(), CallFailure> {
        let stored = ExpectedBody::plain(content);
        let item = HistoryItem::Part { key: key.to_owned(), id: id.to_owned(), number };
        let act = self.history.send(item, ItemValue::Present(Some(stored.clone())));
        let etag = self.client.put_part(BUCKET, key, id, number, full_body(content.bytes())).await?;
        self.history.acknowledge(act);
        assert_eq!(etag, stored.etag, "a part's ETag is its MD5");
        Ok(())
    }

    async fn complete(
        &mut self,
        upload: HistoryItem,
        parts: &[(u32, TestContent)],
    ) -> Result<(), CallFailure> {
        let HistoryItem::Upload { key, id } = upload.clone() else { unreachable!("an upload") };
        let whole = ExpectedBody::of_parts(parts.iter().map(|(_, piece)| *piece).collect());
        let named: Vec<(u32, String)> = parts.iter().map(|(number, piece)| (*number, piece.etag())).collect();
        let value = ItemValue::Present(Some(whole.clone()));
        let acts = self.history.send_complete(upload, HistoryItem::Object(key.clone()), value);
        let etag = self.client.complete(BUCKET, &key, &id, &named).await?;
        acts.into_iter().for_each(|act| self.history.acknowledge(act));
        assert_eq!(etag, whole.etag, "the ETag of a completed upload is the MD5 of the parts' MD5s");
        Ok(())
    }

    async fn abort(&mut self, upload: HistoryItem) -> Result<(), CallFailure> {
        let HistoryItem::Upload { key, id } = upload.clone() else { unreachable!("an upload") };
        let act = self.history.send(upload, ItemValue::Absent);
        self.client.abort(BUCKET, &key, &id).await?;
        self.history.acknowledge(act);
        Ok(())
    }
}
