//! Checkpoints: every rank writes its part of each, and some checkpoints are read back completely.

use super::{LENGTH_US, TrafficBuilder, ranges};
use crate::scene::{GeneratedRequest, StreamPattern};
use mlgw_policies::access::Op;

#[derive(Clone, Copy)]
enum CheckpointFileSet {
    /// PyTorch distributed checkpoint: one shard for each part, then the metadata file.
    Distributed,
    /// Shards, then an index.
    Safetensors,
    /// A single file, then a copy of it under a constant name.
    Single,
}

struct CheckpointSeries {
    job: usize,
    files: CheckpointFileSet,
    parts: u32,
    part_bytes: u64,
    callers: Vec<u16>,
    stream: u16,
}

impl CheckpointSeries {
    /// Names and sizes of the files of one checkpoint, in the order in which they are written.
    fn files(&self, step: u32) -> Vec<(String, u64)> {
        let directory = format!("run-{}/checkpoint-{step:07}", self.job);
        let mut files: Vec<_> = match self.files {
            CheckpointFileSet::Distributed => (0..self.parts)
                .map(|part| (format!("{directory}/__{part}_0.distcp"), self.part_bytes))
                .collect(),
            CheckpointFileSet::Safetensors => {
                let name =
                    |part| format!("{directory}/model-{:05}-of-{:05}.safetensors", part + 1, self.parts);
                (0..self.parts).map(|part| (name(part), self.part_bytes)).collect()
            }
            CheckpointFileSet::Single => vec![(format!("{directory}.ckpt"), self.part_bytes)],
        };
        files.push(match self.files {
            CheckpointFileSet::Distributed => (format!("{directory}/.metadata"), 90_000),
            CheckpointFileSet::Safetensors => (format!("{directory}/model.safetensors.index.json"), 30_000),
            CheckpointFileSet::Single => (format!("run-{}/last.ckpt", self.job), self.part_bytes),
        });
        files
    }
}

impl TrafficBuilder {
    pub(super) fn checkpoints(&mut self, job: usize) {
        let dataset = self.dataset_number();
        let stream = self.scene.add_stream(StreamPattern::Checkpoint, dataset, 1);
        let callers = self.random.usize(1..=4);
        let callers = self.ranks(job, callers);
        let files =
            [CheckpointFileSet::Distributed, CheckpointFileSet::Safetensors, CheckpointFileSet::Single]
                [self.random.usize(0..3)];
        let part_bytes = (8e6 * (self.random.f64() * 4.0).exp()) as u64;
        let parts = self.random.u32(2..=16);
        let plan = CheckpointSeries { job, files, parts, part_bytes, callers, stream };
        let count = self.random.u32(8..=20);
        let restored = self.random.u32(2..=4);
        let begin_us = LENGTH_US * 0.2 * self.random.f64();
        let every_us = LENGTH_US * 0.7 / f64::from(count);
        let mut constant_key = None;
        for number in 0..count {
            let at_us = begin_us + every_us * f64::from(number);
            let reads = self.add_checkpoint(&plan, number, at_us, every_us, &mut constant_key);
            if number % restored == restored - 1 {
                self.requests.add(reads[0].at_us, Box::new(reads.into_iter()));
            }
        }
    }

    /// Adds the writes of a checkpoint. Returns the reads that restore it.
    fn add_checkpoint(
        &mut self,
        plan: &CheckpointSeries,
        number: u32,
        at_us: f64,
        every_us: f64,
        constant_key: &mut Option<u32>,
    ) -> Vec<GeneratedRequest> {
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        let files = plan.files((number + 1) * 500);
        for (part, (name, size)) in files.iter().enumerate() {
            let key = match constant_key {
                Some(key) if name.ends_with("last.ckpt") => *key,
                _ => self.scene.add_key("checkpoints", name, *size),
            };
            if name.ends_with("last.ckpt") {
                *constant_key = Some(key);
            }
            let caller = plan.callers[part % plan.callers.len()];
            let request = |at: f64, range, op| GeneratedRequest {
                at_us: at as u64,
                range,
                key,
                epoch: number,
                caller,
                stream: plan.stream,
                op,
            };
            writes.push(request(
                at_us + every_us * 0.1 * part as f64 / files.len() as f64,
                0..*size,
                Op::Write,
            ));
            // Restores read parts of 8 MiB or more, at most sixteen of an object.
            let part_bytes = (size / 16).max(8 << 20);
            for (_, range) in ranges(key, *size, part_bytes) {
                let at = at_us + every_us * (0.5 + 0.2 * reads.len() as f64 / (16 * files.len()) as f64);
                reads.push(request(at, range, Op::Read));
            }
        }
        self.requests.add(at_us as u64, Box::new(writes.into_iter()));
        reads
    }
}
