//! Tests of replicas of segments: several nodes in one process, with directories of their own.

mod appending;
mod driving;
mod fetching;
mod following;
mod owning;
mod reading;
mod recovering;
mod replacing;
mod serving;
mod sets;
mod sweeping;
mod testbed;
mod whole;
