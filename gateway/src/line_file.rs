//! Small files that say what they are: a line `MAGIC VERSION CRC JSON`, with the CRC32C of the JSON in hexadecimal, and whatever follows it.
//!
//! Always: what is read back is what was written, and anything else is refused.

use crc_fast::{CrcAlgorithm, checksum};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a file's line begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Its first word.
    pub(crate) magic: &'static str,
    /// The version that this program writes, and the only one that it reads.
    pub(crate) version: &'static str,
}

/// Why a line says nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadLine {
    /// It is not what was written.
    #[error("the file is damaged")]
    Damaged,
    /// A later program wrote it.
    #[error("the file is of version {0}, which this program does not know")]
    Version(String),
}

impl Kind {
    /// The line that says `what`.
    pub(crate) fn line(self, what: &impl Serialize) -> Vec<u8> {
        let json = serde_json::to_string(what).unwrap_or_default();
        format!("{} {} {:08x} {json}\n", self.magic, self.version, crc(&json)).into_bytes()
    }

    /// What the line says that a file begins with, and what follows it.
    ///
    /// # Errors
    /// It is not what was written.
    pub(crate) fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<(T, &[u8]), BadLine> {
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(BadLine::Damaged)?;
        let line = std::str::from_utf8(&bytes[..end]).map_err(|_| BadLine::Damaged)?;
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().ok_or(BadLine::Damaged);
        if word()? != self.magic {
            return Err(BadLine::Damaged);
        }
        let version = word()?;
        if version != self.version {
            return Err(BadLine::Version(version.to_owned()));
        }
        let (sum, json) = (word()?, word()?);
        if sum != format!("{:08x}", crc(json)) {
            return Err(BadLine::Damaged);
        }
        let what = serde_json::from_str(json).map_err(|_| BadLine::Damaged)?;
        Ok((what, &bytes[end + 1..]))
    }

    /// What the line says that a file is, and nothing else.
    ///
    /// # Errors
    /// It is not what was written.
    pub(crate) fn read_alone<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, BadLine> {
        match self.read(bytes)? {
            (what, []) => Ok(what),
            _ => Err(BadLine::Damaged),
        }
    }
}

fn crc(text: &str) -> u64 {
    checksum(CrcAlgorithm::Crc32Iscsi, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{BadLine, Kind};

    const KIND: Kind = Kind { magic: "mlgw-test", version: "3" };

    #[test]
    fn what_is_read_is_what_was_written_and_nothing_else_is_taken() {
        let mut bytes = KIND.line(&("ä\n", 7));
        bytes.extend_from_slice(b"rest\n");
        assert_eq!(KIND.read(&bytes), Ok((("ä\n".to_owned(), 7), &b"rest\n"[..])));
        let line = bytes.len() - 5;
        for at in 0..line {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(KIND.read::<(String, i32)>(&damaged).is_err(), "byte {at}");
            assert!(KIND.read::<(String, i32)>(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(KIND.read_alone::<(String, i32)>(&bytes), Err(BadLine::Damaged));
        assert_eq!(KIND.read_alone(&bytes[..line]), Ok(("ä\n".to_owned(), 7)));
        let newer = Kind { version: "4", ..KIND }.line(&7);
        assert_eq!(KIND.read::<i32>(&newer), Err(BadLine::Version("4".to_owned())));
    }
}
