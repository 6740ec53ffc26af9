//! Directories of segment files: the hot tier's, and those of the cold tier.
//!
//! The file of a segment is in one of them, under the segment's name. During a move between tiers it is in
//! two: the segment's record names the valid one, and both are equal byte by byte. So a reader tries the
//! directory of the recorded tier first and the others next: in a directory that was restored from a backup
//! all segments are hot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mlgw_common::ids::SegmentId;
use mlgw_common::{SegmentTier, regular};

use super::file_names::segment_file_name;
use super::map::SegmentLocation;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// The directories of segment files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentDirs {
    hot: PathBuf,
    cold: Vec<PathBuf>,
}

impl SegmentDirs {
    /// Creates the set from the hot tier's directory and those of the cold tier.
    #[must_use]
    pub fn new(hot: PathBuf, cold: Vec<PathBuf>) -> Self {
        Self { hot, cold }
    }

    /// The hot tier's directory.
    #[must_use]
    pub fn hot(&self) -> &Path {
        &self.hot
    }

    /// The cold tier's directories.
    #[must_use]
    pub fn cold(&self) -> &[PathBuf] {
        &self.cold
    }

    /// All directories, the hot tier's first.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.hot.as_path()).chain(self.cold.iter().map(PathBuf::as_path))
    }

    /// All directories with their tiers, in the same order.
    pub(super) fn tiers(&self) -> impl Iterator<Item = (SegmentTier, &Path)> {
        let cold = self.cold.iter().map(|dir| (SegmentTier::Cold, dir.as_path()));
        std::iter::once((SegmentTier::Hot, self.hot.as_path())).chain(cold)
    }

    /// The directories of a tier; none of the remote tier.
    pub(super) fn of_tier(&self, tier: SegmentTier) -> &[PathBuf] {
        match tier {
            SegmentTier::Hot => std::slice::from_ref(&self.hot),
            SegmentTier::Cold => &self.cold,
            SegmentTier::Upstream => &[],
        }
    }

    /// Returns the path of the file of a segment whose record names `tier`; the path at which it should be if
    /// no directory has it.
    #[must_use]
    pub fn path(&self, segment: SegmentId, tier: SegmentTier) -> PathBuf {
        let name = segment_file_name(segment);
        let found = self.starting_with(tier).map(|dir| dir.join(&name)).find(|path| path.exists());
        found.unwrap_or_else(|| self.of_tier(tier).first().unwrap_or(&self.hot).join(name))
    }

    /// Opens the file of a segment whose record names `tier`.
    ///
    /// # Errors
    /// Of kind `NotFound` if no directory has the file.
    pub fn open(&self, segment: SegmentId, tier: SegmentTier) -> io::Result<File> {
        let name = segment_file_name(segment);
        for dir in self.starting_with(tier) {
            match regular::open(&dir.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Opens the file whose header matches the record of a segment, in whichever directory it is.
    ///
    /// # Errors
    /// Of kind `NotFound` if no directory has the file, and `InvalidData` if only a file of another server or
    /// timeline exists.
    pub(super) fn open_verified(&self, segment: SegmentId, place: &SegmentLocation) -> io::Result<File> {
        let name = segment_file_name(segment);
        let mut missing = io::Error::from(io::ErrorKind::NotFound);
        for dir in self.starting_with(place.tier) {
            let file = match regular::open(&dir.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match foreign_segment(&file, segment, place)? {
                None => return Ok(file),
                Some(what) => missing = io::Error::new(io::ErrorKind::InvalidData, what),
            }
        }
        Err(missing)
    }

    /// All directories, those of `tier` first.
    fn starting_with(&self, tier: SegmentTier) -> impl Iterator<Item = &PathBuf> {
        let others = [SegmentTier::Hot, SegmentTier::Cold].into_iter().filter(move |other| *other != tier);
        self.of_tier(tier).iter().chain(others.flat_map(|other| self.of_tier(other)))
    }
}

/// Opens the file of a segment in `dir`; `None` if there is none whose header may be that of the record at
/// `place`.
pub(super) fn open_in(dir: &Path, segment: SegmentId, place: &SegmentLocation) -> io::Result<Option<File>> {
    let file = match regular::open(&dir.join(segment_file_name(segment))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    Ok(if foreign_segment(&file, segment, place)?.is_none() { Some(file) } else { None })
}

/// Describes the segment that a file holds instead of the one of the record at `place`; `None` if it is that
/// segment.
fn foreign_segment(file: &File, segment: SegmentId, place: &SegmentLocation) -> io::Result<Option<String>> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    // A damaged header does not prevent reading: each record is verified on its own.
    let header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => SegmentHeader::decode(&bytes).ok(),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        Err(error) => return Err(error),
    };
    let other = header.filter(|header| !header.is_header_of(segment, place.seed, place.created));
    Ok(other.map(|header| {
        format!(
            "the file of segment {segment} belongs to another segment: segment {}, created at {}, of \
             cluster {} and incarnation {}",
            header.id, header.created, header.cluster, header.incarnation
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::{SegmentDirs, SegmentHeader, SegmentLocation, segment_file_name};
    use crate::hot::map::NewSegment;
    use mlgw_common::ids::{Generation, SegmentId, SegmentSeed, SegmentStamp};
    use mlgw_common::{Identity, SegmentTier, Timestamp};
    use mlgw_formats::schema::SegmentClass;
    use std::io::Read as _;

    #[test]
    fn a_file_is_looked_up_in_its_recorded_tier_first() {
        let room = tempfile::tempdir().unwrap();
        let [hot, one, two] = ["hot", "one", "two"].map(|name| room.path().join(name));
        for dir in [&hot, &one, &two] {
            std::fs::create_dir(dir).unwrap();
        }
        let dirs = SegmentDirs::new(hot.clone(), vec![one.clone(), two.clone()]);
        let (id, name) = (SegmentId(7), "0000000000000007.seg");
        let read = |tier| {
            let mut text = String::new();
            dirs.open(id, tier).map(|mut file| file.read_to_string(&mut text)).map(|_| text).ok()
        };
        assert_eq!((read(SegmentTier::Hot), dirs.path(id, SegmentTier::Hot)), (None, hot.join(name)));
        assert_eq!((read(SegmentTier::Cold), dirs.path(id, SegmentTier::Cold)), (None, one.join(name)));
        std::fs::write(two.join(name), "two").unwrap();
        assert_eq!(
            (read(SegmentTier::Hot).as_deref(), read(SegmentTier::Cold).as_deref()),
            (Some("two"), Some("two"))
        );
        std::fs::write(hot.join(name), "hot").unwrap();
        assert_eq!(
            (read(SegmentTier::Hot).as_deref(), read(SegmentTier::Cold).as_deref()),
            (Some("hot"), Some("two"))
        );
        assert_eq!(
            (dirs.path(id, SegmentTier::Hot), dirs.path(id, SegmentTier::Cold)),
            (hot.join(name), two.join(name))
        );
        assert_eq!(dirs.all().count(), 3);
    }

    #[test]
    fn a_file_of_another_server_does_not_hide_the_own_one() {
        let room = tempfile::tempdir().unwrap();
        let [hot, one, two] = ["hot", "one", "two"].map(|name| room.path().join(name));
        for dir in [&hot, &one, &two] {
            std::fs::create_dir(dir).unwrap();
        }
        let dirs = SegmentDirs::new(hot.clone(), vec![one.clone(), two.clone()]);
        let (id, created) = (SegmentId(7), Timestamp(1_000));
        let header = |stamp| {
            let seed = SegmentSeed { generation: Generation(1), stamp: SegmentStamp(stamp) };
            let minted = NewSegment { id, seed, created };
            (seed, SegmentHeader::of(&minted, SegmentClass::Small, &Identity::default()).encode())
        };
        let ((seed, own), (_, foreign)) = (header(1), header(2));
        let place = SegmentLocation { seed, created: Some(created), tier: SegmentTier::Cold };
        let read = || {
            let mut file = dirs.open_verified(id, &place).map_err(|error| error.kind())?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|error| error.kind())?;
            Ok(bytes)
        };
        assert_eq!(read(), Err(std::io::ErrorKind::NotFound));
        std::fs::write(one.join(segment_file_name(id)), foreign).unwrap();
        assert_eq!(read(), Err(std::io::ErrorKind::InvalidData));
        for dir in [&hot, &two] {
            std::fs::write(dir.join(segment_file_name(id)), own).unwrap();
            assert_eq!(read(), Ok(own.to_vec()), "{}", dir.display());
            std::fs::remove_file(dir.join(segment_file_name(id))).unwrap();
        }
    }
}
