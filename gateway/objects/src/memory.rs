//! The memory that requests share: who holds how much of it, and who has to wait.
//!
//! There are two shares. A connection at work takes one place in the first, which pays for its
//! buffers, a request's head and a small body or answer. Whatever is larger takes blocks of 64 KiB
//! of the second for as long as it lives, so large slow bodies never keep small requests out. Of
//! each share one client address holds a part at most, and one connection a smaller part of the
//! second; who waits, waits for the narrowest first, so a client's surplus is in nobody's way.
//!
//! A request whose signature is not known yet takes a turn besides its place: a form before its policy was
//! read, and a long head that comes in pieces. There are as many turns as a quarter of the places, in total
//! and for each client; one request more is refused at once. Half-sent requests of one address therefore
//! leave three quarters of its places to its signed ones.
//!
//! A request that finds no memory waits for five seconds and then fails with [`Shortage::Memory`]. What was
//! granted is enough to finish, so no admitted request is stuck. All of it is in memory: power failure leaves
//! nothing behind.

use crate::{ObjectMetrics, Shortage};
use bytes::Bytes;
use mlgw_common::limits::{
    AWAKE_CONNECTION_BYTES, BLOCK_BYTES, HELD_BLOCKS_MAX, MEMORY_BYTES_MIN, POST_FORM_BYTES_MAX,
    SMALL_BODY_BYTES,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long memory is waited for before a request is refused.
const WAIT: Duration = Duration::from_secs(5);

/// Of the second share, one connection may hold one part in so many.
const CONNECTION_PARTS: usize = 8;

/// Requests without a verified signature may have one in this many places of the first share.
const UNPROVEN_PART: usize = 4;
/// Bytes charged for a form before its policy was read: its fields and the buffer of its parser.
const FORM_BLOCKS: u32 = (2 * POST_FORM_BYTES_MAX as u64 + BLOCK_BYTES).div_ceil(BLOCK_BYTES) as u32;

/// The memory of a server. Clones share it.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

struct Shared {
    /// Connections at work.
    connections: Share,
    /// Those of them with a request that is waited for before anybody has signed it.
    unproven: Share,
    /// Blocks of bodies and answers.
    bodies: Share,
    body_blocks: usize,
    connection_blocks_max: usize,
    clients: Mutex<HashMap<IpAddr, Weak<Client>>>,
    /// Connections that wait to be at work.
    waiting: AtomicUsize,
    wait: Duration,
    metrics: Option<Arc<ObjectMetrics>>,
}

/// One share: all of it, and what of it one client may hold.
struct Share {
    all: Arc<Semaphore>,
    client_max: usize,
}

impl Share {
    fn new(places: u64, percent: u64, least: usize) -> Self {
        let places = usize::try_from(places).unwrap_or(usize::MAX).clamp(least, Semaphore::MAX_PERMITS);
        let part = usize::try_from(percent).unwrap_or(100).min(100);
        // In this order neither a small share rounds to nothing nor a huge one overflows.
        let client_max = places / 100 * part + places % 100 * part / 100;
        Self { all: Arc::new(Semaphore::new(places)), client_max: client_max.max(least) }
    }

    /// One part in `parts` of this share.
    fn part(&self, parts: usize) -> Self {
        let places = (self.all.available_permits() / parts).max(1);
        Self { all: Arc::new(Semaphore::new(places)), client_max: (self.client_max / parts).max(1) }
    }
}

/// What all connections from one address hold together.
struct Client {
    address: IpAddr,
    shared: Weak<Shared>,
    connections: Arc<Semaphore>,
    unproven: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut clients = shared.clients.lock();
        // Another connection may have come meanwhile and made a new one.
        if clients.get(&self.address).is_some_and(|client| client.strong_count() == 0) {
            clients.remove(&self.address);
        }
    }
}

impl Memory {
    /// Memory of `bytes`, of which one client address holds `client_percent` at most. It is never
    /// less than what the largest document takes.
    #[must_use]
    pub fn new(bytes: u64, client_percent: u64, metrics: Option<Arc<ObjectMetrics>>) -> Self {
        Self::waiting_for(WAIT, bytes, client_percent, metrics)
    }

