//! Reference caches beside those that a server simulates ([`mlgw_policies::reference`]), and the offline
//! optimum.

mod class_aware;
mod epoch_hazard;
mod optimum;
mod sieve;
#[cfg(test)]
mod tests;

pub use class_aware::{BlockClass, ClassAwareCache};
pub use epoch_hazard::EpochHazard;
pub use optimum::{Event, OptimumOutcome, optimum};
pub use sieve::Sieve;
