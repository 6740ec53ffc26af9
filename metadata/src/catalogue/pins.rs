//! Bodies that somebody is reading, whose map must not be freed yet.
//!
//! A long download fetches the map of its body as it gets there. When the object is replaced or
//! deleted meanwhile, the reader still gets the old bytes, whole: freeing the map waits until the
//! last pin is gone. Pins live in memory; after a restart there are no readers.

use super::resident::Resident;
use mlgw_common::BodyId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// How many readers each pinned body has.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<HashMap<BodyId, u32>>);

impl Pins {
    pub(super) fn is_pinned(&self, body: BodyId) -> bool {
        self.0.lock().contains_key(&body)
    }
}

/// Keeps the map of a body from being freed, until it is dropped.
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
        *readers = readers.saturating_sub(1);
        if *readers == 0 {
            pins.remove(&self.body);
            drop(pins);
            // Its map may have waited for this.
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
    async fn the_map_of_a_body_outlives_its_object_while_somebody_reads_it() {
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
        assert!(!catalogue.is_given_up(id, &key("k"), body).unwrap());
        catalogue.propose(Command::object(&bucket, &key("k"), NOW, delete())).await.unwrap();
        catalogue.inner.release_all().await.unwrap();
        assert_eq!(pages(&catalogue, id, body), 1, "two read it");
        assert!(catalogue.is_given_up(id, &key("k"), body).unwrap(), "who comes now comes too late");
        drop(again);
        catalogue.inner.release_all().await.unwrap();
        assert_eq!(pages(&catalogue, id, body), 1, "one reads it");
        drop(pin);
        catalogue.inner.release_all().await.unwrap();
        assert_eq!(pages(&catalogue, id, body), 0, "nobody reads it");
        catalogue.shutdown().await;
    }
}
