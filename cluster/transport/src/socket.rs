//! TCP connections as TLS reads them: through a buffer.
//!
//! rustls reads at most 4 KiB at once, so a record of TLS would take up to five system calls. What is in the
//! buffer was not decrypted yet; nothing of it is used after the connection has failed.

use tokio::io::BufReader;
use tokio::net::TcpStream;

/// Room for what one system call reads: two records of TLS.
const READ_BYTES: usize = 32 << 10;

/// A TCP connection with buffered reads. Writes are passed on.
pub(crate) type Socket = BufReader<TcpStream>;

/// A connection that sends what is written without a delay.
///
/// # Errors
/// If the delay cannot be turned off.
pub(crate) fn without_delay(tcp: TcpStream) -> std::io::Result<Socket> {
    tcp.set_nodelay(true)?;
    Ok(BufReader::with_capacity(READ_BYTES, tcp))
}
