//! Tests of transports over loopback, with real TLS: each test starts nodes of a cluster of its own.

mod appends;
mod calls;
mod exclusive;
mod joins;
mod multiplexed;
mod nodes;
mod reconnects;
mod refusals;
mod stops;
mod strangers;
mod streams;
mod time_limits;
