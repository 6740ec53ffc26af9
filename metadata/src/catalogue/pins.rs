//! Pins: bodies that are being read, whose map must not be freed yet.
//!
//! A long download reads the map of its body page by page as it proceeds. If the object is replaced or
//! deleted meanwhile, the reader still gets all of the old bytes: freeing the map waits until the last pin is
//! dropped, on any node: the leader of the system group requests the pins of the others before it frees a map
//! ([`readers`](super::readers)). Pins exist in memory only, since there are no readers after a restart.

use super::resident::Resident;
use mlgw_common::BodyId;
use std::sync::Arc;

/// Pin on a body: its map is not freed until the pin is dropped.
pub struct Pin {
    resident: Arc<Resident>,
    body: BodyId,
}

impl Pin {
    pub(super) fn new(resident: Arc<Resident>, body: BodyId) -> Self {
        *resident.pins.0.lock().entry(body).or_default() += 1;
        Self { resident, body }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.resident.pins.0.lock();
        let readers = pins.entry(self.body).or_default();
        assert!(*readers > 0, "a pinned body has readers");
        *readers -= 1;
        if *readers == 0 {
            pins.remove(&self.body);
            drop(pins);
            // The release of this map may have been waiting for the pin.
            self.resident.release_added.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::Catalogue;
    use crate::catalogue::testing::{self, NOW, delete, extent, key, options, version};
    use mlgw_common::{BodyId, BucketId};
    use mlgw_formats::command::{Command, ObjectChange, PutObject};
    use mlgw_formats::schema::ExtentPage;

    fn pages(catalogue: &Catalogue, bucket: BucketId, body: BodyId) -> usize {
        catalogue.reader().extent_pages(bucket, &key("k"), body, 0).count()
    }

    #[tokio::test]
    async fn a_pinned_body_keeps_its_map_after_its_object_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
        let bucket = testing::bucket(&catalogue, "bucket").await;
        let id = BucketId(bucket.id);
        let body = catalogue.body_id().await.unwrap();
        let mut long = version(body, 6);
        long.extents.clear();
        let page = ExtentPage { extents: vec![extent(1, 1); 6], parts: vec![] };
        let put = ObjectChange::Put(PutObject { version: long, pages: vec![page], ..PutObject::default() });
        catalogue.propose(Command::object(&bucket, &key("k"), NOW, put)).await.unwrap();

        let pin = catalogue.pin(body);
        let again = catalogue.pin(body);
        assert!(!catalogue.is_being_released(id, &key("k"), body).unwrap());
        catalogue.propose(Command::object(&bucket, &key("k"), NOW, delete())).await.unwrap();
        catalogue.inner.release_all().await.unwrap();
        assert_eq!(pages(&catalogue, id, body), 1, "two readers");
        assert!(catalogue.is_being_released(id, &key("k"), body).unwrap(), "a new reader is too late");
        drop(again);
        catalogue.inner.release_all().await.unwrap();
        assert_eq!(pages(&catalogue, id, body), 1, "one reader");
        drop(pin);
        catalogue.inner.release_all().await.unwrap();
        assert_eq!(pages(&catalogue, id, body), 0, "no reader");
        catalogue.shutdown().await;
    }
}
