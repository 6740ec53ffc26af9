//! Tests of copies of sealed segments: several nodes in one process, with directories of their own.

mod driving;
mod fetching;
mod serving;
mod sweeping;
mod testbed;
