//! Copies on real files.
