//! Sends a write that came in several parts, with the boundaries that its client chose.
//!
//! They go in parallel, by an upload at the origin that is completed on the condition by which the write may
//! be sent. The id of that upload is noted in the write's record before the first of them goes: after a
//! failure, or a crash, only those are sent that are not there.
//!
//! Power failure between the upload's beginning and the note leaves an upload without parts at the origin;
//! it is found and aborted ([`orphans`](super::orphans)).

use super::Inner;
use super::persist::{Trouble, prove};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_cache::writeback::record::{Mark, UploadThere};
use mlgw_cache::writeback::{Queue, Write};
use mlgw_common::PartNumber;
use mlgw_common::hex;
use mlgw_formats::checksum;
use mlgw_formats::schema::{Checksum, ObjectVersion, Pair, Part};
use mlgw_objects::reader::part_ranges;
use mlgw_remote::origin::{OriginError, PartLine, complete_document};
use mlgw_wire::checksums;
use mlgw_wire::origin_headers::describe;
use mlgw_wire::values::header_value;
use std::collections::HashMap;
use std::ops::Range;

/// Parts of one write that go at once. Each holds at most two pieces of 1 MiB.
const SENT_AT_ONCE: usize = 4;
/// Parts of a page of those that are there.
const PAGE_PARTS: usize = 1000;

/// A part, and where its bytes are in the object.
struct Piece {
    number: PartNumber,
    part: Part,
    range: Range<u64>,
}

/// What the document that completes an upload says of a part: its number, and its ETag there.
type Sent = (PartNumber, String);

impl Inner {
    /// Sends a write that came in several parts; the origin has all of it when this returns.
    pub(super) async fn send_parts(
        &self,
        queue: &Queue,
        write: &Write,
        version: &ObjectVersion,
        mark: &Mark,
        mut condition: HeaderMap,
    ) -> Result<(), Trouble> {
        let pieces = self.pieces(queue, write, version)?;
        let known = write.upload_there();
        let there = match &known {
            Some(id) => self.parts_there(queue, write, id).await?,
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
        prove(version, &mut condition);
        // It is of the bytes that are sent, which are a document here.
        condition.remove("content-md5");
        let parts = pieces.iter().zip(&sent);
        let parts =
            parts.map(|(piece, (number, etag))| (number.get().into(), etag.as_str(), elements(&piece.part)));
        queue.bound().complete(&write.facts.key, &id, &condition, complete_document(parts)).await?;
        Ok(())
    }

    fn pieces(&self, queue: &Queue, write: &Write, version: &ObjectVersion) -> Result<Vec<Piece>, Trouble> {
        let here = |error: &dyn std::fmt::Display| Trouble::Here(error.to_string());
        let bucket = queue.bucket().bucket_id();
        let ranges = part_ranges(&self.catalogue, bucket, &write.name, version);
        let mut pieces = Vec::new();
        let mut first = 0;
        for range in ranges.map_err(|error| here(&error))? {
            let gone = || here(&"one of its parts is gone");
            let number = PartNumber::new(range.number).ok_or_else(gone)?;
            let part = self.catalogue.part(bucket, &write.name, version.body(), number);
            let part = part.map_err(|error| here(&error))?.ok_or_else(gone)?;
            pieces.push(Piece { number, part, range: first..first + range.bytes });
            first += range.bytes;
        }
        Ok(pieces)
    }

    /// The parts of an upload at the origin, by number; nothing when there is no such upload any more.
    async fn parts_there(
        &self,
        queue: &Queue,
        write: &Write,
        id: &str,
    ) -> Result<Option<HashMap<u32, PartLine>>, OriginError> {
        let (mut parts, mut after) = (HashMap::new(), 0);
        loop {
            let page = match queue.bound().list_parts(&write.facts.key, id, after, PAGE_PARTS).await {
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

    /// Begins an upload at the origin and notes that.
    async fn begin_upload(
        &self,
        queue: &Queue,
        write: &Write,
        version: &ObjectVersion,
        mark: &Mark,
        pieces: &[Piece],
    ) -> Result<String, Trouble> {
        let mut headers = HeaderMap::new();
        describe(version, &mut headers);
        mark.put(&mut headers);
        // Of the whole where it has one; else as its parts have it.
        let of_whole = version.checksums.first();
        if let Some(checksum) =
            of_whole.filter(|_| pieces.iter().all(|piece| !piece.part.checksums.is_empty()))
        {
            let algorithm = checksum::algorithm(checksum.algorithm());
            let kind = checksums::kind_name(checksum.kind());
            headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
            headers.insert("x-amz-checksum-type", HeaderValue::from_static(kind));
        }
        self.note_beginning(queue, write).await?;
        let id = queue.bound().create_upload(&write.facts.key, &headers).await?.id;
        let noted = UploadThere { id: id.clone(), number: write.seq };
        let noted = self
            .writeback
            .note(queue, write, |facts| (facts.upload, facts.begins) = (Some(noted), None))
            .await;
        noted.map_err(|error| Trouble::Here(error.to_string()))?;
        write.set_upload_there(Some(id.clone()));
        write.set_upload_begins(None);
        Ok(id)
    }

    async fn send_part(
        &self,
        queue: &Queue,
        write: &Write,
        version: &ObjectVersion,
        id: &str,
        piece: &Piece,
        is_there: Option<&PartLine>,
    ) -> Result<Sent, Trouble> {
        if let Some(line) = is_there {
            return Ok((piece.number, line.etag.clone()));
        }
        let mut headers = HeaderMap::new();
        for checksum in &piece.part.checksums {
            let name = HeaderName::from_static(checksum::algorithm(checksum.algorithm()).header());
            headers.insert(name, header_value(&checksums::text(checksum, 0)));
        }
        if let Some(md5) = hex::decode::<16>(piece.part.etag.as_bytes()) {
            headers.insert("content-md5", header_value(&BASE64.encode(md5)));
        }
        let content = self.content(queue, write, version, piece.range.clone()).await?;
        queue.way().budget.spend(piece.part.size).await;
        let number = u32::from(piece.number.get());
        let written = queue.bound().put_part(&write.facts.key, id, number, &headers, content).await?;
        let etag = written.etag();
        Ok((piece.number, etag.ok_or_else(|| OriginError::Nonsense("a part without an ETag".to_owned()))?))
    }

    /// Ends the upload of a write that is not sent any more. One that cannot be ended is left to the origin.
    pub(super) async fn give_up_upload(&self, queue: &Queue, write: &Write) {
        self.end_orphans(queue, write).await;
        let Some(id) = write.upload_there() else { return };
        write.set_upload_there(None);
        match queue.bound().abort(&write.facts.key, &id).await {
            Ok(()) | Err(OriginError::Refused { status: 404, .. }) => {}
            Err(error) => {
                let (key, upstream) = (&write.facts.key, queue.bound().upstream());
                tracing::warn!(%key, upstream, upload = id, %error, "an upload stays at its origin");
            }
        }
    }
}

/// Whether a part that is there is the part that is here, byte by byte: its ETag is an MD5.
fn is_same(there: &PartLine, here: &Part) -> bool {
    let is_md5 = hex::decode::<16>(here.etag.as_bytes()).is_some();
    is_md5 && there.etag == here.etag && there.size == here.size
}

/// What a part of an upload that is completed says of its checksums.
fn elements(part: &Part) -> Vec<Pair> {
    let element = |checksum| {
        let name = checksums::element(checksum::algorithm(Checksum::algorithm(checksum)));
        Pair::new(name, checksums::text(checksum, 0))
    };
    part.checksums.iter().map(element).collect()
}
