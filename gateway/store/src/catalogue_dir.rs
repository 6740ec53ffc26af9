//! The directory of the catalogue, which `node.json` names.
//!
//! A server without peers has its catalogue in `catalogue/`. An operation that makes a new catalogue builds
//! it in `catalogue-N/` and then replaces `node.json`. So one rename decides which catalogue counts, and a
//! power loss leaves the old one or the new one. Checkpoints of `catalogue-N/` are in a directory of that
//! name below the directory of checkpoints, so a rebuild never mixes two catalogues.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Name of the first directory, and beginning of the names of all others.
const FIRST: &str = "catalogue";

/// Name of a catalogue's directory in the data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CatalogueName(u32);

/// A text that names no catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a catalogue: expected `catalogue` or `catalogue-N`")]
pub struct BadCatalogueName(String);

impl CatalogueName {
    /// The catalogue of a server without peers.
    pub const FIRST: Self = Self(0);

    /// Returns the name of the catalogue that replaces this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns true for the catalogue of a server without peers.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.0 == 0
    }

    /// Returns the directory of its checkpoints, given the directory of all checkpoints.
    #[must_use]
    pub fn checkpoints(self, all: &Path) -> PathBuf {
        if self.is_first() { all.to_owned() } else { all.join(self.to_string()) }
    }

    /// Returns the names of all catalogues in a directory, the oldest first. They are not necessarily
    /// complete.
    ///
    /// # Errors
    /// When the directory cannot be read. A missing directory has none.
    pub fn list(dir: &Path) -> io::Result<Vec<Self>> {
        let entries = match std::fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| name.parse::<Self>().ok()));
        }
        found.sort_unstable();
        Ok(found)
    }
}

impl fmt::Display for CatalogueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str(FIRST),
            number => write!(f, "{FIRST}-{number}"),
        }
    }
}

impl FromStr for CatalogueName {
    type Err = BadCatalogueName;

    fn from_str(text: &str) -> Result<Self, BadCatalogueName> {
        let number = match text.strip_prefix(FIRST) {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix('-').and_then(|number| number.parse().ok()),
            None => None,
        };
        // There is one spelling of each name.
        let name = number.map(Self).filter(|name| name.to_string() == text);
        name.ok_or_else(|| BadCatalogueName(text.to_owned()))
    }
}

impl Serialize for CatalogueName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CatalogueName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::CatalogueName;
    use std::path::Path;

    #[test]
    fn a_name_has_one_spelling() {
        for name in [CatalogueName::FIRST, CatalogueName(1), CatalogueName(u32::MAX)] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let wrong =
            ["", "catalogue-", "catalogue-0", "catalogue-01", "catalogue-+1", "catalogue1", "../catalogue"];
        for wrong in wrong.into_iter().chain(["catalogue-1/..", "catalogue-1.new", "catalogue-4294967296"]) {
            assert!(wrong.parse::<CatalogueName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn checkpoints_of_two_catalogues_are_apart() {
        let all = Path::new("/c");
        assert_eq!(CatalogueName::FIRST.checkpoints(all), all);
        assert_eq!(CatalogueName::FIRST.next().checkpoints(all), all.join("catalogue-1"));
    }
}
