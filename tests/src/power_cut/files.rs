//! The data of one file: the durable bytes, and the changes that are still undecided.

use super::{Cut, Style};
use crate::disk::FileImage;
use crate::recording::{Event, Ino};
use crate::seed::Rng;

const SECTOR_BYTES: usize = 512;

/// A file under the model.
#[derive(Default)]
pub(super) struct Data<'a> {
    durable: FileImage,
    pending: Vec<&'a Event>,
    /// Number of random decisions so far, so that a second decision on one file does not repeat the first.
    settled: u64,
}

impl<'a> Data<'a> {
    pub(super) fn change(&mut self, event: &'a Event) {
        self.pending.push(event);
    }

    pub(super) fn sync(&mut self) {
        for event in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, event);
        }
    }

    /// Decides every unsynced change at random.
    pub(super) fn settle(&mut self, cut: Cut, ino: Ino) {
        let style = cut.style.of(cut.seed, ino);
        let mut rng = Rng::new(cut.seed).fork(ino).fork(self.settled);
        self.settled += 1;
        for event in std::mem::take(&mut self.pending) {
            match fate(style, &mut rng) {
                Fate::Kept => apply(&mut self.durable, event),
                Fate::Dropped => drop_write(&mut self.durable, event, &mut rng),
                Fate::Torn => tear(&mut self.durable, event, &mut rng),
            }
        }
    }

    pub(super) fn into_durable(self) -> FileImage {
        self.durable
    }
}

enum Fate {
    Kept,
    Dropped,
    Torn,
}

fn fate(style: Style, rng: &mut Rng) -> Fate {
    match style {
        Style::LoseAll | Style::LoseData => Fate::Dropped,
        Style::KeepAll | Style::LoseNames => Fate::Kept,
        Style::Torn => Fate::Torn,
        Style::Mixed | Style::PerFile => match rng.below(3) {
            0 => Fate::Kept,
            1 => Fate::Dropped,
            _ => Fate::Torn,
        },
    }
}

fn apply(image: &mut FileImage, event: &Event) {
    match event {
        Event::Write { offset, data, .. } => image.write(*offset, data),
        Event::Resize { bytes, .. } => image.resize(*bytes),
        Event::Zero { offset, bytes, .. } => image.zero(*offset, *bytes),
        other => unreachable!("{other:?} does not change data"),
    }
}

/// Drops a write. The size may have reached the disk without the data: blocks allocated, never written.
fn drop_write(image: &mut FileImage, event: &Event, rng: &mut Rng) {
    if let Event::Write { offset, data, .. } = event
        && rng.chance(1, 4)
    {
        image.grow(offset + data.len() as u64);
    }
}

/// Tears a write: each sector of the file that it touches is kept or not; a size change is kept or not.
fn tear(image: &mut FileImage, event: &Event, rng: &mut Rng) {
    let Event::Write { offset, data, .. } = event else {
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