    fn waiting_for(
        wait: Duration,
        bytes: u64,
        client_percent: u64,
        metrics: Option<Arc<ObjectMetrics>>,
    ) -> Self {
        let bytes = bytes.max(MEMORY_BYTES_MIN);
        let bodies = Share::new(bytes / 4 * 3 / BLOCK_BYTES, client_percent, HELD_BLOCKS_MAX as usize);
        let body_blocks = bodies.all.available_permits();
        let connection_blocks_max = (body_blocks / CONNECTION_PARTS).max(HELD_BLOCKS_MAX as usize);
        let connections = Share::new(bytes / 4 / AWAKE_CONNECTION_BYTES, client_percent, 1);
        Self(Arc::new(Shared {
            unproven: connections.part(UNPROVEN_PART),
            connections,
            bodies,
            body_blocks,
            connection_blocks_max,
            clients: Mutex::default(),
            waiting: AtomicUsize::new(0),
            wait,
            metrics,
        }))
    }

    /// The account of a new connection from `address`.
    #[must_use]
    pub fn account(&self, address: IpAddr) -> Account {
        let shared = &self.0;
        let mut clients = shared.clients.lock();
        let known = clients.get(&address).and_then(Weak::upgrade);
        let client = known.unwrap_or_else(|| {
            let client = Arc::new(Client {
                address,
                shared: Arc::downgrade(shared),
                connections: Arc::new(Semaphore::new(shared.connections.client_max)),
                unproven: Arc::new(Semaphore::new(shared.unproven.client_max)),
                bodies: Arc::new(Semaphore::new(shared.bodies.client_max)),
            });
            clients.insert(address, Arc::downgrade(&client));
            client
        });
        drop(clients);
        let blocks = Arc::new(Semaphore::new(shared.connection_blocks_max));
        Account(Arc::new(Connection { memory: self.clone(), client, blocks }))
    }

    /// Whether connections wait for others to rest.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.waiting.load(Relaxed) > 0
    }

    fn throttled(&self) {
        self.0.metrics.iter().for_each(|metrics| metrics.throttle(Shortage::Memory));
    }
}

/// What one connection may hold. Clones share it.
#[derive(Clone)]
pub struct Account(Arc<Connection>);

struct Connection {
    memory: Memory,
    client: Arc<Client>,
    blocks: Arc<Semaphore>,
}

impl Account {
    /// Where the connection comes from.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.client.address
    }
}

/// The place of a connection at work, held while this lives.
pub struct Awake {
    _places: [OwnedSemaphorePermit; 2],
}

/// The turn of a request whose signature is not known yet, while this lives.
pub struct Unproven {
    _turns: [OwnedSemaphorePermit; 2],
}

/// Blocks of memory, held while this lives.
pub struct Held {
    connection: OwnedSemaphorePermit,
    client: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

fn short<E>(_: E) -> Shortage {
    Shortage::Memory
}

impl Account {
    /// The memory that this is an account of.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// A place for this connection to be at work, waited for.
    ///
    /// # Errors
    /// [`Shortage::Memory`] when there is none for too long.
    pub async fn wake(&self) -> Result<Awake, Shortage> {
        let (client, all) = (&self.0.client.connections, &self.0.memory.0.connections.all);
        if let (Ok(client), Ok(all)) = (client.clone().try_acquire_owned(), all.clone().try_acquire_owned()) {
            return Ok(Awake { _places: [client, all] });
        }
        self.0.memory.throttled();
        let _waiting = Waiting::new(&self.0.memory.0.waiting);
        let both = async {
            let client = client.clone().acquire_owned().await.map_err(short)?;
            let all = all.clone().acquire_owned().await.map_err(short)?;
            Ok(Awake { _places: [client, all] })
        };
        timeout(self.0.memory.0.wait, both).await.map_err(short)?
    }

    /// A turn for a request that is still incomplete and whose signature is not known. There is no waiting
    /// for a turn: half-sent requests must not delay whole ones.
    ///
    /// # Errors
    /// [`Shortage::Memory`] when all are taken.
    pub fn unproven(&self) -> Result<Unproven, Shortage> {
        let (client, all) = (&self.0.client.unproven, &self.0.memory.0.unproven.all);
        match (client.clone().try_acquire_owned(), all.clone().try_acquire_owned()) {
            (Ok(client), Ok(all)) => Ok(Unproven { _turns: [client, all] }),
            _ => {
                self.throttled();
                Err(Shortage::Memory)
            }
        }
    }

