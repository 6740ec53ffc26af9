//! Divides the memory of the server between its fixed parts and requests.
//!
//! A process that grows over the limit of its cgroup is killed, so everything that can grow is counted before
//! it does: caches, buffers of writers, memtables, blocks fetched from origins, connections at rest. On a
//! small machine the buffers are smaller and there are fewer of them. Requests get a third of the memory, or
//! less if less is left. If less than the minimum is left, the server does not start, and the error states
//! how much it needs.
//!
//! Pure: the same configuration on the same machine gives the same division.

use super::{Config, MachineSizes};
use mlgw_common::ByteSize;
use mlgw_common::limits::{
    COPY_BLOCK_BYTES, DEDICATED_SEGMENTS_OPEN_MAX, DEDICATED_SEGMENTS_OPEN_MIN, DIRECT_BUFFER_BYTES,
    FETCH_BLOCKS_MAX, FETCH_BLOCKS_MIN, IDLE_CONNECTION_BYTES, LOG_MEMTABLE_BYTES, MEMORY_BYTES_MIN,
    MEMTABLE_BYTES_MIN, MIB, MOVE_BATCH_BYTES_MAX, MOVED_QUEUE_BYTES_MAX, PROCESS_BYTES, PROPOSE_BYTES_MAX,
};
use mlgw_remote::upstream::UpstreamKind;

/// Idle connections may take a quarter of the memory beyond this: with 256 MiB that is 5,800 of them.
const CONNECTIONS_FROM_BYTES: u64 = 96 * MIB;
const CONNECTIONS_PART: u64 = 4;
/// Connections that are accepted even with the least memory.
const CONNECTIONS_MIN: u64 = 256;

const _: () = assert!(DEDICATED_SEGMENTS_OPEN_MIN <= DEDICATED_SEGMENTS_OPEN_MAX, "a share has two bounds");
const _: () = assert!(FETCH_BLOCKS_MIN <= FETCH_BLOCKS_MAX, "a share has two bounds");
const _: () = assert!(
    CONNECTIONS_MIN * IDLE_CONNECTION_BYTES < CONNECTIONS_FROM_BYTES,
    "the fewest connections fit beside the fixed parts"
);

/// The memory is less than the server needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "too little memory: {has} (RAM, or the lowest limit of a cgroup); this configuration needs at least \
     {least}: {parts}. Raise the limit, or lower limits.connections, memory.capacity or \
     catalogue.cache_bytes"
)]
pub struct TooLittleMemory {
    has: String,
    least: String,
    parts: String,
}

/// Division of the memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// The program.
    process: u64,
    /// The catalogue: its caches, its memtables and the commands in flight.
    catalogue: u64,
    /// The memory tier.
    memory_tier: u64,
    /// Buffers of writers of the segments, of clients and of compaction.
    writers: u64,
    /// Blocks that are being fetched from origins.
    fetches: u64,
    /// Idle connections.
    connections: u64,
}

impl MemoryBudget {
    const fn sum(&self) -> u64 {
        self.process + self.catalogue + self.memory_tier + self.writers + self.fetches + self.connections
    }
}

impl Config {
    /// Returns the memory for everything except requests.
    #[must_use]
    pub fn memory_budget(&self, machine: &MachineSizes) -> MemoryBudget {
        let cache = self.catalogue_cache_bytes(machine);
        let commands = 2 * PROPOSE_BYTES_MAX as u64;
        let states =
            self.memtable_bytes(machine).max(self.catalogue.object_groups * MEMTABLE_BYTES_MIN as u64);
        let memtables = 2 * states + 2 * LOG_MEMTABLE_BYTES as u64;
        let own_segments = (self.own_segments_max(machine) * DIRECT_BUFFER_BYTES) as u64;
        let moving = MOVE_BATCH_BYTES_MAX + MOVED_QUEUE_BYTES_MAX as u64;
        let has_origins = self.upstreams.iter().any(|upstream| upstream.kind == UpstreamKind::S3);
        // Besides the blocks, the index of the cached copies has a cache of half the size of the catalogue's.
        let blocks = self.fetch_blocks_max(machine) as u64 * COPY_BLOCK_BYTES + cache / 2;
        MemoryBudget {
            process: PROCESS_BYTES,
            catalogue: cache + memtables + commands,
            memory_tier: self.memory_capacity_bytes(machine),
            writers: own_segments + moving,
            fetches: if has_origins { blocks } else { 0 },
            connections: self.connections_max(machine) * IDLE_CONNECTION_BYTES,
        }
    }

