//! Laboratory for policies: validation, examination on keys, and simulation of caches.

pub mod rehearsal;
