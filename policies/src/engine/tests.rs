//! The engine on generated workloads, beside references; and its books on any accesses.

mod books;
mod cost;
mod folders;
mod found;
pub(super) mod kept;
mod orders;
mod ranks;
mod recent;
mod recycling;
mod released;
mod same;
