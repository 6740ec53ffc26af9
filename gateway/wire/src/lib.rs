//! The S3 wire format: errors, XML, operations, headers, targets and ranges.

pub mod object_errors;
pub mod elements;
pub mod lanes;
pub mod access;
pub mod target;
pub mod origin_headers;
pub mod error;
pub mod operation;
pub mod tags;
pub mod copy_source;
pub mod checksums;
pub mod values;
pub mod xml;
pub mod headers;
pub mod range;
pub mod query;
