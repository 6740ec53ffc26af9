//! The data of one file: the durable bytes, and the changes that are still undecided.

use super::{CutStyle, PowerCut};
use crate::disk::FileImage;
use crate::recording::{DiskEvent, Ino};
use crate::seed::Rng;

const SECTOR_BYTES: usize = 512;

/// A file under the model.
#[derive(Default)]
pub(super) struct PendingFile<'a> {
    durable: FileImage,
    pending: Vec<&'a DiskEvent>,
    /// Number of random decisions so far, so that a second decision on one file does not repeat the first.
    decisions: u64,
}

impl<'a> PendingFile<'a> {
    pub(super) fn add_change(&mut self, event: &'a DiskEvent) {
        self.pending.push(event);
    }

    pub(super) fn sync(&mut self) {
        for event in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, event);
        }
    }

    /// Decides every unsynced change at random.
    pub(super) fn resolve_pending(&mut self, cut: PowerCut, ino: Ino) {
        let style = cut.style.for_inode(cut.seed, ino);
        let mut rng = Rng::new(cut.seed).fork(ino).fork(self.decisions);
        self.decisions += 1;
        for event in std::mem::take(&mut self.pending) {
            match fate(style, &mut rng) {
                WriteFate::Kept => apply(&mut self.durable, event),
                WriteFate::Dropped => drop_write(&mut self.durable, event, &mut rng),
                WriteFate::Torn => tear(&mut self.durable, event, &mut rng),
            }
        }
    }

    pub(super) fn into_durable(self) -> FileImage {
        self.durable
    }
}

enum WriteFate {
    Kept,
    Dropped,
    Torn,
}

fn fate(style: CutStyle, rng: &mut Rng) -> WriteFate {
    match style {
        CutStyle::DropAll | CutStyle::DropData => WriteFate::Dropped,
        CutStyle::KeepAll | CutStyle::DropNames => WriteFate::Kept,
        CutStyle::Torn => WriteFate::Torn,
        CutStyle::Mixed | CutStyle::PerFile => match rng.below(3) {
            0 => WriteFate::Kept,
            1 => WriteFate::Dropped,
            _ => WriteFate::Torn,
        },
    }
}

fn apply(image: &mut FileImage, event: &DiskEvent) {
    match event {
        DiskEvent::Write { offset, data, .. } => image.write(*offset, data),
        DiskEvent::Resize { bytes, .. } => image.resize(*bytes),
        DiskEvent::Zero { offset, bytes, .. } => image.zero(*offset, *bytes),
        other => unreachable!("{other:?} does not change data"),
    }
}

/// Drops a write. The size may have reached the disk without the data: blocks allocated, never written.
fn drop_write(image: &mut FileImage, event: &DiskEvent, rng: &mut Rng) {
    if let DiskEvent::Write { offset, data, .. } = event
        && rng.chance(1, 4)
    {
        image.grow(offset + data.len() as u64);
    }
}

/// Tears a write: each sector of the file that it touches is kept or not; a size change is kept or not.
fn tear(image: &mut FileImage, event: &DiskEvent, rng: &mut Rng) {
    let DiskEvent::Write { offset, data, .. } = event else {
        if rng.chance(1, 2) {
            apply(image, event);
        }
        return;
    };
    let mut start = 0;
    while start < data.len() {
        let position = usize::try_from(*offset).expect("fits") + start;
        let end = data.len().min(start + SECTOR_BYTES - position % SECTOR_BYTES);
        if rng.chance(1, 2) {
            image.write(position as u64, &data[start..end]);
        }
        start = end;
    }
    if rng.chance(1, 2) {
        image.grow(offset + data.len() as u64);
    }
}
