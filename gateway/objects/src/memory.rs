//! The memory that requests share, and its reservation.
//!
//! Memory has two pools. An active connection takes one slot of the first pool. A slot covers the buffers of
//! the connection, the head of a request and a small body or answer. Larger bodies and answers take blocks of
//! 64 KiB of the second pool while they exist, so large slow bodies never displace small requests. One client
//! address has a limit in each pool, and one connection has a lower limit in the second. A request waits for
//! the narrowest limit first, so a client that exceeds its own limit delays no other client.
//!
//! A request whose signature is not verified yet additionally takes an unverified slot. Such requests are a
//! form before its policy was read, and a long head that arrives in pieces. At most a quarter of the slots
//! can be unverified, in total and for each client. Further requests are refused immediately. Incomplete
//! requests of one address therefore leave three quarters of its slots to its signed requests.
//!
//! A request that finds no memory waits for five seconds and then fails with [`ResourceShortage::Memory`].
//! Unverified slots, and the memory of forms and complete answers, are refused without a wait. A grant is
//! always enough to finish, so no admitted request is stuck. All state is in memory; it is empty after a
//! restart.

use crate::{ObjectMetrics, ResourceShortage};
use bytes::Bytes;
use mlgw_common::limits::{
    ACTIVE_CONNECTION_BYTES, BLOCK_BYTES, MEMORY_BYTES_MIN, POST_FORM_BYTES_MAX, RESERVED_BLOCKS_MAX,
    SMALL_BODY_BYTES,
};
use mlgw_common::time::timeout;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest wait for memory before a request is refused.
const WAIT: Duration = Duration::from_secs(5);

/// Divisor of the second pool: one connection may reserve one part in this many.
const CONNECTION_PARTS: usize = 8;

/// Divisor of the slots: one in this many can be unverified.
const UNVERIFIED_PART: usize = 4;
/// Blocks charged for a form before its policy was read: its fields and the buffer of its parser.
const FORM_BLOCKS: u32 = (2 * POST_FORM_BYTES_MAX as u64 + BLOCK_BYTES).div_ceil(BLOCK_BYTES) as u32;

const _: () = assert!(FORM_BLOCKS <= RESERVED_BLOCKS_MAX, "a form is a single reservation");
const _: () = assert!(
    RESERVED_BLOCKS_MAX as u64 <= MEMORY_BYTES_MIN / 4 * 3 / BLOCK_BYTES,
    "a single reservation fits into the smallest memory"
);

/// The memory of a server. Clones share the pools.
#[derive(Clone)]
pub struct RequestMemory(Arc<RequestMemoryPools>);

struct RequestMemoryPools {
    /// Active connections.
    connections: ClientLimitedPool,
    /// Active connections with a request that is incomplete and not verified yet.
    unverified: ClientLimitedPool,
    /// Blocks of bodies and answers.
    bodies: ClientLimitedPool,
    body_blocks: usize,
    connection_blocks_max: usize,
    clients: Mutex<HashMap<IpAddr, Weak<ClientReservations>>>,
    /// Connections that wait for a slot.
    waiting: AtomicUsize,
    wait: Duration,
    metrics: Option<Arc<ObjectMetrics>>,
}

/// A pool, and the number of its permits that one client may reserve.
struct ClientLimitedPool {
    all: Arc<Semaphore>,
    places: usize,
    client_max: usize,
}

impl ClientLimitedPool {
    fn new(places: u64, percent: u64, least: usize) -> Self {
        let places = usize::try_from(places).unwrap_or(usize::MAX).clamp(least, Semaphore::MAX_PERMITS);
        let part = usize::try_from(percent).unwrap_or(100).min(100);
        // In this order a small share does not round to zero and a huge one does not overflow.
        let client_max = (places / 100 * part + places % 100 * part / 100).max(least);
        assert!(client_max <= places, "the share of one client is a part of its pool");
        Self { all: Arc::new(Semaphore::new(places)), places, client_max }
    }

    /// Returns a pool with one part in `parts` of the permits of this pool.
    fn part(&self, parts: usize) -> Self {
        let places = (self.places / parts).max(1);
        Self { all: Arc::new(Semaphore::new(places)), places, client_max: (self.client_max / parts).max(1) }
    }
}

/// Reservations of all connections from one address, or of one connection from a proxy.
struct ClientReservations {
    address: IpAddr,
    shared: Weak<RequestMemoryPools>,
    connections: Arc<Semaphore>,
    unverified: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl ClientReservations {
    /// Returns reservations of up to `limit` permits of each pool.
    fn new(
        address: IpAddr,
        shared: &Arc<RequestMemoryPools>,
        limit: impl Fn(&ClientLimitedPool) -> usize,
    ) -> Arc<Self> {
        let permits = |pool| Arc::new(Semaphore::new(limit(pool)));
        Arc::new(Self {
            address,
            shared: Arc::downgrade(shared),
            connections: permits(&shared.connections),
            unverified: permits(&shared.unverified),
            bodies: permits(&shared.bodies),
        })
    }
}

impl Drop for ClientReservations {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut clients = shared.clients.lock();
        // Another connection may have made a new entry meanwhile.
        if clients.get(&self.address).is_some_and(|client| client.strong_count() == 0) {
            clients.remove(&self.address);
        }
    }
}

