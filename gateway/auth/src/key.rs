//! An access key in memory: its principal and its secret.

use crate::principal::Principal;
use mlgw_common::Secret;
use std::sync::Arc;

/// An access key that may sign requests.
#[derive(Clone, Debug)]
pub struct SigningAccessKey {
    /// Owner and permissions of the key.
    pub principal: Arc<Principal>,
    /// Secret that signs requests.
    pub secret: Secret,
}
