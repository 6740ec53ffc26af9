//! S3 clients written in Rust, configured as their users configure them: the AWS SDK and `object_store`.
//!
//! Each client stores and reads back the same load over HTTP and, smaller, over HTTPS with a certificate that
//! it is configured to trust. Clients written in Python, and programs, are tested in `tests/clients`.

mod aws_sdk;
mod object_store;

use crate::content::TestContent;
use crate::server::{ServerProcess, ServerSetup};

const MIB: usize = 1 << 20;

/// Amount of data that one client stores and reads back.
#[derive(Clone, Copy, Debug)]
struct ClientLoad {
    large_bytes: usize,
    small_objects: u64,
}

impl ClientLoad {
    fn large(self) -> TestContent {
        TestContent { id: 1, length: self.large_bytes }
    }

    /// Keys and bodies of many small objects: nested names, sizes from 0 bytes to some KiB.
    fn small(self) -> impl Iterator<Item = (String, TestContent)> {
        (0..self.small_objects).map(|number| {
            let length = usize::try_from(number * 37 % 4096).expect("small");
            (format!("many/{}/object-{number:05}", number % 7), TestContent { id: 100 + number, length })
        })
    }
}

/// A running server and the address at which a client reaches it.
struct ClientEndpoint {
    server: ServerProcess,
    url: String,
    /// PEM of the certificate to trust; `None` over HTTP.
    certificate: Option<String>,
    load: ClientLoad,
    _dir: tempfile::TempDir,
}

impl ClientEndpoint {
    fn http() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let server = ServerSetup::new(dir.path().join("data")).start();
        let load = ClientLoad { large_bytes: 64 * MIB, small_objects: 200 };
        Self { url: format!("http://{}", server.s3), server, certificate: None, load, _dir: dir }
    }

    fn https() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (certificate, key) = (dir.path().join("certificate.pem"), dir.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).expect("written");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
        let server = ServerSetup::new(dir.path().join("data"))
            .with("tls.cert", certificate.display())
            .with("tls.key", key.display())
            .start();
        let load = ClientLoad { large_bytes: 16 * MIB, small_objects: 20 };
        let certificate = Some(made.cert.pem());
        Self { url: format!("https://{}", server.s3), server, certificate, load, _dir: dir }
    }

    /// Stops the server; panics unless it exits cleanly.
    fn stop(self) {
        self.server.stop();
    }
}

fn assert_same(key: &str, expected: TestContent, body: &[u8]) {
    if let Some(difference) = expected.difference(body) {
        panic!("{key}: {difference}");
    }
}
