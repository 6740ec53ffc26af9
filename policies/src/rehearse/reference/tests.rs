//! The references on the traces that the published table was measured on, and what holds for each of them on
//! any trace.

mod properties;
mod python;
mod speed;
mod table;
mod traces;
