//! A fault-injecting proxy between a gateway and an S3 origin: by rules it delays, drops, corrupts or cuts
//! off messages.
//!
//! The proxy speaks HTTP/1.1 without TLS. Messages that no rule changes pass byte for byte, including the
//! `Host` header, so that signatures stay valid; bodies stream through and are never stored. Each client
//! connection has one connection to the origin. A proxy runs on one thread of its own, so it works in tests
//! with and without a runtime, and all counters change in one order.
//!
//! ```text
//! let proxy = FaultProxy::start(origin.s3);
//! proxy.set_rules(vec![Rule::new(Fault::CutAnswer { after: 100 }).method("GET").times(1)]);
//! // ... a gateway that reads from proxy.addr() ...
//! assert_eq!(proxy.counters().by_method["GET"], 2);
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mlgw_common::time::sleep;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

mod answer;
mod connection;
mod control;
mod framing;
mod head;
mod relay;
mod rule;
mod rules;
mod shape;
mod source;
#[cfg(test)]
mod tests;
mod traffic;
pub mod units;

pub use rule::{Fault, Rule, RuleError};
pub use shape::TrafficShape;
pub use traffic::{Counters, LogLine};

use connection::Connection;
use rules::Rules;
use shape::Shaper;
use traffic::TrafficLog;

/// The pause after a connection that could not be accepted: file descriptors have run out, which is
/// temporary.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);

/// State shared by all connections of a proxy.
#[derive(Debug)]
struct ProxyState {
    origin: Mutex<SocketAddr>,
    rules: Mutex<Rules>,
    shaper: Shaper,
    traffic: Arc<TrafficLog>,
}

impl ProxyState {
    fn origin(&self) -> SocketAddr {
        *self.origin.lock().expect("lock is not poisoned")
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("lock is not poisoned")
    }
}

/// A running proxy; it stops and closes all its connections when it is dropped.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy before this origin, on a free port. It passes everything unchanged.
    ///
    /// # Panics
    /// If there is no free port or no thread can be started.
    #[must_use]
    pub fn start(origin: SocketAddr) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), origin).expect("a free port and a thread")
    }

    /// Starts a proxy that listens on this address.
    ///
    /// # Errors
    /// The address is in use, or no thread can be started.
    pub fn start_at(listen: SocketAddr, origin: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(ProxyState {
            origin: Mutex::new(origin),
            rules: Mutex::default(),
            shaper: Shaper::default(),
            traffic: Arc::default(),
        });
        // One thread: it is fast enough for any rate of the loopback interface, and needs no wake-ups to hand
        // work over.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listener, shared.clone());
        let thread = thread::Builder::new().name("fault-proxy".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = serving => {}
                }
            });
        })?;
        Ok(Self { addr, shared, runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Opens a control port and returns its address.
    ///
    /// # Errors
    /// The address is in use.
    pub fn control_at(&self, listen: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let _in_runtime = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        self.runtime.spawn(control::serve(listener, self.shared.clone()));
        Ok(addr)
    }

    /// The address on which the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the origin for connections from now on, for example after an origin was restarted on another
    /// port.
    pub fn set_origin(&self, origin: SocketAddr) {
        *self.shared.origin.lock().expect("lock is not poisoned") = origin;
    }

    /// Replaces all rules for requests from now on. Their counts start at zero.
    ///
    /// # Panics
    /// If a rule is invalid.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        let rules = Rules::new(rules).unwrap_or_else(|error| panic!("{error}"));
        *self.shared.rules() = rules;
    }

    /// Changes the shape from now on, also for bodies that are being passed.
    pub fn set_shape(&self, shape: TrafficShape) {
        self.shared.shaper.set(shape);
    }

    /// Counters since the start or [`Self::clear_log`].
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.traffic.counters()
    }

    /// The log: a line for each request, in the order of arrival; the oldest lines are dropped when there are
    /// too many.
    #[must_use]
    pub fn log(&self) -> Vec<LogLine> {
        self.shared.traffic.log()
    }

    /// Empties the log and resets the counters.
    pub fn clear_log(&self) {
        self.shared.traffic.clear();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked; the panic was already reported.
            drop(thread.join());
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<ProxyState>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener that does not block");
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let is_refused = shared.rules().refuse_connection();
        shared.traffic.connection(is_refused);
        if is_refused {
            continue;
        }
        if let Ok(connection) = Connection::new(client, shared.clone()) {
            tokio::spawn(connection.serve());
        }
    }
}
