//! What a block of an origin's object is called, in the index and by the policy engine.
//!
//! Always: the name of a block gives its id, whoever asks, so an id is never handed on beside a name that it
//! could contradict. It stands in the index.

use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_policies::BLOCK_ID_SEED;

/// The id of block `number` of an object.
#[must_use]
pub fn block_id(bucket: BucketId, key: &ObjectKey, number: u64) -> u64 {
    mlgw_policies::block_id(BLOCK_ID_SEED, bucket.0, key.as_str(), number)
}
