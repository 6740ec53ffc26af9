//! The S3 wire format: errors, XML, operations, headers, targets and ranges.

pub mod access;
pub mod checksums;
pub mod copy_source;
pub mod elements;
pub mod error;
pub mod headers;
pub mod lanes;
#[cfg(feature = "objects")]
pub mod object_errors;
pub mod operation;
pub mod origin_headers;
pub mod query;
pub mod range;
pub mod split_keys;
pub mod tags;
pub mod target;
pub mod values;
pub mod xml;
pub mod xml_input;
