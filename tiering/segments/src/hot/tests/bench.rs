//! A tier with a real catalogue, small segments, and compaction on request.

use super::*;
use crate::hot::{
    AppendedChunk, CompactionSettings, Intercept, PlacingSettings, RemoteTierOptions, ReplicationOptions,
    SealKeys, Upstreams,
};
use mlgw_common::{BucketName, Identity, Lineage, SplitKeys};
use mlgw_formats::command::Command;
use mlgw_formats::command::{Conditions, DeleteObject, ObjectChange, PutObject};
use mlgw_formats::schema::{Bucket, ExtentPage, ObjectVersion};
use mlgw_metadata::{Catalogue, CatalogueOptions, NewBucket, ProposeError};
use mlgw_remote::upstream::ReplicaKey;
use std::io;
use std::time::Duration;
use zeroize::Zeroizing;

const SEGMENT_BYTES: u64 = 300_000;

pub(super) struct Bench {
    pub(super) dir: tempfile::TempDir,
    pub(super) catalogue: Catalogue,
    pub(super) bucket: Arc<Bucket>,
    pub(super) tier: HotTier,
    pub(super) tuned: BenchOptions,
}

/// Optional settings of a bench.
#[derive(Clone)]
pub(super) struct BenchOptions {
    pub(super) placing: PlacingSettings,
    pub(super) capacity_bytes: u64,
    pub(super) intercept: Option<Arc<dyn Intercept>>,
    pub(super) cold_dirs: &'static [&'static str],
    /// Upstreams, and the name of the one that segments are spilled to.
    pub(super) remote_tier: Option<(Upstreams, &'static str)>,
    /// The other nodes of a cluster.
    pub(super) replication: Option<ReplicationOptions>,
    /// Identity that the directories are marked with; the default one marks nothing.
    pub(super) identity: Identity,
    /// Number of groups of the catalogue. With two, the keys of the bucket are in group 1.
    pub(super) groups: u32,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            placing: PlacingSettings::default(),
            capacity_bytes: u64::MAX / 2,
            intercept: None,
            cold_dirs: &["cold-1", "cold-2"],
            remote_tier: None,
            replication: None,
            identity: Identity::default(),
            groups: 1,
        }
    }
}

/// Seals keys by inverting their bits: sufficient to test that sealing is used.
struct InvertingSealer;

impl SealKeys for InvertingSealer {
    fn seal(&self, segment: SegmentId, key: &ReplicaKey) -> io::Result<Vec<u8>> {
        Ok(key.expose().iter().map(|byte| !byte).chain([segment.0 as u8]).collect())
    }

    fn open(&self, segment: SegmentId, sealed: &[u8]) -> io::Result<ReplicaKey> {
        let (of, key) = sealed.split_last().unwrap();
        assert_eq!(*of, segment.0 as u8);
        let key: Vec<u8> = key.iter().map(|byte| !byte).collect();
        Ok(ReplicaKey::new(Zeroizing::new(key.try_into().unwrap())))
    }
}

pub(super) fn remote_tier_options(
    dir: &Path,
    remote_tier: Option<(Upstreams, &'static str)>,
) -> Option<RemoteTierOptions> {
    let (upstreams, spill_to) = remote_tier?;
    Some(RemoteTierOptions {
        upstreams,
        spill_to: Some(spill_to.to_owned()),
        keys: Arc::new(InvertingSealer),
        leftovers: dir.join("leftovers.json"),
    })
}

pub(super) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)))
}

async fn open_catalogue(dir: &Path, groups: u32) -> Catalogue {
    let options = CatalogueOptions { groups, ..CatalogueOptions::new(dir.join("catalogue"), clock()) };
    Catalogue::open(options).await.unwrap()
}

async fn open_tier(dir: &Path, catalogue: &Catalogue, tuned: &BenchOptions) -> HotTier {
    // Passes run on request only.
    let compaction = CompactionSettings {
        interval: Duration::from_secs(3600),
        bytes_per_second: u64::MAX,
        ..CompactionSettings::default()
    };
    let BenchOptions {
        placing,
        capacity_bytes,
        intercept,
        cold_dirs,
        remote_tier: upstream,
        replication,
        identity,
        groups: _,
    } = tuned.clone();
    let cold_dirs = cold_dirs.iter().map(|name| dir.join(name)).collect();
    let remote_tier = remote_tier_options(dir, upstream);
    let changed = HotOptions { placing, capacity_bytes, intercept, cold_dirs, remote_tier, ..options(dir) };
    let lineage = Lineage { own: identity, ..changed.lineage.clone() };
    let options = HotOptions { segment_bytes: SEGMENT_BYTES, compaction, replication, lineage, ..changed };
    HotTier::open(options, catalogue.clone()).await.unwrap()
}

