//! Hook by which the caller of an operation limits its rate, or ends it.

use std::io;
use std::pin::Pin;

/// Resolves when bytes may be read and sent, or with the error that ends the upload.
pub type ThrottleFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
/// Hook called with the number of bytes before they are read from the disk and sent, and with 0 while they
/// are read back. It waits, or ends the operation with an error.
pub type ThrottleHook<'a> = &'a mut (dyn FnMut(u64) -> ThrottleFuture + Send);
