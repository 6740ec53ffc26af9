//! Small files that belong to one server: a line `MAGIC VERSION OWNER CRC JSON`, and arbitrary bytes after
//! it. `OWNER` is the identity of the server and its timeline, `CRC` the CRC32C of `OWNER JSON` in
//! hexadecimal.
//!
//! The content refers to buckets and objects by ids, which are reused on another server and after a restore.
//! Only a file of this server and its present timeline is therefore accepted. Earlier versions have no owner,
//! and their CRC covers the JSON alone; they are accepted by a server that has never had another timeline.
//!
//! The content read equals the content written, or the file is refused. Files are replaced as a whole, so a
//! crash leaves the old or the new one.

use mlgw_common::checksum::crc32c;
use mlgw_common::{Identity, Lineage};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Format of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineFormat {
    /// First word of the line.
    pub(crate) magic: &'static str,
    /// Version that this program writes.
    pub(crate) version: &'static str,
    /// Earlier versions, which are accepted as well.
    pub(crate) without_owner: &'static [&'static str],
}

/// Reason why a line is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LineFileError {
    /// The content differs from what was written.
    #[error("the file is damaged")]
    Damaged,
    /// A later program wrote the file.
    #[error("the file has version {0}, which this program does not support")]
    Version(String),
    /// Another server wrote the file, or another timeline of this server.
    #[error("the file belongs to {0}, not to this server on its present timeline")]
    Foreign(Identity),
    /// An earlier program wrote the file, perhaps on an earlier timeline.
    #[error(
        "the file names no owner, and this server has begun a new timeline since such files were written"
    )]
    Unowned,
}

impl LineFormat {
    /// Serializes `what` as a line of this owner.
    pub(crate) fn to_line(self, owner: &Identity, what: &impl Serialize) -> Vec<u8> {
        let json = serde_json::to_string(what).unwrap_or_default();
        assert!(!json.is_empty() && !json.contains('\n'), "a value is one line of JSON");
        let text = format!("{owner} {json}");
        format!("{} {} {owner} {} {json}\n", self.magic, self.version, crc(&text)).into_bytes()
    }

    /// Parses the first line of a file. Returns its content and the bytes after the line.
    ///
    /// # Errors
    /// If this server did not write the file on its present timeline.
    pub(crate) fn read<'b, T: DeserializeOwned>(
        self,
        lineage: &Lineage,
        bytes: &'b [u8],
    ) -> Result<(T, &'b [u8]), LineFileError> {
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(LineFileError::Damaged)?;
        let line = std::str::from_utf8(&bytes[..end]).map_err(|_| LineFileError::Damaged)?;
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().ok_or(LineFileError::Damaged);
        if word()? != self.magic {
            return Err(LineFileError::Damaged);
        }
        let version = word()?;
        let rest = word()?;
        let json = if version == self.version {
            verify_owned(lineage, rest)?
        } else if self.without_owner.contains(&version) {
            verify_unowned(lineage, rest)?
        } else {
            return Err(LineFileError::Version(version.to_owned()));
        };
        let what = serde_json::from_str(json).map_err(|_| LineFileError::Damaged)?;
        Ok((what, &bytes[end + 1..]))
    }

    /// Parses a file that consists of one line.
    ///
    /// # Errors
    /// As [`LineFormat::read`].
    pub(crate) fn read_single_line<T: DeserializeOwned>(
        self,
        lineage: &Lineage,
        bytes: &[u8],
    ) -> Result<T, LineFileError> {
        match self.read(lineage, bytes)? {
            (what, []) => Ok(what),
            _ => Err(LineFileError::Damaged),
        }
    }
}

/// Verifies `OWNER CRC JSON` and returns the JSON.
fn verify_owned<'t>(lineage: &Lineage, text: &'t str) -> Result<&'t str, LineFileError> {
    let (owner, text) = text.split_once(' ').ok_or(LineFileError::Damaged)?;
    let (sum, json) = text.split_once(' ').ok_or(LineFileError::Damaged)?;
    if sum != crc(&format!("{owner} {json}")) {
        return Err(LineFileError::Damaged);
    }
    let owner: Identity = owner.parse().map_err(|_| LineFileError::Damaged)?;
    if owner == lineage.own { Ok(json) } else { Err(LineFileError::Foreign(owner)) }
}

/// Verifies `CRC JSON` and returns the JSON.
fn verify_unowned<'t>(lineage: &Lineage, text: &'t str) -> Result<&'t str, LineFileError> {
    let (sum, json) = text.split_once(' ').ok_or(LineFileError::Damaged)?;
    if sum != crc(json) {
        return Err(LineFileError::Damaged);
    }
    if lineage.earlier.is_empty() { Ok(json) } else { Err(LineFileError::Unowned) }
}

fn crc(text: &str) -> String {
    format!("{:08x}", crc32c(text.as_bytes()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{LineFileError, LineFormat};
    use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName};

    const KIND: LineFormat = LineFormat { magic: "mlgw-test", version: "3", without_owner: &["2"] };

    /// Returns the lineage of a server without earlier timelines, and the lineage after a restore.
    pub(crate) fn lineages() -> (Lineage, Lineage) {
        let identity =
            |number| Identity { cluster: ClusterId(1), node: NodeName(2), incarnation: Incarnation(number) };
        let first = Lineage { own: identity(3), ..Lineage::default() };
        (first, Lineage { own: identity(4), earlier: vec![Incarnation(3)], ..Lineage::default() })
    }

    #[test]
    fn a_line_reads_back_as_written_and_damage_is_detected() {
        let (lineage, _) = lineages();
        let mut bytes = KIND.to_line(&lineage.own, &("ä\n", 7));
        bytes.extend_from_slice(b"rest\n");
        assert_eq!(KIND.read(&lineage, &bytes), Ok((("ä\n".to_owned(), 7), &b"rest\n"[..])));
        let line = bytes.len() - 5;
        for at in 0..line {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(KIND.read::<(String, i32)>(&lineage, &damaged).is_err(), "byte {at}");
            assert!(KIND.read::<(String, i32)>(&lineage, &bytes[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(KIND.read_single_line::<(String, i32)>(&lineage, &bytes), Err(LineFileError::Damaged));
        assert_eq!(KIND.read_single_line(&lineage, &bytes[..line]), Ok(("ä\n".to_owned(), 7)));
        let newer = LineFormat { version: "4", ..KIND }.to_line(&lineage.own, &7);
        assert_eq!(
            KIND.read_single_line::<i32>(&lineage, &newer),
            Err(LineFileError::Version("4".to_owned()))
        );
    }

    #[test]
    fn only_the_present_timeline_is_read() {
        let (first, restored) = lineages();
        let bytes = KIND.to_line(&first.own, &7);
        assert_eq!(KIND.read_single_line(&first, &bytes), Ok(7));
        assert_eq!(KIND.read_single_line::<i32>(&restored, &bytes), Err(LineFileError::Foreign(first.own)));
        let older = b"mlgw-test 2 b6547e0b 7\n";
        assert_eq!(super::crc("7"), "b6547e0b");
        assert_eq!(KIND.read_single_line(&first, older), Ok(7));
        assert_eq!(KIND.read_single_line::<i32>(&restored, older), Err(LineFileError::Unowned));
        assert_eq!(
            KIND.read_single_line::<i32>(&first, b"mlgw-test 2 b6547e0c 7\n"),
            Err(LineFileError::Damaged)
        );
    }
}
