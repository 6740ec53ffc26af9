//! Access keys, their rights, and their sealed secrets.
//!
//! A plaintext secret exists only in memory, in a [`Secret`] that is wiped when dropped and never printed. A
//! stored secret is sealed under `secrets.key`, which is on stable media before the first secret is sealed
//! with it. A right is always checked against the names that a request was decoded to, never against its text
//! on the wire.

pub mod keyring;
pub mod quota;
pub mod sealer;

pub use key::SigningAccessKey;
pub use keyring::{ChangeKeyError, Keyring, OpenKeyringError, RootCredentials};
use mlgw_auth::key;
use mlgw_auth::principal;
pub use mlgw_common::Secret;
pub use principal::{BadGlob, Principal};
pub use sealer::{Sealer, SealerError};