impl Bench {
    pub(super) async fn new() -> Self {
        Self::tuned(BenchOptions::default()).await
    }

    pub(super) async fn tuned(tuned: BenchOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = open_catalogue(dir.path(), tuned.groups).await;
        let new = NewBucket {
            name: BucketName::new("data").unwrap(),
            owner: "o".into(),
            region: String::new(),
            binding: None,
            split_keys: SplitKeys::default(),
        };
        let bucket = catalogue.create_bucket(new).await.unwrap();
        let tier = open_tier(dir.path(), &catalogue, &tuned).await;
        Self { dir, catalogue, bucket, tier, tuned }
    }

    pub(super) async fn reopen(self) -> Self {
        let Self { dir, catalogue, bucket, tier, tuned } = self;
        tier.shutdown().await;
        catalogue.shutdown().await;
        let catalogue = open_catalogue(dir.path(), tuned.groups).await;
        let tier = open_tier(dir.path(), &catalogue, &tuned).await;
        Self { dir, catalogue, bucket, tier, tuned }
    }

    pub(super) async fn close(self) {
        self.tier.shutdown().await;
        self.catalogue.shutdown().await;
    }

    pub(super) async fn on(&self, object: &str, change: ObjectChange) -> Result<(), ProposeError> {
        let now = Timestamp(1_700_000_000_000);
        let command = Command::object(&self.bucket, &ObjectKey::new(object).unwrap(), now, change);
        self.catalogue.propose(command).await.map(drop)
    }

    /// Appends `data` as the chunks of a body, `of` bytes each.
    pub(super) async fn append(
        &self,
        object: &str,
        body: BodyId,
        data: &[u8],
        of: usize,
    ) -> Vec<AppendedChunk> {
        let mut appended = Vec::new();
        for (index, piece) in data.chunks(of).enumerate() {
            let chunk = Chunk {
                key: ObjectKey::new(object).unwrap(),
                offset: (index * of) as u64,
                bucket: self.bucket.bucket_id(),
                ..chunk(body.0, piece.to_vec())
            };
            appended.push(self.tier.append(chunk).await.unwrap());
        }
        appended
    }

    pub(super) async fn name(
        &self,
        object: &str,
        body: BodyId,
        extents: Vec<Extent>,
    ) -> Result<(), ProposeError> {
        let size = extents.iter().map(|extent| extent.logical_bytes).sum();
        let version = ObjectVersion { body_id: body.0, size, ..ObjectVersion::default() };
        let (extents, pages) = match extents.len() {
            0..=4 => (extents, vec![]),
            _ => {
                let page = |extents: &[Extent]| ExtentPage { extents: extents.to_vec(), parts: vec![] };
                (vec![], extents.chunks(3).map(page).collect())
            }
        };
        let version = ObjectVersion { extents, ..version };
        let put = PutObject { version, pages, ..PutObject::default() };
        self.on(object, ObjectChange::Put(put)).await
    }

    pub(super) async fn put(&self, object: &str, length: usize) -> BodyId {
        let body = self.catalogue.body_id().await.unwrap();
        let appended = self.append(object, body, &bytes_of(body.0, length), 60_000).await;
        self.name(object, body, appended.into_iter().map(|one| one.extent).collect()).await.unwrap();
        body
    }

    pub(super) async fn delete(&self, object: &str) {
        let delete = DeleteObject { conditions: Conditions::default() };
        self.on(object, ObjectChange::Delete(delete)).await.unwrap();
    }

    /// Current extents of an object.
    pub(super) fn extents(&self, object: &str) -> Vec<Extent> {
        let (id, key) = (self.bucket.bucket_id(), ObjectKey::new(object).unwrap());
        let version = self.catalogue.object(id, &key).unwrap().unwrap();
        let reader = self.catalogue.reader();
        let pages = reader.extent_pages(id, &key, version.body(), 0);
        version.extents.into_iter().chain(pages.flat_map(|page| page.unwrap().1.extents)).collect()
    }

    pub(super) async fn reads(&self, object: &str, body: BodyId, length: usize) {
        let mut data = Vec::new();
        for extent in self.extents(object) {
            data.extend(read_all(&self.tier, &extent, body.0).await);
        }
        assert!(data == bytes_of(body.0, length), "{object} reads back");
    }

    pub(super) async fn compact(&self, dead_percent: u64) {
        let until = self.tier.compact(dead_percent);
        while self.tier.compaction().passes < until {
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
        self.place().await;
    }

    /// Runs a pass of moves between tiers.
    pub(super) async fn place(&self) {
        let until = self.tier.inner.placing.start_pass();
        while self.tier.placing().passes < until {
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path().join("segments")).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.ends_with(".seg"));
        names.sort();
        names
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        let bytes = |name: &String| self.path(name).metadata().unwrap().len();
        self.files().iter().map(bytes).sum()
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("segments").join(name)
    }
}
