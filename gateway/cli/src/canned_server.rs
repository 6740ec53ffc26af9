//! Server of unit tests. It answers each connection with the next of its responses and closes it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// A server with a number of responses.
pub(super) struct CannedServer {
    address: SocketAddr,
    /// Number of responses.
    responses: usize,
    requests: JoinHandle<Vec<String>>,
}

impl CannedServer {
    /// Starts a server of these responses. Each is written as it is, after the head of a request.
    pub(super) fn start(responses: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (listener.local_addr().unwrap(), responses.len());
        let answer = move |response: String| {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut head, mut piece) = (Vec::new(), [0; 1024]);
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                let length = stream.read(&mut piece).unwrap();
                if length == 0 {
                    return None;
                }
                head.extend_from_slice(&piece[..length]);
            }
            stream.write_all(response.as_bytes()).unwrap();
            Some(String::from_utf8(head).unwrap().to_ascii_lowercase())
        };
        let requests = std::thread::spawn(move || responses.into_iter().map_while(answer).collect());
        Self { address, responses: count, requests }
    }

    /// Returns the URL of this server.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the heads of all requests, in lower case. Panics unless every response was requested.
    pub(super) fn requests(self) -> Vec<String> {
        let responses = self.responses;
        let requests = self.received();
        assert_eq!(requests.len(), responses, "the client sent fewer requests: {requests:?}");
        requests
    }

    /// Returns the heads of the requests so far, in lower case.
    pub(super) fn received(self) -> Vec<String> {
        // A connection without a request ends the server. It is refused if all responses are sent.
        drop(TcpStream::connect(self.address));
        self.requests.join().unwrap()
    }
}

/// Returns a response. Its body may be shorter than its `Content-Length`.
pub(super) fn response(status: &str, headers: &[(&str, &str)], body: &str) -> String {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{lines}\r\n{body}")
}
