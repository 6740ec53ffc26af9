//! Tests against a library that hashes one stream at a time, and of the schedule against a model.

mod digests;
mod model;
mod streams;
