//! A test origin with wrong responses: an S3 store in memory that has one fault at a time, or none and
//! unusual ETags or times.
//!
//! It implements the part of S3 that a remote-backed bucket uses, over HTTP/1.1, with a thread for each
//! connection. The test that started it can read the stored objects directly. Nothing is kept on disk.

mod answers;
mod http;
mod lie;
mod reads;
mod store;
mod uploads;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use bytes::Bytes;

pub(crate) use lie::{LIES, Lie, On};
pub(crate) use store::Manner;
use store::Store;

/// A running origin. Its threads end with their connections.
pub(crate) struct LyingOrigin {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

/// State that the threads share.
struct Shared {
    store: Mutex<Store>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no panic while held")
    }
}

impl LyingOrigin {
    /// Starts an origin with this naming scheme. It responds correctly.
    pub(crate) fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { store: Mutex::new(Store::new(manner)) });
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                thread::spawn(move || http::serve(stream, |request| answers::answer(&shared, request)));
            }
        });
        Self { addr, shared }
    }

    /// Sets the fault for further responses, or none.
    pub(crate) fn lie(&self, lie: Option<Lie>) {
        let mut store = self.shared.store();
        (store.lie, store.lies_told) = (lie, 0);
    }

    /// Returns the number of wrong responses since the fault was set.
    pub(crate) fn lies_told(&self) -> usize {
        self.shared.store().lies_told
    }

    /// Returns the stored bytes of a key.
    pub(crate) fn get(&self, key: &str) -> Option<Bytes> {
        self.shared.store().objects.get(key).map(|object| object.bytes.clone())
    }

    /// Stores an object directly, without a request.
    pub(crate) fn put(&self, key: &str, bytes: Bytes) {
        self.shared.store().put(key, bytes, Vec::new(), None);
    }

    /// Returns the keys of open uploads, with their ids.
    pub(crate) fn uploads(&self) -> Vec<(String, String)> {
        let store = self.shared.store();
        store.uploads.iter().map(|(id, upload)| (upload.key.clone(), id.clone())).collect()
    }

    /// Creates an upload directly, without a request.
    pub(crate) fn begin_upload(&self, key: &str) -> String {
        self.shared.store().begin(key, Vec::new())
    }

    /// Returns the requests (as `GET bytes=0-9`) and the body bytes of responses since the last call.
    pub(crate) fn take_log(&self) -> (Vec<String>, u64) {
        let mut store = self.shared.store();
        (std::mem::take(&mut store.log), std::mem::take(&mut store.sent_bytes))
    }
}
