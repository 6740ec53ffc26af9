//! What a policy is measured against before it is let loose: reference caches and the offline optimum.
//!
//! Everything is a function of its input: the same accesses give the same hits on every machine, and what is random comes from a
//! seed that the caller names. Nothing here takes part in serving: the references exist to be beaten.

pub mod blocks;
pub mod reference;
