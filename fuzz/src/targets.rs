//! One module per target: the decoder that it runs, and the properties that always hold.

pub mod answers;
pub mod blocks;
pub mod bodies;
pub mod chunks;
pub mod copies;
pub mod decisions;
pub mod documents;
pub mod forms;
pub mod forwarded;
pub mod keys;
pub mod log_entries;
pub mod manifests;
pub mod member_calls;
pub mod peers;
pub mod policies;
pub mod proxies;
pub mod records;
pub mod requests;
pub mod rules;
pub mod segments;
pub mod settings;
pub mod signatures;
pub mod traces;
pub mod write_back;
