//! What the configuration says of upstreams, compiled from its own file without what uses it.
#![allow(dead_code, reason = "settings without their users")]

#[path = "../../../tiering/src/upstream"]
pub mod upstream {
    mod settings;

    pub use settings::{Addressing, CredentialSource, UpstreamKind, UpstreamSettings};
}
