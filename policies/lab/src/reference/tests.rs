//! Tests of the references against the hit ratios of this project's reference simulator, and of properties
//! that hold for each of them on any trace.

mod properties;
mod python;
mod speed;
mod table;
mod traces;
