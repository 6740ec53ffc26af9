//! Fuzz targets for every decoder of bytes that mlgw did not just write itself.
//!
//! The decoders are compiled from their own files, without what uses them: no server, no store, no
//! RocksDB. Nothing in the program knows of this; a decoder that comes to need more than it should
//! no longer compiles here. A target takes any bytes. It fails when a decoder panics, and when one
//! of the properties does not hold that stand beside each target.
#![allow(
    dead_code,
    unused_imports,
    unfulfilled_lint_expectations,
    reason = "decoders without their users, and without the lints of their crates"
)]

#[path = "../../gateway/src"]
mod gateway {
    pub mod auth;
    pub mod body;
    pub mod config;
    pub mod query;

    pub mod credentials {
        mod key;
        pub mod principal;

        pub use key::{Key, OWNER};
        pub use mlgw_common::Secret;
        pub use principal::{Action, BadGlob, Principal};
    }

    pub mod writeback {
        pub mod record;
    }

    pub mod s3 {
        pub mod bound {
            mod onward;

            use mlgw_formats::schema::Binding;
            use mlgw_remote::origin::ListLine;
            use onward::Onward;

            /// The name behind which there is nothing of a group.
            pub fn behind_group(group: &str) -> String {
                format!("{group}{}", onward::LAST_CHARACTER)
            }

            /// What a token says of going on.
            pub fn onward(last: Option<&ListLine>, token: &str, binding: &Binding) -> String {
                Onward::behind(last, token.to_owned(), binding).text()
            }

            /// What an origin is asked with then.
            pub fn open(text: &str, binding: &Binding, start_after: &str) -> (String, Option<String>) {
                Onward::open(Some(text.to_owned()), binding, start_after.to_owned())
            }
        }
        pub mod copy_source;
        pub mod elements;
        pub mod error;
        pub mod form;
        pub mod headers;
        pub mod lanes;
        pub mod operation;
        pub mod range;
        pub mod target;
        pub mod values;
        pub mod xml;
    }
}

#[path = "../../tiering/src"]
mod tiering {
    pub mod hot {
        pub mod header;
        pub mod payload;
        pub mod record;
        pub mod zstd;
    }
}

use gateway::{auth, body, config, credentials, query, s3, writeback};
use tiering::hot;

mod input;
mod signing;
pub mod targets;
