//! Data of the Raft log: entries, the commands in them, votes, memberships. Property: data that decodes is
//! encoded to bytes that decode to the same value.

use crate::log as inner;

/// The first byte selects the kind of data.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let _ = match kind % 3 {
        0 => inner::log_entry(7, bytes),
        1 => inner::commands(bytes),
        _ => inner::vote_and_membership(bytes),
    };
}
