//! Lingers on a connection that the server ends, so that its client can read the last answer.
//!
//! A socket that is closed with unread bytes, or that receives bytes after its close, answers with a reset,
//! and the client's system may then discard an answer that its program has not read yet. Therefore the server
//! first shuts down its sending side, then reads and drops further bytes until the client closes its side
//! too. The silence and the total time are bounded. No memory is used.

use super::scratch::{SCRATCH_BYTES, read_some};
use mlgw_common::time::timeout;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// Silence that ends the lingering: the client has read its answer or never will. nginx has the same limit.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Maximum time of lingering, regardless of the bytes that arrive. nginx has the same limit.
const LINGER_MAX: Duration = Duration::from_secs(30);
/// Shuts down the sending side, then reads and drops bytes until the client closes its side too.
pub(super) async fn linger(io: impl AsyncRead + AsyncWrite + Unpin) {
    linger_within(io, SILENCE_MAX, LINGER_MAX).await;
}

async fn linger_within(mut io: impl AsyncRead + AsyncWrite + Unpin, silence: Duration, all: Duration) {
    let lingering = async {
        io.shutdown().await?;
        while timeout(silence, read_some(&mut io, SCRATCH_BYTES, |_| ())).await.unwrap_or(Ok(0))? > 0 {}
        Ok::<_, io::Error>(())
    };
    // The connection is over after any outcome.
    let _ = timeout(all, lingering).await;
}

#[cfg(test)]
mod tests {
    use super::{SCRATCH_BYTES, linger, linger_within};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_answer_can_be_read_while_the_client_still_sends() {
        let (mut client, mut server) = tokio::io::duplex(1024);
        server.write_all(b"the answer").await.unwrap();
        let lingering = tokio::spawn(linger(server));
        let much = vec![7; 3 * SCRATCH_BYTES];
        client.write_all(&much).await.unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "the answer");
        drop(client);
        lingering.await.unwrap();
    }

    #[tokio::test]
    async fn silence_ends_the_lingering() {
        let (client, server) = tokio::io::duplex(1024);
        linger_within(server, Duration::from_millis(1), LONG).await;
        drop(client);
    }

    #[tokio::test]
    async fn a_client_that_never_stops_sending_is_closed_after_the_time_limit() {
        let (mut client, server) = tokio::io::duplex(1024);
        let sends = async { while client.write_all(b"more").await.is_ok() {} };
        tokio::join!(linger_within(server, LONG, Duration::from_millis(20)), sends);
    }
}
