//! Text format of the ownership mark, and the decisions that depend on it. Pure.
//!
//! The mark is one line, `mlgw-upstream-owner 1 CRC IDENTITY NONCE`. The nonce is drawn anew at each start,
//! so two servers with copies of one data directory, which have the same identity, still differ.

use mlgw_common::checksum::crc32c;
use mlgw_common::{Identity, Kinship, Lineage};

const MAGIC: &str = "mlgw-upstream-owner 1 ";

/// Server that may delete and overwrite objects below a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefixMark {
    pub(super) owner: Identity,
    /// Random number drawn at the start of the server that wrote the mark.
    pub(super) nonce: u64,
}

impl PrefixMark {
    /// Returns the content of the mark object.
    pub(super) fn text(&self) -> String {
        let fields = format!("{} {:016x}", self.owner, self.nonce);
        format!("{MAGIC}{:08x} {fields}\n", crc32c(fields.as_bytes()))
    }

    /// Parses the content of a mark object; `None` if it is damaged.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(bytes).ok()?.strip_prefix(MAGIC)?.strip_suffix('\n')?;
        let (_, fields) = line.split_once(' ')?;
        let (owner, nonce) = fields.split_once(' ')?;
        let mark = Self { owner: owner.parse().ok()?, nonce: u64::from_str_radix(nonce, 16).ok()? };
        (mark.text().as_bytes() == bytes).then_some(mark)
    }
}

/// Content found at the key of the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundMark {
    /// No object.
    Absent,
    /// Object that does not parse.
    Damaged,
    /// Intact mark.
    Intact(PrefixMark),
}

/// Content of a prefix besides its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefixContent {
    /// No object of a segment.
    NoSegments,
    /// Objects of segments.
    Segments,
}

/// Relation of this server to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixOwnership {
    /// The mark was not compared since this server started.
    Unchecked {
        /// Error of the last attempt, if there was one.
        why: Option<String>,
    },
    /// The mark is this server's.
    Own,
    /// The mark is that of an earlier incarnation of this server, which may still run elsewhere.
    Earlier(Identity),
    /// The mark is that of a later start of a copy of this data directory, or of an incarnation that adopted
    /// the prefix.
    Superseded(Identity),
    /// The mark is that of another server.
    Foreign(Identity),
    /// The mark is missing although it must exist.
    Missing,
    /// The mark does not parse.
    Damaged,
}

impl PrefixOwnership {
    /// Name in the admin API.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unchecked { .. } => "unchecked",
            Self::Own => "own",
            Self::Earlier(_) => "earlier",
            Self::Superseded(_) => "superseded",
            Self::Foreign(_) => "foreign",
            Self::Missing => "missing",
            Self::Damaged => "damaged",
        }
    }

    /// Returns the identity in a mark that is not this server's.
    #[must_use]
    pub const fn other(&self) -> Option<Identity> {
        match self {
            Self::Earlier(found) | Self::Superseded(found) | Self::Foreign(found) => Some(*found),
            Self::Unchecked { .. } | Self::Own | Self::Missing | Self::Damaged => None,
        }
    }

    /// True if only an operator can change the state. The other states are compared again.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::Earlier(_) | Self::Superseded(_) | Self::Foreign(_) | Self::Missing)
    }

    /// True if this server stores new objects below the prefix. Their names contain its incarnation, so no
    /// other server's objects are affected; among the objects of a foreign server they would never be
    /// deleted.
    pub(super) const fn may_store(&self) -> bool {
        !matches!(self, Self::Unchecked { .. } | Self::Foreign(_))
    }

    /// Returns the fault and advice; `None` if the prefix is this server's.
    #[must_use]
    pub fn advice(&self, upstream: &str, mark_key: &str, own: &Identity) -> Option<String> {
        let adopt = format!("`mlgw upstream adopt {upstream}`");
        let text = match self {
            Self::Own => return None,
            Self::Unchecked { why } => {
                let why = why.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
                format!("its mark {mark_key} was not compared yet{why}; the server retries automatically")
            }
            Self::Earlier(found) => format!(
                "its mark names {found}, an earlier incarnation of this server, {own}: run {adopt} if no \
                 server of that incarnation is running or will be started again"
            ),
            Self::Superseded(found) => format!(
                "its mark names {found}, a copy of the data directory of this server, {own}, which was \
                 started later or adopted the prefix: stop one of the two servers; to continue with this \
                 one, run {adopt}"
            ),
            Self::Foreign(found) => format!(
                "its mark names another server, {found}; this server is {own}: give this server a prefix of \
                 its own; if the other server is gone permanently, delete the object {mark_key} and run \
                 {adopt}"
            ),
            Self::Missing => format!(
                "it has no mark {mark_key}: it was deleted, or an earlier incarnation of this server, \
                 {own}, never wrote one; run {adopt} if no other server uses the prefix"
            ),
            Self::Damaged => format!(
                "its mark {mark_key} is damaged; this server is {own}: run {adopt} if no other server uses \
                 the prefix"
            ),
        };
        Some(text)
    }
}

/// Decision of a start about a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PrefixClaim {
    /// Write the mark, on the condition that the mark that was read is still current.
    Write,
    /// Write nothing.
    Leave(PrefixOwnership),
}

/// Decides what a start that drew `nonce` does.
pub(super) fn decide_claim(
    found: &FoundMark,
    lineage: &Lineage,
    nonce: u64,
    content: PrefixContent,
) -> PrefixClaim {
    match found {
        // Prefix of an earlier version. An incarnation that descends from another one cannot know whether
        // that one still uses the prefix.
        FoundMark::Absent if content == PrefixContent::Segments && !lineage.earlier.is_empty() => {
            PrefixClaim::Leave(PrefixOwnership::Missing)
        }
        FoundMark::Absent => PrefixClaim::Write,
        FoundMark::Intact(mark) if mark.owner == lineage.own && mark.nonce != nonce => PrefixClaim::Write,
        other => PrefixClaim::Leave(compare(other, lineage, nonce)),
    }
}

/// Returns the relation to a prefix of a server that wrote its mark with `nonce`.
pub(super) fn compare(found: &FoundMark, lineage: &Lineage, nonce: u64) -> PrefixOwnership {
    let mark = match found {
        FoundMark::Absent => return PrefixOwnership::Missing,
        FoundMark::Damaged => return PrefixOwnership::Damaged,
        FoundMark::Intact(mark) => mark,
    };
    let is_node = (mark.owner.cluster, mark.owner.node) == (lineage.own.cluster, lineage.own.node);
    match lineage.kinship(&mark.owner) {
        Kinship::Own if mark.nonce == nonce => PrefixOwnership::Own,
        Kinship::Own => PrefixOwnership::Superseded(mark.owner),
        Kinship::Earlier => PrefixOwnership::Earlier(mark.owner),
        Kinship::Foreign if is_node => PrefixOwnership::Superseded(mark.owner),
        Kinship::Foreign => PrefixOwnership::Foreign(mark.owner),
    }
}

/// Checks that an operator may assign the prefix to this server. The prefix of a foreign server may not be
/// adopted, because that server may be running.
pub(super) fn check_may_adopt(found: &FoundMark, lineage: &Lineage) -> Result<(), PrefixOwnership> {
    match compare(found, lineage, 0) {
        foreign @ PrefixOwnership::Foreign(_) => Err(foreign),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
