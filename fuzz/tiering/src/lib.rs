//! What the configuration says of upstreams, and the lanes of disks, compiled from its own file without what uses it.
#![allow(dead_code, reason = "settings without their users")]

#[path = "../../../tiering/src/upstream"]
pub mod upstream {
    mod settings;

    pub use settings::{Addressing, CredentialSource, UpstreamKind, UpstreamSettings};
}

#[path = "../../../tiering/src/fair"]
pub mod fair {
    mod lane;

    pub use lane::Lane;
}

pub use fair::Lane;