    /// A turn for a form, and the memory for what comes before its file.
    ///
    /// # Errors
    /// [`Shortage::Memory`] when there is none.
    pub fn form(&self) -> Result<(Unproven, Held), Shortage> {
        let turn = self.unproven()?;
        let held = self.try_hold(FORM_BLOCKS).ok_or_else(|| {
            self.throttled();
            Shortage::Memory
        })?;
        Ok((turn, held))
    }

    /// Memory for `blocks`, if there is so much right now.
    #[must_use]
    pub fn try_hold(&self, blocks: u32) -> Option<Held> {
        let of = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_many_owned(blocks).ok();
        Some(Held {
            connection: of(&self.0.blocks)?,
            client: of(&self.0.client.bodies)?,
            all: of(&self.0.memory.0.bodies.all)?,
        })
    }

    /// Memory for `blocks`, waited for.
    ///
    /// # Errors
    /// [`Shortage::Memory`] when there is none for too long.
    pub async fn hold(&self, blocks: u32) -> Result<Held, Shortage> {
        assert!(blocks <= HELD_BLOCKS_MAX, "what is asked for at once must fit into the least memory");
        if let Some(held) = self.try_hold(blocks) {
            return Ok(held);
        }
        self.throttled();
        let all = async {
            let of = |semaphore: &Arc<Semaphore>| semaphore.clone().acquire_many_owned(blocks);
            let connection = of(&self.0.blocks).await.map_err(short)?;
            let client = of(&self.0.client.bodies).await.map_err(short)?;
            let all = of(&self.0.memory.0.bodies.all).await.map_err(short)?;
            Ok(Held { connection, client, all })
        };
        timeout(self.0.memory.0.wait, all).await.map_err(short)?
    }

    /// Memory for `many` blocks or, when half of it is taken, for `few`, waited for: the more there are
    /// who want some, the more of them get it.
    ///
    /// # Errors
    /// [`Shortage::Memory`] when there is none for too long.
    pub async fn hold_some(&self, many: u32, few: u32) -> Result<Held, Shortage> {
        self.hold(if self.has_plenty() { many } else { few }).await
    }

    /// Whether less than half of the blocks is taken, of all and of what the client may hold.
    #[must_use]
    pub fn has_plenty(&self) -> bool {
        let plenty = |semaphore: &Semaphore, all: usize| semaphore.available_permits() > all / 2;
        let shared = &self.0.memory.0;
        plenty(&shared.bodies.all, shared.body_blocks)
            && plenty(&self.0.client.bodies, shared.bodies.client_max)
    }

    /// An answer that was put together, with the memory that it takes; refused where there is none,
    /// since waiting would keep it.
    ///
    /// # Errors
    /// [`Shortage::Memory`].
    pub fn cover(&self, answer: Bytes) -> Result<Bytes, Shortage> {
        if answer.len() <= SMALL_BODY_BYTES {
            return Ok(answer);
        }
        let held = self.try_hold(blocks_of(answer.len() as u64).min(HELD_BLOCKS_MAX));
        let held = held.ok_or_else(|| {
            self.throttled();
            Shortage::Memory
        })?;
        Ok(Arc::new(held).carried_by(answer))
    }

    /// Counts one time that somebody had to wait, or got less than was wanted.
    pub fn throttled(&self) {
        self.0.memory.throttled();
    }
}

/// The blocks that `bytes` take.
#[must_use]
pub fn blocks_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX)
}

impl Held {
    /// How many blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.all.num_permits()
    }

    /// Holds `more` as well.
    pub fn merge(&mut self, more: Self) {
        self.connection.merge(more.connection);
        self.client.merge(more.client);
        self.all.merge(more.all);
    }

    /// `bytes` that hold this memory until the last slice of them is gone: until the connection has
    /// written them.
    #[must_use]
    pub fn carried_by(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Carrying { bytes, _held: Arc::clone(self) })
    }
}

struct Carrying {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for Carrying {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts as waiting while it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
