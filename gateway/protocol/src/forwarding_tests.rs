//! Forwarded requests from end to end: a client over TCP, the edge of a node that stores nothing, streams in
//! this process with real bytes and flow control, and the gateway of a member over a real store.

mod client;
mod cluster;
mod failures;
mod network;
mod one_hop;
mod requests;
mod streaming;
