//! Sends a multipart object, with the part boundaries that its client chose.
//!
//! Parts are sent in parallel, in an upload at the origin whose completion carries the precondition of the
//! write. The id of the upload is recorded in the write's record before the first part is sent: after a
//! failure or a crash, only missing parts are sent.
//!
//! A power failure between the start of the upload and the record of its id leaves an upload without parts at
//! the origin; it is found and aborted ([`orphans`](super::orphans)).

use super::WriteBackSender;
use super::persist::PersistError;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use mlgw_cache::writeback::record::{OriginUpload, WriteMark};
use mlgw_cache::writeback::{DirtyWrite, WriteBackQueue};
use mlgw_common::PartNumber;
use mlgw_common::hex;
use mlgw_formats::checksum;
use mlgw_formats::schema::{Checksum, ObjectVersion, Pair, PartRecord};
use mlgw_objects::reader::part_ranges;
use mlgw_remote::origin::{OriginError, PartLine, complete_document};
use mlgw_wire::checksums;
use mlgw_wire::origin_headers::OriginHeaders;
use std::collections::HashMap;
use std::ops::Range;

/// Parts of one write sent in parallel. Each holds at most two pieces of 1 MiB.
const SENT_AT_ONCE: usize = 4;
/// Parts on a page of the origin's list of parts.
const PAGE_PARTS: usize = 1000;

/// A part, and the range of its bytes in the object.
struct WriteBackPart {
    number: PartNumber,
    part: PartRecord,
    range: Range<u64>,
}

/// Number of a part and its ETag at the origin, for the completion of the upload.
type SentPart = (PartNumber, String);

impl WriteBackSender {
    /// Sends a multipart write; the origin has all of it when this returns.
    pub(super) async fn send_parts(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        version: &ObjectVersion,
        mark: &WriteMark,
        mut condition: OriginHeaders,
    ) -> Result<(), PersistError> {
        let pieces = self.pieces(queue, write, version)?;
        let known = write.origin_upload();
        let there = match &known {
            Some(id) => self.parts_at_origin(queue, write, id).await?,
            None => None,
        };
        let (id, there) = match (known, there) {
            (Some(id), Some(there)) => (id, there),
            _ => (self.begin_upload(queue, write, version, mark, &pieces).await?, HashMap::new()),
        };
        let (mut sent, mut going) = (Vec::with_capacity(pieces.len()), FuturesOrdered::new());
        for piece in &pieces {
            if going.len() == SENT_AT_ONCE {
                sent.extend(going.next().await.transpose()?);
            }
            let is_there =
                there.get(&u32::from(piece.number.get())).filter(|line| is_same(line, &piece.part));
            going.push_back(self.send_part(queue, write, version, &id, piece, is_there));
        }
        while let Some(last) = going.next().await {
            sent.push(last?);
        }
        let is_sent = |(piece, (number, _)): (&WriteBackPart, &SentPart)| piece.number == *number;
        assert!(
            sent.len() == pieces.len() && pieces.iter().zip(&sent).all(is_sent),
            "an upload completes with all of its parts in their order"
        );
        // An MD5 would cover the bytes of the request, which is an XML document here.
        condition.add_object_checksums(version);
        let parts = pieces.iter().zip(&sent);
        let parts =
            parts.map(|(piece, (number, etag))| (number.get().into(), etag.as_str(), elements(&piece.part)));
        queue
            .bucket_at_origin()
            .complete(&write.facts.key, &id, &condition, complete_document(parts))
            .await?;
        Ok(())
    }

    fn pieces(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        version: &ObjectVersion,
    ) -> Result<Vec<WriteBackPart>, PersistError> {
        let here = |error: &dyn std::fmt::Display| PersistError::Here(error.to_string());
        let bucket = queue.bucket().bucket_id();
        let pin = self.catalogue.pin(version.body());
        let ranges = part_ranges(&self.catalogue, bucket, &write.name, version, &pin);
        let mut pieces = Vec::new();
        let mut first = 0;
        for range in ranges.map_err(|error| here(&error))? {
            let gone = || here(&"a part is missing");
            let number = PartNumber::new(range.number).ok_or_else(gone)?;
            let part = self.catalogue.part(bucket, &write.name, version.body(), number);
            let part = part.map_err(|error| here(&error))?.ok_or_else(gone)?;
            pieces.push(WriteBackPart { number, part, range: first..first + range.bytes });
            first += range.bytes;
        }
        Ok(pieces)
    }

