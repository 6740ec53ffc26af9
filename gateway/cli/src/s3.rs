//! Commands over S3: `mlgw ls`, `mlgw cp`, `mlgw cat`, `mlgw du`.
//!
//! They use the S3 API of a server and its rights, as every other S3 client does. Listings and bodies are
//! streamed, so the memory of a command depends on neither the number of keys nor the size of an object.

mod body_check;
pub(crate) mod cat;
mod client;
pub(crate) mod cp;
pub(crate) mod du;
mod failure;
mod listing;
pub(crate) mod ls;
mod path;
mod range;
mod reader;
mod size;
mod target;
mod xml;
