//! A test origin with wrong responses: an S3 store in memory that has one fault at a time, or none and
//! unusual ETags or times.
//!
//! It implements the part of S3 that a remote-backed bucket uses, over HTTP/1.1, with a thread for each
//! connection. The test that started it can read the stored objects directly. Nothing is kept on disk.

mod dispatch;
mod http;
mod reads;
mod response_fault;
mod store;
mod uploads;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use bytes::Bytes;

pub(crate) use response_fault::{FaultOperation, RESPONSE_FAULTS, ResponseFault};
pub(crate) use store::OriginNaming;
use store::OriginState;

/// A running origin. Its threads end with their connections.
pub(crate) struct FaultyOrigin {
    pub(crate) addr: SocketAddr,
    shared: Arc<FaultyOriginShared>,
}

/// State that the threads share.
struct FaultyOriginShared {
    store: Mutex<OriginState>,
}

impl FaultyOriginShared {
    fn store(&self) -> MutexGuard<'_, OriginState> {
        self.store.lock().expect("lock is not poisoned")
    }
}

impl FaultyOrigin {
    /// Starts an origin with this naming scheme. It responds correctly.
    pub(crate) fn start(manner: OriginNaming) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(FaultyOriginShared { store: Mutex::new(OriginState::new(manner)) });
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                thread::spawn(move || http::serve(stream, |request| dispatch::answer(&shared, request)));
            }
        });
        Self { addr, shared }
    }

    /// Sets the fault for further responses, or none.
    pub(crate) fn set_fault(&self, lie: Option<ResponseFault>) {
        let mut store = self.shared.store();
        (store.fault, store.fault_count) = (lie, 0);
    }

    /// Returns the number of wrong responses since the fault was set.
    pub(crate) fn fault_count(&self) -> usize {
        self.shared.store().fault_count
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
