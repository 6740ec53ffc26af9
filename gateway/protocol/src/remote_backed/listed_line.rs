//! Lines of an origin's listing, as they are shown here.

use super::RemoteBackedBucket;
use mlgw_common::ObjectKey;
use mlgw_formats::schema::{ObjectSummary, ObjectVersion};
use mlgw_objects::list::ListedItem;
use mlgw_remote::origin::ListLine;

/// Returns an origin's line as shown here; `None` if its name is not a valid key, such as the binding's own
/// prefix.
pub(super) fn shown_item(line: ListLine, remote_backed: &RemoteBackedBucket) -> Option<ListedItem> {
    match line {
        ListLine::Group(group) => Some(ListedItem::CommonPrefix(group)),
        ListLine::Object(key, object) => {
            let key = ObjectKey::from_bytes(key.as_bytes()).ok()?;
            Some(ListedItem::Object(key, summary(*object, &remote_backed.bucket.owner)))
        }
    }
}

fn summary(object: ObjectVersion, owner: &str) -> ObjectSummary {
    ObjectSummary {
        size: object.size,
        modified_ms: object.modified_ms,
        etag: object.etag,
        storage_class: object.storage_class,
        owner: owner.to_owned(),
        part_count: object.part_count,
        ..ObjectSummary::default()
    }
}
