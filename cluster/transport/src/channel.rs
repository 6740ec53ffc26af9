//! The three shared connections from one node to another, and the three classes of streams.
//!
//! Votes and heartbeats have a connection of their own, so that log entries and bodies never delay them.

use std::fmt;

/// One of the shared connections from a node to another, and the exclusive connections beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Votes, heartbeats, read indexes, reports: small and urgent.
    Control,
    /// Log entries, and the streams of appends to open segments.
    Log,
    /// All other streams: forwarded requests, copies, snapshots.
    Bulk,
}

impl Channel {
    /// All connections.
    pub const ALL: [Self; 3] = [Self::Control, Self::Log, Self::Bulk];

    /// Position in [`Self::ALL`], and the number on the wire.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Control => 0,
            Self::Log => 1,
            Self::Bulk => 2,
        }
    }

    /// The word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Log => "log",
            Self::Bulk => "bulk",
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Class of a stream. Each has its own limit, so that forwarded requests never use up the streams that repair
/// and snapshots need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamClass {
    /// A forwarded request of a client.
    Request,
    /// A snapshot or a copy of the cluster's own.
    Transfer,
    /// Appends to an open segment.
    Append,
}

impl StreamClass {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Request, Self::Transfer, Self::Append];

    /// Position in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Request => 0,
            Self::Transfer => 1,
            Self::Append => 2,
        }
    }

    /// The connection of its streams.
    #[must_use]
    pub const fn channel(self) -> Channel {
        match self {
            Self::Request | Self::Transfer => Channel::Bulk,
            Self::Append => Channel::Log,
        }
    }

    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Transfer => "transfer",
            Self::Append => "append",
        }
    }

    /// Returns the class with this word.
    pub(crate) fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name().as_bytes() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::{Channel, StreamClass};

    #[test]
    fn indexes_are_positions() {
        for (at, channel) in Channel::ALL.into_iter().enumerate() {
            assert_eq!(channel.index(), at);
        }
        for (at, class) in StreamClass::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), at);
            assert_eq!(StreamClass::of_name(class.name().as_bytes()), Some(class));
        }
        assert_eq!(StreamClass::of_name(b"other"), None);
    }
}
