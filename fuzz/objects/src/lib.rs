//! The checksums of the object layer, compiled from their own file without what uses them.

#[path = "../../../gateway/objects/src/checksum.rs"]
pub mod checksum;
