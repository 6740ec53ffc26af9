//! Deletes objects.
//!
//! A delete is durable when it returns. A delete of a key without an object succeeds.

use crate::{ObjectError, ObjectLayer};
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::command::{Conditions, DeleteObject, ObjectChange, Reject};
use mlgw_formats::schema::Bucket;
use mlgw_metadata::ProposeError;

impl ObjectLayer {
    /// Deletes the object of `key` if `conditions` hold.
    ///
    /// # Errors
    /// [`Reject::PreconditionFailed`]; those of [`ObjectLayer::propose_object`].
    pub async fn delete(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        now: Timestamp,
        conditions: Conditions,
    ) -> Result<(), ObjectError> {
        let change = ObjectChange::Delete(DeleteObject { conditions });
        match self.propose_object(bucket, key, now, change).await {
            // The condition refers to a key without an object. The object is absent, as requested.
            Ok(_) | Err(ProposeError::Rejected(Reject::NoSuchKey)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
