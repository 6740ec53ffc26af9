//! Measurement of the time in which a start verifies that its directories are its own. Run with `cargo
//! nextest run --release --run-ignored only --no-capture -E 'test(start_time)'`.

use super::*;
use crate::hot::map::NewSegment;
use crate::hot::{SegmentDirs, segment_file_name};
use mlgw_common::time::Instant;
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName};
use mlgw_formats::command::{Change, Command, Reply};
use mlgw_formats::command::{CreateSegment, SealSegment};
use mlgw_formats::segment_header::SegmentHeader;
use mlgw_metadata::identity::ExpectedServer;
use mlgw_metadata::{Catalogue, CatalogueOptions, Durability};
use std::time::Duration;

const SEGMENTS: u64 = 100_000;
/// Segments that are created concurrently.
const AT_ONCE: usize = 500;
/// Maximum duration of a start.
const WITHIN: Duration = Duration::from_secs(2);

const OWN: Identity = Identity { cluster: ClusterId(1), node: NodeName(2), incarnation: Incarnation(3) };

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)))
}

async fn catalogue(dir: &Path, durability: Durability) -> Catalogue {
    let mut options = CatalogueOptions::new(dir.join("catalogue"), clock());
    options.durability = durability;
    let lineage = Lineage { own: OWN, marking: true, ..Lineage::default() };
    options.expected = Some(ExpectedServer { lineage, floor: 0 });
    Catalogue::open(options).await.unwrap()
}

/// Creates segments in the catalogue, and sparse files for them.
async fn fill(dir: &Path) {
    let catalogue = catalogue(dir, Durability::Os).await;
    let hot = dir.join("hot");
    std::fs::create_dir(&hot).unwrap();
    for first in (1..=SEGMENTS).step_by(AT_ONCE) {
        let made = (first..first + AT_ONCE as u64).map(|stamp| make(&catalogue, &hot, stamp));
        futures_util::future::join_all(made).await;
    }
    catalogue.shutdown().await;
}

/// Creates a sealed segment in the catalogue, and its file.
async fn make(catalogue: &Catalogue, hot: &Path, stamp: u64) {
    let create =
        CreateSegment { class: 1, node: 1, created_ms: 1_700_000_000_000, stamp, ..Default::default() };
    let made = catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap();
    let Reply::Segment(record) = made else { panic!("{made:?}") };
    let seal = SealSegment { segment: record.id, length: 1 << 20, ..SealSegment::default() };
    catalogue.propose(Command::from(Change::SealSegment(seal))).await.unwrap();
    let (id, created) = (record.segment_id(), Timestamp(record.created_ms));
    let header = SegmentHeader::of(&NewSegment { id, seed: record.seed(), created }, record.class(), &OWN);
    let file = std::fs::File::create(hot.join(segment_file_name(id))).unwrap();
    std::io::Write::write_all(&mut &file, &header.encode()).unwrap();
    file.set_len(1 << 20).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_start_verifies_its_segments_in_time() {
    let room = tempfile::tempdir().unwrap();
    fill(room.path()).await;
    // The first start compares every file with its record and marks the directory.
    for start in ["marks", "again"] {
        let begun = Instant::now();
        let floor =
            crate::hot::log_floor(&SegmentDirs::new(room.path().join("hot"), Vec::new()), OWN.incarnation)
                .unwrap();
        let floors = begun.elapsed();
        let catalogue = catalogue(room.path(), Durability::Full).await;
        let opened = begun.elapsed();
        let mut options = HotOptions::new(room.path().join("hot"), 1 << 40, clock());
        options.lineage = Lineage { own: OWN, ..Lineage::default() };
        let tier = HotTier::open(options, catalogue.clone()).await.unwrap();
        let all = begun.elapsed();
        println!(
            "{start}: floor {floor} in {floors:?}, catalogue {:?}, directory {:?}, together {all:?}",
            opened - floors,
            all - opened
        );
        // The first start reads every header, once in the life of a directory.
        assert!(start == "marks" || all < WITHIN, "{all:?}");
        tier.shutdown().await;
        catalogue.shutdown().await;
    }
}
