//! An access key in memory: whose it is, what it may do, and its secret.

use super::Principal;
use mlgw_common::Secret;
use std::sync::Arc;

/// The owner of everything: one account, whose keys differ in their rights only.
pub const OWNER: &str = "b8f6e9d1a4c37205eb90d5c64f3a1e7728c0b9f5d6e3a184907f2c5b1d8e6a43";

/// An access key that may sign requests.
#[derive(Clone, Debug)]
pub struct Key {
    /// Whose it is and what it may do.
    pub principal: Arc<Principal>,
    /// What it signs with.
    pub secret: Secret,
}
