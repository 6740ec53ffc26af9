//! Object stores of others: whole segments spilled to them, and buckets of theirs that are fronted here.

mod budget;
mod gate;
mod settings;

pub use budget::Budget;
pub use gate::{Gate, Load, Pass};
pub use settings::{Addressing, CredentialSource, UpstreamKind, UpstreamSettings};