    /// Checks that requests have the least memory that they work with.
    ///
    /// # Errors
    /// Returns the least memory that this configuration needs.
    pub fn check_memory(&self, machine: &MachineSizes) -> Result<(), TooLittleMemory> {
        let has = machine.memory_bytes;
        if self.has_enough_memory(machine) {
            return Ok(());
        }
        let of = |bytes| MachineSizes { memory_bytes: bytes, ..*machine };
        let mut larger = (has / MIB + 1..1 << 30).map(|mib| mib * MIB);
        let least = larger.find(|bytes| self.has_enough_memory(&of(*bytes))).unwrap_or(u64::MAX);
        let budget = self.memory_budget(&of(least));
        let human = |bytes: u64| ByteSize(bytes).human();
        let parts = [
            ("the program", budget.process),
            ("the catalogue", budget.catalogue),
            ("the memory tier", budget.memory_tier),
            ("writers", budget.writers),
            ("blocks from origins", budget.fetches),
            ("connections", budget.connections),
            ("requests", MEMORY_BYTES_MIN),
        ];
        let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
        let parts = parts.map(|(name, bytes)| format!("{} for {name}", human(bytes)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        Err(TooLittleMemory { has: human(has), least: human(least), parts })
    }

    fn has_enough_memory(&self, machine: &MachineSizes) -> bool {
        self.memory_budget(machine).sum() + MEMORY_BYTES_MIN <= machine.memory_bytes
    }

    /// Returns the memory that requests in flight may hold: a third of the total, or what is left.
    #[must_use]
    pub fn memory_bytes(&self, machine: &MachineSizes) -> u64 {
        let auto = (machine.memory_bytes / 3).min(self.left_to_requests(machine).max(MEMORY_BYTES_MIN));
        self.limits.memory_bytes.or_else(|| ByteSize(auto)).0
    }

    /// Returns the memory that is left for requests.
    #[must_use]
    pub fn left_to_requests(&self, machine: &MachineSizes) -> u64 {
        machine.memory_bytes.saturating_sub(self.memory_budget(machine).sum())
    }

    /// Returns the number of idle S3 connections for which there is memory, at most the configured limit.
    #[must_use]
    pub fn connections_max(&self, machine: &MachineSizes) -> u64 {
        let share = machine.memory_bytes.saturating_sub(CONNECTIONS_FROM_BYTES) / CONNECTIONS_PART;
        self.limits.connections.min((share / IDLE_CONNECTION_BYTES).max(CONNECTIONS_MIN))
    }

    /// Returns the size of one of the two memtables of the catalogue's state, over all groups.
    #[must_use]
    pub fn memtable_bytes(&self, machine: &MachineSizes) -> u64 {
        (machine.memory_bytes / 32).clamp(8 * MIB, 32 * MIB)
    }

    /// Returns the maximum number of bodies that may write to a segment of their own at the same time.
    #[must_use]
    pub fn own_segments_max(&self, machine: &MachineSizes) -> usize {
        let share = machine.memory_bytes / 32 / DIRECT_BUFFER_BYTES as u64;
        usize::try_from(share)
            .unwrap_or(usize::MAX)
            .clamp(DEDICATED_SEGMENTS_OPEN_MIN, DEDICATED_SEGMENTS_OPEN_MAX)
    }

    /// Returns the maximum number of origin blocks that are fetched at the same time.
    #[must_use]
    pub fn fetch_blocks_max(&self, machine: &MachineSizes) -> usize {
        let share = machine.memory_bytes / 4 / COPY_BLOCK_BYTES;
        usize::try_from(share).unwrap_or(usize::MAX).clamp(FETCH_BLOCKS_MIN, FETCH_BLOCKS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, MachineSizes, MemoryBudget};
    use crate::{ConfigSources, LoadedConfig};
    use mlgw_common::limits::{GIB, MEMORY_BYTES_MIN, MIB};
    use proptest::prelude::*;

    fn config(settings: &[(&'static str, &str)]) -> Config {
        let flags = settings.iter().map(|(key, value)| (*key, "--test", (*value).to_owned())).collect();
        LoadedConfig::load(&ConfigSources { flags, ..ConfigSources::default() }).unwrap().config
    }

    const fn machine(memory_bytes: u64) -> MachineSizes {
        MachineSizes { memory_bytes, disk_bytes: Some(100 * GIB) }
    }

    fn all(config: &Config, machine: &MachineSizes) -> u64 {
        let budget: MemoryBudget = config.memory_budget(machine);
        budget.sum() + config.memory_bytes(machine)
    }

    #[test]
    fn what_is_enough_is_divided_without_a_rest_that_nobody_counted() {
        let config = config(&[]);
        for mib in [256, 512, 1024, 4096, 1 << 20] {
            let machine = machine(mib * MIB);
            assert_eq!(config.check_memory(&machine), Ok(()), "{mib} MiB");
            assert!(
                all(&config, &machine) <= machine.memory_bytes,
                "{mib} MiB: {}",
                all(&config, &machine) / MIB
            );
        }
        assert_eq!(config.memory_bytes(&machine(GIB)), GIB / 3, "a large machine gives requests a third");
    }

    #[test]
    fn too_little_is_refused_with_the_least_and_that_is_enough() {
        let config = config(&[]);
        for mib in [16, 64, 128] {
            let refused = config.check_memory(&machine(mib * MIB)).unwrap_err();
            let text = refused.to_string();
            let least: u64 = refused.least.trim_end_matches(" MiB").parse::<f64>().unwrap() as u64;
            assert!(text.contains(&refused.has) && text.contains(&refused.least), "{text}");
            assert!(text.contains("for the catalogue") && text.contains("for connections"), "{text}");
            assert_eq!(config.check_memory(&machine(least * MIB)), Ok(()), "{text}");
            assert!(config.check_memory(&machine((least - 1) * MIB)).is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_person_asks_for_is_counted_too() {
        let small = machine(256 * MIB);
        assert!(config(&[]).check_memory(&small).is_ok());
        for (key, value) in [("memory.capacity", "200MiB"), ("catalogue.cache_bytes", "200MiB")] {
            assert!(config(&[(key, value)]).check_memory(&small).is_err(), "{key}");
        }
        assert!(
            config(&[("limits.connections", "100")]).memory_bytes(&small) > config(&[]).memory_bytes(&small)
        );
    }

    proptest! {
        #[test]
        fn whatever_the_machine_everything_fits_or_is_refused(
            mib in 1_u64..4096, connections in 1_u64..1_000_000,
        ) {
            let config = config(&[("limits.connections", &connections.to_string())]);
            let machine = machine(mib * MIB);
            match config.check_memory(&machine) {
                Ok(()) => {
                    prop_assert!(all(&config, &machine) <= machine.memory_bytes);
                    prop_assert!(config.memory_bytes(&machine) >= MEMORY_BYTES_MIN);
                }
                Err(_) => prop_assert!(config.left_to_requests(&machine) < MEMORY_BYTES_MIN),
            }
        }
    }
}