    /// Returns the parts of an upload at the origin, by number; `None` if the upload no longer exists.
    async fn parts_at_origin(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        id: &str,
    ) -> Result<Option<HashMap<u32, PartLine>>, OriginError> {
        let (mut parts, mut after) = (HashMap::new(), 0);
        loop {
            let page =
                match queue.bucket_at_origin().list_parts(&write.facts.key, id, after, PAGE_PARTS).await {
                    Ok(page) => page,
                    Err(OriginError::Refused { status: 404, .. }) => return Ok(None),
                    Err(error) => return Err(error),
                };
            parts.extend(page.parts.into_iter().map(|part| (part.number, part)));
            match page.next.filter(|next| *next > after) {
                Some(next) => after = next,
                None => return Ok(Some(parts)),
            }
        }
    }

    /// Starts an upload at the origin and records its id.
    async fn begin_upload(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        version: &ObjectVersion,
        mark: &WriteMark,
        pieces: &[WriteBackPart],
    ) -> Result<String, PersistError> {
        let mut headers = OriginHeaders::default();
        headers.describe(version);
        mark.put(&mut headers);
        // Algorithm and type of the whole object's checksum, if all parts have checksums.
        let of_whole = version.checksums.first();
        if let Some(checksum) =
            of_whole.filter(|_| pieces.iter().all(|piece| !piece.part.checksums.is_empty()))
        {
            headers.announce_checksum(checksum);
        }
        self.record_intent(queue, write).await?;
        let id = queue.bucket_at_origin().create_upload(&write.facts.key, &headers).await?.id;
        let upload_there = OriginUpload { id: id.clone(), number: write.seq };
        let recording = self
            .writeback
            .update_facts(queue, write, |facts| {
                (facts.upload, facts.pending_upload) = (Some(upload_there), None)
            })
            .await;
        recording.map_err(|error| PersistError::Here(error.to_string()))?;
        write.set_origin_upload(Some(id.clone()));
        write.set_pending_upload(None);
        Ok(id)
    }

    async fn send_part(
        &self,
        queue: &WriteBackQueue,
        write: &DirtyWrite,
        version: &ObjectVersion,
        id: &str,
        piece: &WriteBackPart,
        is_there: Option<&PartLine>,
    ) -> Result<SentPart, PersistError> {
        if let Some(line) = is_there {
            return Ok((piece.number, line.etag.clone()));
        }
        let mut headers = OriginHeaders::default();
        piece.part.checksums.iter().for_each(|checksum| headers.add_checksum(checksum));
        if let Some(md5) = hex::decode::<16>(piece.part.etag.as_bytes()) {
            headers.add_md5(&md5);
        }
        let content = self.content(queue, write, version, piece.range.clone()).await?;
        queue.limits().budget.wait_for_request(piece.part.size).await;
        let number = u32::from(piece.number.get());
        let written =
            queue.bucket_at_origin().put_part(&write.facts.key, id, number, &headers, content).await?;
        let etag = written.etag();
        Ok((
            piece.number,
            etag.ok_or_else(|| {
                OriginError::InvalidResponse("the response for a part has no ETag".to_owned())
            })?,
        ))
    }

    /// Aborts the upload of a write that is no longer sent. If the abort fails, the upload remains at the
    /// origin.
    pub(super) async fn give_up_upload(&self, queue: &WriteBackQueue, write: &DirtyWrite) {
        self.abort_orphans(queue, write).await;
        let Some(id) = write.origin_upload() else { return };
        write.set_origin_upload(None);
        match queue.bucket_at_origin().abort(&write.facts.key, &id).await {
            Ok(()) | Err(OriginError::Refused { status: 404, .. }) => {}
            Err(error) => {
                let (key, upstream) = (&write.facts.key, queue.bucket_at_origin().upstream());
                tracing::warn!(
                    %key, upstream, upload = id, %error,
                    "cannot abort an upload; it remains at the origin"
                );
            }
        }
    }
}

/// Returns true if the origin's part is byte-identical to the local part, whose ETag must be an MD5.
fn is_same(there: &PartLine, here: &PartRecord) -> bool {
    let is_md5 = hex::decode::<16>(here.etag.as_bytes()).is_some();
    is_md5 && there.etag == here.etag && there.size == here.size
}

/// Returns the checksum elements of a part for the completion of its upload.
fn elements(part: &PartRecord) -> Vec<Pair> {
    let element = |checksum| {
        let name = checksums::xml_element(checksum::algorithm_from_stored(Checksum::algorithm(checksum)));
        Pair::new(name, checksums::wire_value(checksum, 0))
    };
    part.checksums.iter().map(element).collect()
}
