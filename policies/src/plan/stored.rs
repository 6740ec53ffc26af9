//! Stored form of a plan: a version, the read order, the keys, and a checksum.
//!
//! Keys are prefix-compressed against the key before. Bytes are read back as the plan that was written or
//! refused. A torn or damaged plan counts as no plan: the client's reads are then observed as if it had
//! announced nothing.

use super::{
    EPOCHS_MAX, InvalidAccessPlan, KEYS_MAX, Plan, PlanKeys, PlanSchedule, RANKS_MAX, Sampler, TEXT_BYTES_MAX,
};
use crate::trace::varint::{ByteReader, put};
use std::sync::Arc;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// Version of the stored form.
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 8;
/// Rank value of all ranks; rank n is stored as n + 1.
const ALL_RANKS: u64 = 0;

/// Reason why bytes are no plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoredPlanError {
    /// Truncated or altered bytes.
    #[error("the stored plan is damaged")]
    Damaged,
    /// Bytes of a later version of the program.
    #[error("the stored plan has version {0}, which this program does not support")]
    Version(u8),
    /// A plan that exceeds a limit or is inconsistent.
    #[error(transparent)]
    Invalid(#[from] InvalidAccessPlan),
}

impl Plan {
    /// Encodes the plan.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let PlanSchedule { sampler, seed, first_epoch, epochs, ranks, rank, drop_last } = self.schedule;
        let mut out = vec![VERSION, sampler as u8, u8::from(drop_last)];
        for number in [
            seed,
            first_epoch.into(),
            epochs.into(),
            ranks.into(),
            rank.map_or(ALL_RANKS, |rank| u64::from(rank) + 1),
            self.keys.len().into(),
        ] {
            put(&mut out, number);
        }
        let mut before = "";
        for key in self.keys.iter() {
            let shared = before.bytes().zip(key.bytes()).take_while(|(one, other)| one == other).count();
            put(&mut out, shared as u64);
            put(&mut out, (key.len() - shared) as u64);
            out.extend_from_slice(&key.as_bytes()[shared..]);
            before = key;
        }
        put(&mut out, self.list.len() as u64);
        for item in &self.list {
            put(&mut out, u64::from(*item));
        }
        out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
        out
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// The bytes are no plan.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StoredPlanError> {
        match bytes.first() {
            None | Some(&VERSION) => {}
            Some(version) => return Err(StoredPlanError::Version(*version)),
        }
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(StoredPlanError::Damaged)?;
        if xxh3_64(body) != u64::from_le_bytes(*checksum) {
            return Err(StoredPlanError::Damaged);
        }
        let mut rest = ByteReader(body);
        let reading = read_schedule(&mut rest).ok_or(StoredPlanError::Damaged)?;
        reading.check()?;
        let keys = read_keys(&mut rest)?;
        let count = read_number(&mut rest, KEYS_MAX as u64)? as usize;
        let mut list = Vec::with_capacity(count.min(rest.0.len()));
        for _ in 0..count {
            list.push(read_number(&mut rest, u64::from(keys.len().saturating_sub(1)))? as u32);
        }
        let plan = Self { keys: Arc::new(keys), list, schedule: reading };
        match (rest.0, plan.epoch_length()) {
            ([], 0) => Err(InvalidAccessPlan::Empty.into()),
            ([], _) => Ok(plan),
            _ => Err(StoredPlanError::Damaged),
        }
    }
}

fn read_number(rest: &mut ByteReader<'_>, most: u64) -> Result<u64, StoredPlanError> {
    rest.varint().filter(|number| *number <= most).ok_or(StoredPlanError::Damaged)
}

fn read_schedule(rest: &mut ByteReader<'_>) -> Option<PlanSchedule> {
    let (_version, sampler, drop_last) = (rest.byte()?, rest.byte()?, rest.byte()?);
    let sampler = *Sampler::ALL.get(usize::from(sampler))?;
    let seed = rest.varint()?;
    let mut below = |most: u32| u32::try_from(rest.varint()?).ok().filter(|number| *number <= most);
    let (first_epoch, epochs) = (below(EPOCHS_MAX)?, below(EPOCHS_MAX)?);
    let (ranks, rank) = (below(RANKS_MAX)?, below(RANKS_MAX)?);
    let drop_last = match drop_last {
        0 => false,
        1 => true,
        _ => return None,
    };
    Some(PlanSchedule { sampler, seed, first_epoch, epochs, ranks, rank: rank.checked_sub(1), drop_last })
}

fn read_keys(rest: &mut ByteReader<'_>) -> Result<PlanKeys, StoredPlanError> {
    let count = read_number(rest, KEYS_MAX as u64)?;
    let mut keys = PlanKeys::default();
    let mut key: Vec<u8> = Vec::new();
    for _ in 0..count {
        let shared = read_number(rest, key.len() as u64)? as usize;
        let more = read_number(rest, TEXT_BYTES_MAX as u64)? as usize;
        key.truncate(shared);
        key.extend_from_slice(rest.take(more).ok_or(StoredPlanError::Damaged)?);
        keys.push(std::str::from_utf8(&key).map_err(|_| StoredPlanError::Damaged)?)?;
    }
    Ok(keys)
}
