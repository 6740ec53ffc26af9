//! Batches: the commands of one log entry, decoded for applying and encoded for the log.
//!
//! In the encoding each command is its length (32 bits, little-endian) and its bytes.

use crate::command::{Change, Command, Reject, Reply, TagBatch};
use crate::format_error::FormatError;
use bytes::Bytes;
use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// The commands of a log entry.
#[derive(Clone)]
pub struct Batch {
    /// The commands, in order.
    pub commands: Vec<Arc<Command>>,
    /// The same commands, encoded.
    pub encoded: Bytes,
}

impl Batch {
    /// Decodes the commands in `encoded`.
    ///
    /// # Errors
    /// Returns an error if `encoded` is not a batch, or a command has fields that this version does not know
    /// ([`FormatError::is_of_later_version`]).
    pub fn decode(encoded: Bytes) -> Result<Self, FormatError> {
        let cut = || FormatError("a batch of commands is truncated".into());
        let mut commands = Vec::new();
        let mut rest = &encoded[..];
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            let length = u32::from_le_bytes(*length) as usize;
            let (command, after) = after.split_at_checked(length).ok_or_else(cut)?;
            let bytes = command;
            let command = Command::decode(bytes).map_err(|error| FormatError(error.to_string()))?;
            // A command without its unknown fields would have another effect than on other members.
            if command.encoded_len() != bytes.len() {
                return Err(FormatError::later_command());
            }
            commands.push(Arc::new(command));
            rest = after;
        }
        Ok(Self { commands, encoded })
    }

    /// The tag with which the batch ends, if it has one.
    #[must_use]
    pub fn tag(&self) -> Option<TagBatch> {
        match self.commands.last()?.change {
            Some(Change::TagBatch(tag)) => Some(tag),
            _ => None,
        }
    }
}

/// Appends a command to a batch's encoding. Panics if the command is 4 GiB or longer.
pub fn encode_into(command: &Command, into: &mut Vec<u8>) {
    let length = command.encoded_len();
    assert!(u32::try_from(length).is_ok(), "a command is shorter than 4 GiB");
    into.reserve(length + 4);
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    into.extend_from_slice(&(length as u32).to_le_bytes());
    command.encode_raw(into);
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands", self.commands.len())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands", self.commands.len())
    }
}

impl Serialize for Batch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.encoded)
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded = Vec::<u8>::deserialize(deserializer)?;
        Self::decode(encoded.into()).map_err(serde::de::Error::custom)
    }
}

/// Outcomes of the commands of an entry, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcomes(pub Vec<Result<Reply, Reject>>);
