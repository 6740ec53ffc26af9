//! Connections that send nothing after the permission to send has ended.
//!
//! A request that is given up may be in four places: in the buffers of the client, of TLS, of the kernel, and
//! at the server. From the first two nothing is written to the socket without the permission. When it ends,
//! the connection is closed, always by a reset, so that the kernel drops what it has not sent. A process that
//! is stopped cannot close: then the kernel gives up what is not acknowledged for a limited time.
//!
//! Nothing is kept on disk: after a power failure nothing is sent.

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// Future of a connection.
pub(crate) type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Future that resolves when a permission has ended.
pub type PermitEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Permission to send.
pub trait SendPermit: Debug + Send + Sync + 'static {
    /// True while bytes may be sent.
    fn holds(&self) -> bool;

    /// Waits until no bytes may be sent.
    fn ended(&self) -> PermitEnd;
}

/// Permission of the connections of a client.
#[derive(Clone, Debug)]
pub struct SendGuard {
    /// The permission.
    pub permit: Arc<dyn SendPermit>,
    /// Time after which the kernel gives up bytes that the server has not acknowledged.
    pub send_max: Duration,
}

/// Makes connections, guarded if there is a permission.
#[derive(Clone, Debug)]
pub(crate) struct GuardedConnector {
    http: HttpConnector,
    guard: Option<SendGuard>,
}

impl GuardedConnector {
    pub(crate) fn new(mut http: HttpConnector, guard: Option<SendGuard>) -> Self {
        http.set_tcp_user_timeout(guard.as_ref().map(|guard| guard.send_max));
        Self { http, guard }
    }
}

impl Service<Uri> for GuardedConnector {
    type Response = ClientStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (connecting, guard) = (self.http.call(target), self.guard.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            if guard.is_some() {
                stream.inner().set_zero_linger()?;
            }
            let guard = guard.map(|guard| StreamGuard::new(guard.permit));
            Ok(ClientStream { stream, guard, is_forwarded: false })
        })
    }
}

/// A connection.
pub(crate) struct ClientStream<T> {
    stream: T,
    guard: Option<StreamGuard>,
    /// True if a proxy reads each request and forwards it: its first line then has the whole URL.
    is_forwarded: bool,
}

/// Permission of a connection, which ends once and for ever.
struct StreamGuard {
    permit: Arc<dyn SendPermit>,
    ended: PermitEnd,
    has_ended: bool,
}

impl StreamGuard {
    fn new(permit: Arc<dyn SendPermit>) -> Self {
        Self { ended: permit.ended(), permit, has_ended: false }
    }

    /// Checks the permission, immediately before bytes are written.
    fn check(&mut self) -> io::Result<()> {
        self.has_ended |= !self.permit.holds();
        match self.has_ended {
            true => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the permission to send has ended")),
            false => Ok(()),
        }
    }

    /// Registers a writer that waits for the socket, so that the end of the permission wakes it.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.has_ended |= self.ended.as_mut().poll(cx).is_ready();
        self.check()
    }
}

impl<T> ClientStream<T> {
    /// Wraps a connection to a proxy, or through its tunnel. What it sends needs no further permission.
    pub(crate) const fn of_proxy(stream: T, is_forwarded: bool) -> Self {
        Self { stream, guard: None, is_forwarded }
    }
}

impl<T: Unpin> ClientStream<T> {
    /// Writes by `write`, as long as that is permitted.
    fn poll_permitted<R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let Self { stream, guard, .. } = self.get_mut();
        let Some(guard) = guard else { return write(Pin::new(stream), cx) };
        guard.check()?;
        let written = write(Pin::new(stream), cx);
        if written.is_pending() {
            guard.poll_ended(cx)?;
        }
        written
    }
}

impl<T: Connection> Connection for ClientStream<T> {
    fn connected(&self) -> Connected {
        let connected = self.stream.connected();
        if self.is_forwarded { connected.proxy(true) } else { connected }
    }
}