impl RequestMemory {
    /// Returns a memory of `bytes`. One client address reserves at most `client_percent` of it. The memory is
    /// never smaller than [`MEMORY_BYTES_MIN`], which fits the largest document.
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
        let bodies =
            ClientLimitedPool::new(bytes / 4 * 3 / BLOCK_BYTES, client_percent, RESERVED_BLOCKS_MAX as usize);
        let body_blocks = bodies.all.available_permits();
        let connection_blocks_max = (body_blocks / CONNECTION_PARTS).max(RESERVED_BLOCKS_MAX as usize);
        assert!(connection_blocks_max <= body_blocks, "the share of one connection is a part of its pool");
        let connections = ClientLimitedPool::new(bytes / 4 / ACTIVE_CONNECTION_BYTES, client_percent, 1);
        Self(Arc::new(RequestMemoryPools {
            unverified: connections.part(UNVERIFIED_PART),
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

    /// Returns the account of a new connection from `address`.
    #[must_use]
    pub fn account(&self, address: IpAddr) -> Account {
        let shared = &self.0;
        let mut clients = shared.clients.lock();
        let known = clients.get(&address).and_then(Weak::upgrade);
        let client = known.unwrap_or_else(|| {
            let client = ClientReservations::new(address, shared, |pool| pool.client_max);
            clients.insert(address, Arc::downgrade(&client));
            client
        });
        drop(clients);
        self.connection(client)
    }

    /// Returns the account of a new connection from a proxy at `address`, which may reserve all memory except
    /// for the limit of one connection. Many clients use it, and their requests have accounts of their own.
    #[must_use]
    pub fn proxy_account(&self, address: IpAddr) -> Account {
        self.connection(ClientReservations::new(address, &self.0, |pool| pool.places))
    }

    fn connection(&self, client: Arc<ClientReservations>) -> Account {
        let blocks = Arc::new(Semaphore::new(self.0.connection_blocks_max));
        Account(Arc::new(ConnectionReservations { memory: self.clone(), client, blocks }))
    }

    /// Returns true if connections wait for a slot.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.waiting.load(Relaxed) > 0
    }

    fn count_throttled(&self) {
        self.0.metrics.iter().for_each(|metrics| metrics.throttle(ResourceShortage::Memory));
    }
}

/// The reservations of one connection. Clones share them.
#[derive(Clone)]
pub struct Account(Arc<ConnectionReservations>);

struct ConnectionReservations {
    memory: RequestMemory,
    client: Arc<ClientReservations>,
    blocks: Arc<Semaphore>,
}

impl Account {
    /// Returns the address of the client.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.client.address
    }
}

/// The slot of an active connection, until it is dropped.
pub struct ActiveSlot {
    _permits: [OwnedSemaphorePermit; 2],
}

/// The slot of a request that is not verified yet, until it is dropped.
pub struct UnverifiedSlot {
    _permits: [OwnedSemaphorePermit; 2],
}

/// Reserved blocks of memory, until it is dropped.
pub struct MemoryGrant {
    connection: OwnedSemaphorePermit,
    client: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

fn short<E>(_: E) -> ResourceShortage {
    ResourceShortage::Memory
}

impl Account {
    /// Returns the memory of the server.
    #[must_use]
    pub fn memory(&self) -> &RequestMemory {
        &self.0.memory
    }

    /// Waits for a slot for this connection.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when no slot becomes free within the time limit.
    pub async fn activate(&self) -> Result<ActiveSlot, ResourceShortage> {
        let (client, all) = (&self.0.client.connections, &self.0.memory.0.connections.all);
        if let (Ok(client), Ok(all)) = (client.clone().try_acquire_owned(), all.clone().try_acquire_owned()) {
            return Ok(ActiveSlot { _permits: [client, all] });
        }
        self.0.memory.count_throttled();
        let _waiting = SlotWaiter::new(&self.0.memory.0.waiting);
        let both = async {
            let client = client.clone().acquire_owned().await.map_err(short)?;
            let all = all.clone().acquire_owned().await.map_err(short)?;
            Ok(ActiveSlot { _permits: [client, all] })
        };
        timeout(self.0.memory.0.wait, both).await.map_err(short)?
    }

    /// Takes a slot for a request that is incomplete and not verified yet. It never waits, because incomplete
    /// requests must not delay complete ones.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when all are taken.
    pub fn unverified_slot(&self) -> Result<UnverifiedSlot, ResourceShortage> {
        let (client, all) = (&self.0.client.unverified, &self.0.memory.0.unverified.all);
        match (client.clone().try_acquire_owned(), all.clone().try_acquire_owned()) {
            (Ok(client), Ok(all)) => Ok(UnverifiedSlot { _permits: [client, all] }),
            _ => {
                self.count_throttled();
                Err(ResourceShortage::Memory)
            }
        }
    }

