//! All concurrent activity of the model, one action at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::APPEND_RETRIES_MAX;
use mlgw_formats::command::{
    AbortUpload, Change, Command, CompleteUpload, Conditions, CreateSegment, CreateUpload, DeleteObject,
    NamedPart, ObjectChange, ObjectCommand, PutObject, PutPart, Reject, ReleaseBody, Reply, SealSegment,
};
use mlgw_formats::schema::{Extent, ExtentPage, ObjectVersion, PartRecord, Upload};

use super::catalogue::Catalogue;
use super::disk::{Chunk, Disk, File, HEAD, HEADER};
use super::driver::Driver;
use crate::hot::holds::{SegmentHold, SegmentHolds};
use crate::hot::pins::{SegmentPin, SegmentPins};

/// Protections of the model; a test disables one and expects a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Safeguards {
    pub(super) in_flight: bool,
    pub(super) fence: bool,
    pub(super) pins: bool,
    pub(super) second_lookup: bool,
    pub(super) sync_before_unlink: bool,
}

impl Safeguards {
    pub(super) const ALL: Self =
        Self { in_flight: true, fence: true, pins: true, second_lookup: true, sync_before_unlink: true };
}

/// Counts of rare events, to check schedule coverage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScheduleStats {
    pub(super) released: u64,
    pub(super) moved: u64,
    pub(super) refused: u64,
    pub(super) second_lookups: u64,
    pub(super) crashes: u64,
}

impl std::ops::AddAssign for ScheduleStats {
    fn add_assign(&mut self, other: Self) {
        self.released += other.released;
        self.moved += other.moved;
        self.refused += other.refused;
        self.second_lookups += other.second_lookups;
        self.crashes += other.crashes;
    }
}

/// Description of a broken invariant.
pub(super) type BrokenInvariant = String;

/// A small generator, so that a seed always gives the same schedule (splitmix64, Steele et al. 2014).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % sides.max(1) as u64) as usize
    }
}

const KEYS: [&str; 3] = ["a", "b", "c"];
const MIB: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 4 * MIB;

/// With durability `os`: actions during which write-back may happen at random.
const OS_SYNCED_ACTIONS: usize = 60;
/// With durability `os`: no power loss before this many actions.
const OS_SAFE_ACTIONS: usize = 100;

/// Receiver of the result of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultReceiver {
    Nobody,
    Request(u64),
    Driver,
}

/// A request that has appended its bytes.
struct Request {
    id: u64,
    key: String,
    body: u64,
    part: u32,
    extents: Vec<Extent>,
    holds: Vec<SegmentHold>,
    sent: bool,
    retries: usize,
}

/// A reader of a body from beginning to end.
struct Reader {
    key: String,
    body: u64,
    size: u64,
    inline: Vec<Extent>,
    at: u64,
    pin: Option<SegmentPin>,
    /// Destination key, if the read is part of a copy.
    to: Option<String>,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) safeguards: Safeguards,
    /// True with durability `os`: no request waits for a sync.
    pub(super) os: bool,
    pub(super) catalogue: Catalogue,
    pub(super) disk: Disk,
    pub(super) holds: Arc<SegmentHolds>,
    pub(super) pins: Arc<SegmentPins>,
    /// The open segments of requests and of moved chunks.
    pub(super) open: [Option<(u64, SegmentHold)>; 2],
    pub(super) in_transit: Vec<(Command, ResultReceiver)>,
    /// Receivers of pending results by log index, and results that are to be delivered.
    pub(super) waiting: HashMap<usize, ResultReceiver>,
    pub(super) answers: Vec<(ResultReceiver, Result<Reply, Reject>)>,
    requests: Vec<Request>,
    readers: Vec<Reader>,
    pub(super) driver: Driver,
    /// Chunks that had a copy on stable media, named by a synced log entry.
    pub(super) durable: HashSet<Chunk>,
    pub(super) ended: bool,
    /// Statistics, to check that the schedules are useful.
    pub(super) seen: ScheduleStats,
    next_body: u64,
    next_request: u64,
    trace: Vec<&'static str>,
}

