//! An access key in memory: whose it is, what it may do, and its secret.

use crate::principal::Principal;
use mlgw_common::Secret;
use std::sync::Arc;

/// An access key that may sign requests.
#[derive(Clone, Debug)]
pub struct Key {
    /// Whose it is and what it may do.
    pub principal: Arc<Principal>,
    /// What it signs with.
    pub secret: Secret,
}
