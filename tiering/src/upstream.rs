//! Object stores of others: whole segments spilled to them, and buckets of theirs that are fronted here.

mod settings;

pub use settings::{Addressing, CredentialSource, UpstreamKind, UpstreamSettings};