impl World {
    pub(super) fn new(seed: u64, rules: Safeguards) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x2545_F491_4F6C_DD1D));
        let os = dice.roll(5) < 2;
        Self {
            dice,
            safeguards: rules,
            os,
            catalogue: Catalogue::new(),
            disk: Disk::default(),
            holds: Arc::default(),
            pins: Arc::default(),
            open: [None, None],
            in_transit: Vec::new(),
            waiting: HashMap::new(),
            answers: Vec::new(),
            requests: Vec::new(),
            readers: Vec::new(),
            driver: Driver::default(),
            durable: HashSet::new(),
            ended: false,
            seen: ScheduleStats::default(),
            next_body: 0,
            next_request: 0,
            trace: Vec::new(),
        }
    }

    /// Names of the executed actions, in order.
    pub(super) fn trace(&self) -> Vec<&'static str> {
        self.trace.clone()
    }

    pub(super) fn run(&mut self, actions: usize) -> Result<(), BrokenInvariant> {
        for _ in 0..actions {
            self.act()?;
            if self.ended {
                return Ok(());
            }
        }
        self.quiesce()
    }

    fn act(&mut self) -> Result<(), BrokenInvariant> {
        let (name, done) = match self.dice.roll(100) {
            0..=13 => ("put", self.begin_put(None)),
            14..=16 => ("part", self.begin_part()),
            17..=18 => ("upload", self.upload_step()),
            19..=22 => ("delete", self.delete()),
            23..=32 => ("send", self.send()),
            33..=34 => ("vanish", self.vanish()),
            35..=44 => ("deliver", self.deliver()),
            45..=55 => ("apply", self.apply()),
            56..=57 => ("sync", self.sync()),
            58 => ("flush", self.flush()),
            59..=62 => ("roll", self.roll(0)),
            63..=66 => ("reader", self.begin_read()),
            67..=69 => ("read", self.read()),
            70 => ("release", self.release()),
            71..=97 => ("compact", self.compact()),
            _ if self.os && self.trace.len() < OS_SAFE_ACTIONS => ("nothing", Ok(())),
            _ => ("crash", self.crash()),
        };
        self.trace.push(name);
        done?;
        self.answer_all()
    }

    fn some_key(&mut self) -> String {
        KEYS[self.dice.roll(KEYS.len())].to_owned()
    }

    fn object(key: &str, change: ObjectChange) -> Change {
        let key = key.to_owned();
        let change = Some(change);
        Change::Object(ObjectCommand {
            bucket_id: 1,
            epoch: 1,
            key,
            now_ms: 1,
            change,
            ..ObjectCommand::default()
        })
    }

    // Appending.

    /// Appends a chunk; writer 1 appends the moved chunks.
    pub(super) fn append(&mut self, writer: usize, chunk: Chunk, bytes: u64) -> (Extent, SegmentHold) {
        let full =
            |segment: u64, disk: &Disk| disk.files.get(&segment).is_some_and(|f| f.bytes() >= SEGMENT_BYTES);
        let done =
            self.open[writer].as_ref().is_some_and(|(id, hold)| full(*id, &self.disk) || hold.is_given_up());
        if done {
            self.seal(writer);
        }
        let (segment, hold) = match &self.open[writer] {
            Some((segment, hold)) => (*segment, hold.clone()),
            None => self.make_segment(writer),
        };
        // Moved chunks are synced with every durability, since they were durable before.
        let synced = !self.os || writer == 1;
        // A removed file that is still open accepts writes, which are lost.
        let offset = self.disk.append(segment, chunk, bytes, synced).unwrap_or(HEADER);
        let extent = Extent {
            segment,
            offset,
            head_bytes: HEAD as u32,
            stored_bytes: bytes,
            logical_bytes: bytes,
            ..Extent::default()
        };
        (extent, hold)
    }

    fn make_segment(&mut self, writer: usize) -> (u64, SegmentHold) {
        let create = CreateSegment {
            class: 0,
            node: 1,
            location: "d".into(),
            created_ms: 0,
            stamp: 0,
            ..CreateSegment::default()
        };
        let Ok(Reply::Segment(made)) = self.commit(Change::CreateSegment(create)) else {
            panic!("a segment is made")
        };
        self.disk.files.insert(made.id, File::default());
        let hold = self.holds.begin(SegmentId(made.id));
        self.open[writer] = Some((made.id, hold.clone()));
        (made.id, hold)
    }

    /// Commits a command immediately. Earlier entries of the log are applied first; their results are
    /// delivered at the end of this action.
    pub(super) fn commit(&mut self, change: Change) -> Result<Reply, Reject> {
        while self.catalogue.applied < self.catalogue.log.len() {
            self.apply_entry();
        }
        self.catalogue.commit(change, !self.os)
    }

    pub(super) fn seal(&mut self, writer: usize) {
        let Some((segment, _hold)) = self.open[writer].take() else { return };
        let length = self.disk.files.get(&segment).map_or(HEADER, File::bytes);
        let seal = SealSegment { segment, length, ..SealSegment::default() };
        self.in_transit.push((Command::from(Change::SealSegment(seal)), ResultReceiver::Nobody));
    }

    pub(super) fn roll(&mut self, writer: usize) -> Result<(), BrokenInvariant> {
        self.seal(writer);
        Ok(())
    }

    // Requests.

    fn begin_put(&mut self, key: Option<String>) -> Result<(), BrokenInvariant> {
        let key = key.unwrap_or_else(|| self.some_key());
        self.next_body += 1;
        let count = [1, 1, 2, 3, 6][self.dice.roll(5)];
        self.begin(key, self.next_body, 0, count, MIB);
        Ok(())
    }

    fn begin(&mut self, key: String, body: u64, part: u32, count: u64, bytes: u64) {
        self.next_request += 1;
        let id = self.next_request;
        let writing = if part > 0 { id } else { 0 };
        let (mut extents, mut holds) = (Vec::new(), Vec::new());
        for at in 0..count {
            let (extent, hold) = self.append(0, (body, part, writing, at * bytes), bytes);
            extents.push(extent);
            holds.push(hold);
        }
        self.requests.push(Request { id, key, body, part, extents, holds, sent: false, retries: 0 });
    }

    fn begin_part(&mut self) -> Result<(), BrokenInvariant> {
        let Some((key, body)) = self.some_upload() else { return Ok(()) };
        let part = 1 + self.dice.roll(2) as u32;
        let (count, bytes) = if self.dice.roll(4) == 0 { (9, MIB) } else { (1, 5 * MIB) };
        self.begin(key, body, part, count, bytes);
        Ok(())
    }

    fn some_upload(&mut self) -> Option<(String, u64)> {
        let uploads = self.catalogue.uploads();
        let at = self.dice.roll(uploads.len());
        uploads.into_iter().nth(at)
    }

    fn upload_step(&mut self) -> Result<(), BrokenInvariant> {
        let Some((key, body)) = self.some_upload().filter(|_| self.dice.roll(3) > 0) else {
            self.next_body += 1;
            let (key, body_id) = (self.some_key(), self.next_body);
            let upload = Upload { body_id, key: key.clone(), ..Upload::default() };
            let create = Self::object(&key, ObjectChange::CreateUpload(CreateUpload { upload }));
            self.in_transit.push((Command::from(create), ResultReceiver::Nobody));
            return Ok(());
        };
        let parts = self.catalogue.parts(body).into_iter();
        let parts: Vec<NamedPart> = parts.map(|(number, seq)| NamedPart { number, seq }).collect();
        let skipped = self.dice.roll(3).min(parts.len().saturating_sub(1));
        let change = if parts.is_empty() || self.dice.roll(4) == 0 {
            ObjectChange::AbortUpload(AbortUpload { body_id: body })
        } else {
            let parts = parts[skipped..].to_vec();
            ObjectChange::CompleteUpload(CompleteUpload { body_id: body, parts, ..CompleteUpload::default() })
        };
        self.in_transit.push((Command::from(Self::object(&key, change)), ResultReceiver::Nobody));
        Ok(())
    }

    fn delete(&mut self) -> Result<(), BrokenInvariant> {
        let delete = ObjectChange::Delete(DeleteObject { conditions: Conditions::default() });
        let command = Command::from(Self::object(&self.some_key(), delete));
        self.in_transit.push((command, ResultReceiver::Nobody));
        Ok(())
    }

    fn send(&mut self) -> Result<(), BrokenInvariant> {
        let unsent: Vec<usize> = (0..self.requests.len()).filter(|at| !self.requests[*at].sent).collect();
        if !unsent.is_empty() {
            let at = unsent[self.dice.roll(unsent.len())];
            self.propose(at);
        }
        Ok(())
    }

    fn propose(&mut self, at: usize) {
        let request = &mut self.requests[at];
        request.sent = true;
        let size = request.extents.iter().map(|extent| extent.logical_bytes).sum();
        let extents = request.extents.clone();
        let change = if request.part > 0 {
            let part = PartRecord { size, extents, etag: request.id.to_string(), ..PartRecord::default() };
            ObjectChange::PutPart(PutPart { body_id: request.body, number: request.part, part })
        } else {
            let version = ObjectVersion { body_id: request.body, size, ..ObjectVersion::default() };
            let (extents, pages) = match extents.len() {
                0..=4 => (extents, vec![]),
                _ => (vec![], extents.chunks(4).map(page).collect()),
            };
            let version = ObjectVersion { extents, ..version };
            ObjectChange::Put(PutObject { version, pages, ..PutObject::default() })
        };
        let command = Command::from(Self::object(&request.key, change));
        self.in_transit.push((command, ResultReceiver::Request(request.id)));
    }

    /// Drops a client; its proposals are still delivered.
    fn vanish(&mut self) -> Result<(), BrokenInvariant> {
        if !self.requests.is_empty() {
            let at = self.dice.roll(self.requests.len());
            self.requests.swap_remove(at);
        }
        Ok(())
    }

    /// Handles a refused proposal as a request does: reads its bytes back and appends them again.
    fn append_again(&mut self, id: u64, segment: u64) -> Result<(), BrokenInvariant> {
        let Some(at) = self.requests.iter().position(|request| request.id == id) else { return Ok(()) };
        self.requests[at].retries += 1;
        if self.requests[at].retries > APPEND_RETRIES_MAX {
            return Err(format!("a request was refused {APPEND_RETRIES_MAX} times"));
        }
        self.holds.give_up(SegmentId(segment));
        let (body, part) = (self.requests[at].body, self.requests[at].part);
        let mut offset = 0;
        for index in 0..self.requests[at].extents.len() {
            let extent = self.requests[at].extents[index].clone();
            let chunk = (body, part, if part > 0 { id } else { 0 }, offset);
            offset += extent.logical_bytes;
            if extent.segment != segment {
                continue;
            }
            if !self.disk.files.get(&segment).is_some_and(|file| file.holds(extent.offset, chunk)) {
                return Err(format!("segment {segment} was removed while a request held it"));
            }
            let (new_extent, hold) = self.append(1, chunk, extent.logical_bytes);
            self.requests[at].extents[index] = new_extent;
            self.requests[at].holds.push(hold);
        }
        self.propose(at);
        Ok(())
    }

    // Delivery of proposals.

    fn deliver(&mut self) -> Result<(), BrokenInvariant> {
        if !self.in_transit.is_empty() {
            let at = self.dice.roll(self.in_transit.len());
            let (command, receiver) = self.in_transit.swap_remove(at);
            self.waiting.insert(self.catalogue.log.len(), receiver);
            self.catalogue.log.push(command);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), BrokenInvariant> {
        // Late in a schedule the kernel writes nothing back by chance, so that a missing sync is detected.
        if self.os && self.trace.len() > OS_SYNCED_ACTIONS {
            return Ok(());
        }
        self.catalogue.synced = self.catalogue.log.len();
        if self.os && self.dice.roll(2) == 0 {
            self.disk.sync();
        }
        self.record_durable();
        Ok(())
    }

    /// Records chunks on synced media that are named by a synced log: they survive from now on.
    pub(super) fn record_durable(&mut self) {
        if self.catalogue.applied <= self.catalogue.synced {
            for named in self.catalogue.references() {
                let file = self.disk.files.get(&named.extent.segment);
                let held = |file: &File| {
                    let synced = &file.records[..file.synced];
                    synced.iter().any(|r| r.offset == named.extent.offset && r.chunk == named.chunk)
                };
                if file.is_some_and(held) {
                    self.durable.insert(named.chunk);
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), BrokenInvariant> {
        self.catalogue.flush();
        Ok(())
    }

    fn apply(&mut self) -> Result<(), BrokenInvariant> {
        let may = if self.os { self.catalogue.log.len() } else { self.catalogue.synced };
        if self.catalogue.applied < may {
            self.apply_entry();
        }
        Ok(())
    }

    fn apply_entry(&mut self) {
        let receiver = self.waiting.remove(&self.catalogue.applied).unwrap_or(ResultReceiver::Nobody);
        let outcome = self.catalogue.apply_next();
        self.answers.push((receiver, outcome));
    }

    fn answer_all(&mut self) -> Result<(), BrokenInvariant> {
        while !self.answers.is_empty() {
            match self.answers.remove(0) {
                (ResultReceiver::Request(id), Err(Reject::SegmentFenced { segment })) => {
                    self.seen.refused += 1;
                    self.append_again(id, segment)?;
                }
                (ResultReceiver::Request(id), _) => self.requests.retain(|request| request.id != id),
                (ResultReceiver::Driver, outcome) => self.driver_result(outcome),
                (ResultReceiver::Nobody, _) => {}
            }
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), BrokenInvariant> {
        let pinned: HashSet<u64> = self.readers.iter().map(|reader| reader.body).collect();
        for (body_id, scope) in self.catalogue.waiting_bodies() {
            if !pinned.contains(&body_id) {
                let step = ReleaseBody { body_id, rows_max: 3, scope: Some(scope) };
                let command = Command::from(Change::ReleaseBody(step));
                self.in_transit.push((command, ResultReceiver::Nobody));
            }
        }
        Ok(())
    }

    // Readers.

    fn begin_read(&mut self) -> Result<(), BrokenInvariant> {
        let key = self.some_key();
        if let Some(version) = self.catalogue.object(&key).filter(|version| version.size > 0) {
            let to = (self.dice.roll(3) == 0).then(|| self.some_key());
            let (body, size) = (version.body_id, version.size);
            let reader = Reader { key, body, size, inline: version.extents, at: 0, pin: None, to };
            self.readers.push(reader);
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), BrokenInvariant> {
        if self.readers.is_empty() {
            return Ok(());
        }
        let at = self.dice.roll(self.readers.len());
        let mut reader = self.readers.swap_remove(at);
        self.read_on(&mut reader)?;
        if reader.at < reader.size {
            self.readers.push(reader);
        } else if let Some(to) = reader.to {
            self.begin_put(Some(to))?;
        }
        Ok(())
    }

    /// Reads the next chunk as a download does: pins first, and looks the object up again when a segment is
    /// gone.
    fn read_on(&mut self, reader: &mut Reader) -> Result<(), BrokenInvariant> {
        for _ in 0..4 {
            // Deleted before anything was read: the read ends.
            if reader.at == reader.size {
                return Ok(());
            }
            if !reader.inline.is_empty() && reader.pin.is_none() {
                let segments = reader.inline.iter().map(Extent::segment_id).collect();
                let rows = &self.catalogue;
                reader.pin = self.pins.pin(segments, |id| rows.segment(id.0).is_some());
            }
            let pinned = reader.inline.is_empty() || reader.pin.is_some();
            let found = self.next_extent(reader).filter(|_| pinned || !self.safeguards.second_lookup);
            let Some((chunk, extent)) = found else {
                self.lookup_again(reader)?;
                continue;
            };
            if self.disk.files.get(&extent.segment).is_some_and(|file| file.holds(extent.offset, chunk)) {
                reader.at += extent.logical_bytes;
                return Ok(());
            }
            if !self.safeguards.second_lookup {
                return Err(format!("a reader found segment {} gone", extent.segment));
            }
            self.lookup_again(reader)?;
        }
        Err("a reader gave up after 4 lookups".into())
    }

    /// Returns the chunk that begins at the reader's position.
    fn next_extent(&self, reader: &Reader) -> Option<(Chunk, Extent)> {
        let mut found = ((0, 0), 0, reader.inline.clone());
        if reader.inline.is_empty() {
            let (first, page) = self.catalogue.page(reader.body, reader.at)?;
            found = ((0, 0), first, page.extents);
            let mut begins = first;
            for range in page.parts {
                if (begins..begins + range.bytes).contains(&reader.at) {
                    let (writing, extents) = self.catalogue.part_extents(reader.body, range)?;
                    found = ((range.number, writing), begins, extents);
                }
                begins += range.bytes;
            }
        }
        let ((part, writing), begins, extents) = found;
        let mut offset = 0;
        for extent in extents {
            if begins + offset == reader.at {
                let at = if part == 0 { reader.at } else { offset };
                return Some(((reader.body, part, writing, at), extent));
            }
            offset += extent.logical_bytes;
        }
        None
    }

    fn lookup_again(&mut self, reader: &mut Reader) -> Result<(), BrokenInvariant> {
        self.seen.second_lookups += 1;
        if reader.inline.is_empty() && self.catalogue.page(reader.body, reader.at).is_some() {
            return Ok(());
        }
        let now = self.catalogue.object(&reader.key);
        match now {
            Some(version) if version.body_id == reader.body => reader.inline = version.extents,
            _ if reader.at > 0 => return Err(format!("a reader lost body {}", reader.body)),
            Some(version) => {
                (reader.body, reader.size, reader.inline) = (version.body_id, version.size, version.extents);
            }
            None => reader.at = reader.size,
        }
        reader.pin = None;
        Ok(())
    }

    // End of a schedule.

    pub(super) fn forget_clients(&mut self) {
        self.requests.clear();
        self.readers.clear();
    }

    /// Lets all activity finish, compacts, and checks the rest.
    fn quiesce(&mut self) -> Result<(), BrokenInvariant> {
        self.check_references(false)?;
        while !self.requests.is_empty()
            || !self.readers.is_empty()
            || !self.catalogue.waiting_bodies().is_empty()
        {
            while !self.readers.is_empty() {
                self.read()?;
                self.answer_all()?;
            }
            let unsent = (0..self.requests.len()).filter(|at| !self.requests[*at].sent);
            unsent.collect::<Vec<_>>().into_iter().for_each(|at| self.propose(at));
            self.release()?;
            self.drain_log()?;
        }
        self.finish_compaction()
    }

    /// Delivers, syncs and applies everything.
    pub(super) fn drain_log(&mut self) -> Result<(), BrokenInvariant> {
        self.answer_all()?;
        while !self.in_transit.is_empty() || self.catalogue.applied < self.catalogue.log.len() {
            self.deliver()?;
            self.catalogue.synced = self.catalogue.log.len();
            while self.catalogue.applied < self.catalogue.log.len() {
                self.apply_entry();
            }
            self.answer_all()?;
        }
        Ok(())
    }
}

fn page(extents: &[Extent]) -> ExtentPage {
    ExtentPage { extents: extents.to_vec(), parts: vec![] }
}
