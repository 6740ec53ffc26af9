//! An origin with wrong answers, for tests: an S3 store in memory that is wrong in one way at a time; and
//! correct ones whose ETags or times are unusual.
//!
//! It implements as much of S3 as a bound bucket needs, over HTTP/1.1, with a thread for each connection. The
//! test that started it can read what it really has. Nothing is kept on disk.

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

/// What its threads share.
struct Shared {
    store: Mutex<Store>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no panic while held")
    }
}

impl LyingOrigin {
    /// Starts one with this manner. It answers truthfully.
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

    /// From now on it lies in this way, or not at all.
    pub(crate) fn lie(&self, lie: Option<Lie>) {
        let mut store = self.shared.store();
        (store.lie, store.lies_told) = (lie, 0);
    }

    /// How often it has lied since lying was switched on.
    pub(crate) fn lies_told(&self) -> usize {
        self.shared.store().lies_told
    }

    /// What it really has.
    pub(crate) fn get(&self, key: &str) -> Option<Bytes> {
        self.shared.store().objects.get(key).map(|object| object.bytes.clone())
    }

    /// Puts an object there, past everybody.
    pub(crate) fn put(&self, key: &str, bytes: Bytes) {
        self.shared.store().put(key, bytes, Vec::new(), None);
    }

    /// The keys of uploads that have not ended, with their ids.
    pub(crate) fn uploads(&self) -> Vec<(String, String)> {
        let store = self.shared.store();
        store.uploads.iter().map(|(id, upload)| (upload.key.clone(), id.clone())).collect()
    }

    /// Begins an upload there, past everybody.
    pub(crate) fn begin_upload(&self, key: &str) -> String {
        self.shared.store().begin(key, Vec::new())
    }

    /// Requests and bytes of bodies that it answered since the last call: `GET bytes=0-9`, and so on.
    pub(crate) fn take_log(&self) -> (Vec<String>, u64) {
        let mut store = self.shared.store();
        (std::mem::take(&mut store.log), std::mem::take(&mut store.sent_bytes))
    }
}
