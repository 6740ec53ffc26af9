//! Tests: length of traces of generated workloads, and the time to write and read them.

use crate::labelled::Traffic;
use crate::workload::{GeneratedWorkload, SimulationProfile, WorkloadSettings, workload};
use mlgw_policies::trace::{TraceReader, TraceWriter};

/// Bytes of a trace of a workload, and its number of events.
fn traced(GeneratedWorkload { scene, requests }: GeneratedWorkload) -> (Vec<u8>, u64) {
    let mut out = Vec::new();
    let mut writer = TraceWriter::new(0, &mut out);
    let mut count = 0;
    for request in requests {
        assert!(writer.write(&scene.access(&request), &mut out));
        count += 1;
    }
    writer.flush(&mut out);
    (out, count)
}

#[test]
fn typical_traffic_takes_few_bytes() {
    let settings = WorkloadSettings::default();
    for profile in SimulationProfile::ALL.iter().copied() {
        let (bytes, count) = traced(workload(profile, &settings).unwrap());
        let each = bytes.len() as f64 / count as f64;
        println!("{}: {each:.1} bytes for an event", profile.name());
        assert!(each <= 12.0, "{}: {each}", profile.name());
    }
    let (bytes, count) = traced(Traffic::new(1).generate());
    assert!(bytes.len() as u64 <= count * 12, "{} of {count}", bytes.len());
}

#[test]
#[ignore = "takes seconds; prints the throughput"]
fn speed() {
    for (profile, objects) in [(SimulationProfile::Mix, 60_000), (SimulationProfile::Retinanet, 400_000)] {
        let settings = WorkloadSettings { objects: Some(objects), ..WorkloadSettings::default() };
        let begin = mlgw_common::time::Instant::now();
        let (bytes, count) = traced(workload(profile, &settings).unwrap());
        let took = begin.elapsed().as_secs_f64();
        println!("{}: {count} made and written in {took:.2} s, {} bytes", profile.name(), bytes.len());
        let begin = mlgw_common::time::Instant::now();
        let mut reader = TraceReader::new();
        let mut sum = 0;
        for piece in bytes.chunks(1 << 20) {
            reader.push(piece);
            while let Some(access) = reader.read().unwrap() {
                sum += access.key.len() as u64 + access.range.end;
            }
        }
        let took = begin.elapsed().as_secs_f64();
        assert_eq!(reader.finish().events, count);
        println!("read in {took:.2} s: {:.1} million a second ({sum})", count as f64 / took / 1e6);
    }
}
