//! Tests of the encodings, the router, the gate and the forwarder over scripted members.

mod encodings;
mod forwarding;
mod gates;
mod members;
mod routes;
