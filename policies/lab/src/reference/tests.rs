//! Tests of the references on the traces of the published table, and of properties that hold for each of
//! them on any trace.

mod properties;
mod python;
mod speed;
mod table;
mod traces;
