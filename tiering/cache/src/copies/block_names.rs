//! Block ids, used by the index and by the policy engine.
//!
//! Invariant: the id of a block is computed from its name, so an id is never stored beside a name that it
//! could contradict. The index stores the name under its id.

use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_policies::BLOCK_ID_SEED;

/// Returns the id of block `number` of an object.
#[must_use]
pub fn block_id(bucket: BucketId, key: &ObjectKey, number: u64) -> u64 {
    mlgw_policies::block_id(BLOCK_ID_SEED, bucket.0, key.as_str(), number)
}