    /// Takes an unverified slot for a form, and reserves the memory for the fields before its file.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when no slot or no memory is free.
    pub fn reserve_form(&self) -> Result<(UnverifiedSlot, MemoryGrant), ResourceShortage> {
        let turn = self.unverified_slot()?;
        let held = self.try_reserve(FORM_BLOCKS).ok_or_else(|| {
            self.count_throttled();
            ResourceShortage::Memory
        })?;
        Ok((turn, held))
    }

    /// Reserves `blocks` if they are free. Returns `None` otherwise.
    #[must_use]
    pub fn try_reserve(&self, blocks: u32) -> Option<MemoryGrant> {
        let of = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_many_owned(blocks).ok();
        Some(MemoryGrant {
            connection: of(&self.0.blocks)?,
            client: of(&self.0.client.bodies)?,
            all: of(&self.0.memory.0.bodies.all)?,
        })
    }

    /// Waits for `blocks` and reserves them.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when the blocks do not become free within the time limit.
    pub async fn reserve(&self, blocks: u32) -> Result<MemoryGrant, ResourceShortage> {
        assert!(blocks <= RESERVED_BLOCKS_MAX, "a single reservation fits in the minimum memory");
        if let Some(held) = self.try_reserve(blocks) {
            return Ok(held);
        }
        self.count_throttled();
        let all = async {
            let of = |semaphore: &Arc<Semaphore>| semaphore.clone().acquire_many_owned(blocks);
            let connection = of(&self.0.blocks).await.map_err(short)?;
            let client = of(&self.0.client.bodies).await.map_err(short)?;
            let all = of(&self.0.memory.0.bodies.all).await.map_err(short)?;
            Ok(MemoryGrant { connection, client, all })
        };
        timeout(self.0.memory.0.wait, all).await.map_err(short)?
    }

    /// Reserves `many` blocks if more than half of the blocks are free, otherwise `few`, so that more
    /// requests get some. Waits until they are free.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when the blocks do not become free within the time limit.
    pub async fn reserve_some(&self, many: u32, few: u32) -> Result<MemoryGrant, ResourceShortage> {
        assert!(few <= many, "a request gets fewer blocks when memory is short, not more");
        self.reserve(if self.has_plenty() { many } else { few }).await
    }

    /// Returns true if less than half of the blocks is taken, of the pool and of the client's limit.
    #[must_use]
    pub fn has_plenty(&self) -> bool {
        let plenty = |semaphore: &Semaphore, all: usize| semaphore.available_permits() > all / 2;
        let shared = &self.0.memory.0;
        plenty(&shared.bodies.all, shared.body_blocks)
            && plenty(&self.0.client.bodies, shared.bodies.client_max)
    }

    /// Reserves the memory of a complete answer and attaches it to the answer. It never waits, because the
    /// answer is already in memory.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when the memory is not free.
    pub fn cover(&self, answer: Bytes) -> Result<Bytes, ResourceShortage> {
        if answer.len() <= SMALL_BODY_BYTES {
            return Ok(answer);
        }
        let held = self.try_reserve(blocks_of(answer.len() as u64).min(RESERVED_BLOCKS_MAX));
        let held = held.ok_or_else(|| {
            self.count_throttled();
            ResourceShortage::Memory
        })?;
        Ok(Arc::new(held).attached_to(answer))
    }

    /// Counts a request that had to wait, or got less memory than it requested.
    pub fn count_throttled(&self) {
        self.0.memory.count_throttled();
    }
}

/// Returns the number of blocks that `bytes` occupy, rounded up.
#[must_use]
pub fn blocks_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX)
}

impl MemoryGrant {
    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.all.num_permits()
    }

    /// Adds the blocks of `more`.
    pub fn merge(&mut self, more: Self) {
        self.connection.merge(more.connection);
        self.client.merge(more.client);
        self.all.merge(more.all);
        let (connection, client) = (self.connection.num_permits(), self.client.num_permits());
        assert_eq!([connection, client], [self.blocks(); 2], "a grant counts against all three limits alike");
    }

    /// Returns `bytes` that keep this reservation until their last slice is dropped, which happens after the
    /// connection has sent them.
    #[must_use]
    pub fn attached_to(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(WithGrant { bytes, _held: Arc::clone(self) })
    }
}

struct WithGrant {
    bytes: Bytes,
    _held: Arc<MemoryGrant>,
}

impl AsRef<[u8]> for WithGrant {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Increments a count of waiting connections until it is dropped.
struct SlotWaiter<'a>(&'a AtomicUsize);

impl<'a> SlotWaiter<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Relaxed);
        assert!(before > 0, "a connection that stops waiting was counted");
    }
}

#[cfg(test)]
mod tests;
