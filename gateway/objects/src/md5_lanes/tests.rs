//! Digests are those of a library that hashes one stream at a time; the schedule keeps its word.

mod digests;
mod model;
mod streams;
