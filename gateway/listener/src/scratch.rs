//! Reads from a connection without memory of its own: what comes is used within the same poll, so all
//! connections of a thread share one place for it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use tokio::io::{AsyncRead, ReadBuf};

/// Most bytes that are read at once.
pub(super) const SCRATCH_BYTES: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// Reads at most `max` bytes and gives them to `take`; their number, 0 at the end.
pub(super) async fn read_some(
    io: &mut (impl AsyncRead + Unpin),
    max: usize,
    mut take: impl FnMut(&[u8]),
) -> io::Result<usize> {
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
