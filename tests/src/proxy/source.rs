//! The reading side of a connection: a socket, and the bytes that were read from it and not yet used.
//!
//! Reading is cancel-safe: a cancelled wait loses no byte; the next read finds it in the buffer.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::head::MessageHead;

/// Maximum bytes of one read. Large enough to make the system calls cheap beside the copies, and small enough
/// that the bytes are still in the processor's cache when they are written.
pub(super) const BUFFER_BYTES: usize = 128 << 10;

/// The separator between a head and its body.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A side of the proxy: the client or the origin.
pub(super) struct ProxyPeer {
    pub(super) from: BufferedSource,
    pub(super) to: OwnedWriteHalf,
}

impl ProxyPeer {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (reader, to) = stream.into_split();
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Ok(Self { from: BufferedSource { reader, buffer, start: 0, end: 0 }, to })
    }
}

pub(super) struct BufferedSource {
    reader: OwnedReadHalf,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl BufferedSource {
    /// The bytes that were read and not used.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "only bytes already read can be consumed");
    }

    /// Reads more bytes and returns their number; 0 at the end of the stream.
    ///
    /// # Errors
    /// The connection broke, or the buffer is full.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message larger than the buffer"));
        }
        let read = self.reader.read(&mut self.buffer[self.end..]).await?;
        self.end += read;
        Ok(read)
    }

    /// The next head; `None` if the other side closed before one began.
    ///
    /// # Errors
    /// The head ended prematurely, or is invalid.
    pub(super) async fn head(&mut self) -> io::Result<Option<MessageHead>> {
        let mut scanned = 0;
        loop {
            let unseen = &self.bytes()[scanned..];
            if let Some(at) = unseen.windows(HEAD_END.len()).position(|window| window == HEAD_END) {
                let length = scanned + at + HEAD_END.len();
                let head = MessageHead::new(self.bytes()[..length].to_vec())?;
                self.consume(length);
                return Ok(Some(head));
            }
            // The separator may arrive in two parts.
            scanned = self.bytes().len().saturating_sub(HEAD_END.len() - 1);
            if self.fill().await? == 0 {
                return if self.bytes().is_empty() { Ok(None) } else { Err(eof_error()) };
            }
        }
    }

    /// Returns when the other side has closed the connection, including a close of its sending side only;
    /// bytes that arrive before are kept.
    pub(super) async fn closed(&mut self) {
        // Bytes belong to the next, pipelined request, so the other side is still connected.
        if let Ok(1..) = self.fill().await {
            std::future::pending::<()>().await;
        }
    }
}

/// The error for a close in the middle of a message.
pub(super) fn eof_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed in the middle of a message")
}
