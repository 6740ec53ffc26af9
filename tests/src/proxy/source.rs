//! The reading side of a connection: a socket and what was read of it and not yet used.
//!
//! Reading is cancel-safe: whoever stops waiting loses no byte, the next one finds it here.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::head::Head;

/// What is read at once. Enough to make the system calls cheap beside the copies, and little enough that what
/// was read is still in the processor's cache when it is written.
pub(super) const BUFFER_BYTES: usize = 128 << 10;

/// What stands between a head and its body.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// One of the two that the proxy talks to.
pub(super) struct Peer {
    pub(super) from: Source,
    pub(super) to: OwnedWriteHalf,
}

impl Peer {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (reader, to) = stream.into_split();
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Ok(Self { from: Source { reader, buffer, start: 0, end: 0 }, to })
    }
}

pub(super) struct Source {
    reader: OwnedReadHalf,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Source {
    /// What was read and not used.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    pub(super) fn use_up(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "only what was read can be used");
    }

    /// Reads more; 0 when there is no more to come.
    ///
    /// # Errors
    /// The connection broke, or the buffer is full.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more than a buffer of it"));
        }
        let read = self.reader.read(&mut self.buffer[self.end..]).await?;
        self.end += read;
        Ok(read)
    }

    /// The next head; none when the other side closed before one began.
    ///
    /// # Errors
    /// It ended in the middle, or is none.
    pub(super) async fn head(&mut self) -> io::Result<Option<Head>> {
        let mut looked_at = 0;
        loop {
            let unseen = &self.bytes()[looked_at..];
            if let Some(at) = unseen.windows(HEAD_END.len()).position(|window| window == HEAD_END) {
                let length = looked_at + at + HEAD_END.len();
                let head = Head::new(self.bytes()[..length].to_vec())?;
                self.use_up(length);
                return Ok(Some(head));
            }
            // The end may come in two halves.
            looked_at = self.bytes().len().saturating_sub(HEAD_END.len() - 1);
            if self.fill().await? == 0 {
                return if self.bytes().is_empty() { Ok(None) } else { Err(ended()) };
            }
        }
    }

    /// Returns when the other side has hung up, as who sends no more has; what comes before is kept.
    pub(super) async fn hung_up(&mut self) {
        // Bytes are the next request, ahead of its time: who sends one is there.
        if let Ok(1..) = self.fill().await {
            std::future::pending::<()>().await;
        }
    }
}

/// The other side closed in the middle of something.
pub(super) fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed in the middle of a message")
}
