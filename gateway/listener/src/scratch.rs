//! Reads from a connection into a buffer that all connections of a thread share. The bytes are consumed
//! within the same poll, so a connection needs no buffer of its own.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use tokio::io::{AsyncRead, ReadBuf};

/// Maximum number of bytes of one read.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// Reads at most `max` bytes and passes them to `take`. Returns their number, or 0 at the end of the stream.
pub(super) async fn read_some(
    io: &mut (impl AsyncRead + Unpin),
    max: usize,
    mut take: impl FnMut(&[u8]),
) -> io::Result<usize> {
    assert!(max > 0, "a read of no bytes looks like the end of the connection");
    poll_fn(|cx| {
        SCRATCH.with_borrow_mut(|bytes| {
            let mut buffer = ReadBuf::new(&mut bytes[..max.min(SCRATCH_BYTES)]);
            match Pin::new(&mut *io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => {
                    take(buffer.filled());
                    Poll::Ready(Ok(buffer.filled().len()))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            }
        })
    })
    .await
}