impl<T: Read + Unpin> Read for ClientStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for ClientStream<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_permitted(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_permitted(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, guard, .. } = self.get_mut();
        match guard {
            None => Pin::new(stream).poll_shutdown(cx),
            // An orderly end would follow the bytes that the kernel still has. A reset follows when the
            // connection is dropped.
            Some(_) => Poll::Ready(Ok(())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_permitted(cx, |stream, cx| stream.poll_write_vectored(cx, slices))
    }
}

#[cfg(test)]
mod tests {
    use super::{PermitEnd, SendGuard, SendPermit};
    use crate::{Authorities, Client, ClientSettings, SendError};
    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use mlgw_common::time::timeout;
    use std::io::ErrorKind;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;

    const SEND_MAX: Duration = Duration::from_secs(1);
    /// Longest wait, which is reached only if something is broken. Without a limit a kernel waits longer.
    const WAIT_MAX: Duration = Duration::from_mins(1);
    /// More than the kernels of both sides take.
    const LONG_BODY_BYTES: usize = 32 << 20;

    /// A permission that a test ends.
    #[derive(Debug)]
    struct TestPermit(watch::Sender<bool>);

    impl SendPermit for TestPermit {
        fn holds(&self) -> bool {
            *self.0.borrow()
        }

        fn ended(&self) -> PermitEnd {
            let mut states = self.0.subscribe();
            Box::pin(async move {
                let ended = states.wait_for(|holds| !holds).await;
                assert!(ended.is_ok(), "the permission outlives its connections");
            })
        }
    }

    struct Bench {
        permit: Arc<TestPermit>,
        listener: TcpListener,
        client: Client<Full<Bytes>>,
        url: String,
    }

    impl Bench {
        async fn new() -> Self {
            let permit = Arc::new(TestPermit(watch::Sender::new(true)));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let settings = ClientSettings {
                authorities: Authorities::None,
                proxy: None,
                connect_timeout: WAIT_MAX,
                idle_timeout: WAIT_MAX,
            };
            let guard = SendGuard { permit: permit.clone(), send_max: SEND_MAX };
            let client = Client::guarded(&settings, guard).unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            Self { permit, listener, client, url }
        }

        async fn put(&self, bytes: usize) -> Result<(), SendError> {
            let body = Full::new(Bytes::from(vec![7; bytes]));
            let request = Request::put(&self.url).body(body).unwrap();
            self.client.send(request).await.map(drop)
        }

        /// Accepts a connection and reads the first bytes of a request.
        async fn accept(&self) -> TcpStream {
            let (mut stream, _) = self.listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 100]).await.unwrap();
            stream
        }
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_socket_is_cut_and_its_connection_reset() {
        let bench = Bench::new().await;
        let server = async {
            let stream = bench.accept().await;
            bench.permit.0.send_replace(false);
            stream
        };
        let (sent, mut stream) = tokio::join!(bench.put(LONG_BODY_BYTES), server);
        assert!(matches!(sent, Err(SendError::Broken(_))), "{sent:?}");
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(rest.len() < LONG_BODY_BYTES);
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_resets_its_connection() {
        let bench = Bench::new().await;
        let put = bench.put(1000);
        let mut stream = tokio::select! {
            _ = put => unreachable!("nothing answers"),
            stream = bench.accept() => stream,
        };
        // The future of the request is dropped now.
        let end = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn nothing_is_sent_without_the_permission() {
        let bench = Bench::new().await;
        bench.permit.0.send_replace(false);
        assert!(bench.put(10).await.is_err());
        let (mut stream, _) = bench.listener.accept().await.unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        assert_eq!(received, b"");
    }

    #[tokio::test]
    async fn the_kernel_gives_up_what_is_not_acknowledged() {
        let bench = Bench::new().await;
        // Nothing is read from the connection, and the permission holds.
        let put = timeout(WAIT_MAX, bench.put(LONG_BODY_BYTES));
        let (put, stream) = tokio::join!(put, bench.accept());
        assert!(matches!(put.expect("it is given up"), Err(SendError::Broken(_))));
        drop(stream);
    }
}
