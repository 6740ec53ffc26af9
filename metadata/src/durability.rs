//! Durability of what the catalogue and the segments acknowledge.

/// Point at which a command counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The log entry was synced: the command survives power loss.
    #[default]
    Full,
    /// The log entry was written: the command survives the end of the process, not a power loss.
    Os,
}
