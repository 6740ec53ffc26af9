//! `mlgw policy simulate`

use super::plot::{Line, Plot};
use super::scenario::Scenario;
use super::sizes::{CacheSize, block_bytes};
use super::text;
use crate::cli::CliError;
use crate::cli::output::{Out, columns};
use crate::cli::progress::Progress;
use crate::config::ByteSize;
use clap::{Args, ValueEnum};
use mlgw_policies::language::Program;
use mlgw_policies::rehearse::race::{Course, Objects, Racer, Runner, Score};
use mlgw_policies::rehearse::workload::{Order, Profile, Settings};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

#[derive(Debug, Args)]
pub(in crate::cli) struct SimulateArgs {
    /// A policy, whose rules are heeded; without one those that come with a server are, for a trace.
    file: Option<PathBuf>,
    /// Recorded accesses, of `mlgw trace import`.
    #[arg(long, value_name = "F", conflicts_with = "profile", required_unless_present = "profile")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    generated: Generated,
    /// Sizes of the cache: shares of the workload's bytes, or bytes such as 10GiB.
    #[arg(long, value_delimiter = ',', default_value = ".1,.2,.35,.5,.65,.8", value_name = "C,…")]
    cache: Vec<CacheSize>,
    /// Bytes of a block.
    #[arg(long, value_parser = block_bytes, default_value = "8MiB", value_name = "SIZE")]
    block: u32,
    /// Only these: mlgw, lru, s3-fifo, sieve, never-evict, optimum.
    #[arg(long, value_delimiter = ',', value_parser = racer, value_name = "NAMES")]
    policy: Vec<Racer>,
    /// Count from this epoch of each job on, the first being 1.
    #[arg(
        long, default_value_t = 1, value_name = "N", conflicts_with = "trace",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    from_epoch: u32,
    /// Jobs tell the engine beforehand what they will read.
    #[arg(long, conflicts_with = "trace")]
    plans: bool,
    /// Draw byte hit ratios into this file, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// What a workload is generated with. What is not given is as the profile has it.
#[derive(Debug, Args)]
struct Generated {
    /// What is generated: resnet50, unet3d, cosmoflow, retinanet, mix, k-workloads, epochs, zipf.
    #[arg(long, value_name = "P")]
    profile: Option<Profile>,
    /// Jobs on the dataset; in mix, trainers of the hyperparameter search.
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    workloads: Option<u16>,
    /// Another seed gives other orders, moments and sizes.
    #[arg(long, value_name = "S", default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
    /// Epochs of each job; in zipf, requests for each object.
    #[arg(long, value_name = "E", conflicts_with = "trace")]
    epochs: Option<u32>,
    /// Order of each job's epochs.
    #[arg(long, value_enum, value_name = "O", conflicts_with = "trace")]
    order: Option<OrderWord>,
    /// Objects of the dataset; in mix, of a training set.
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    objects: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderWord {
    /// That of the keys.
    Sequential,
    /// Another random one each time.
    Shuffled,
    /// Shards in a random order, their objects in that of the keys.
    ShardShuffled,
}

/// A row of the answer; its fields are a promise.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Simulated {
    profile: String,
    seed: u64,
    cache_fraction: f64,
    policy: &'static str,
    object_hit_ratio: f64,
    byte_hit_ratio: f64,
    upstream_bytes: u64,
    flash_bytes_written: u64,
    /// Of `mlgw` on a trace: a hash over its decisions, which is that of the server that the trace is of, if that decided alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    decisions_hash: Option<String>,
}

fn racer(name: &str) -> Result<Racer, String> {
    let names = || Racer::ALL.map(Racer::name).join(", ");
    Racer::of(name).ok_or_else(|| format!("there are {}", names()))
}

impl SimulateArgs {
    fn scenario(&self) -> Result<Scenario, CliError> {
        let Generated { profile, workloads, seed, epochs, order, objects } = self.generated;
        let order = order.map(|order| match order {
            OrderWord::Sequential => Order::Sequential,
            OrderWord::Shuffled => Order::Shuffled,
            OrderWord::ShardShuffled => Order::ShardShuffled,
        });
        match (&self.trace, profile) {
            (Some(trace), _) => Ok(Scenario::Trace(trace.clone())),
            (None, Some(profile)) => {
                let settings = Settings { seed, workloads, epochs, order, objects, ..Settings::default() };
                Ok(Scenario::Profile(profile, settings))
            }
            (None, None) => Err(CliError::Usage("--trace or --profile says what to replay".to_owned())),
        }
    }

    fn racers(&self) -> Vec<Racer> {
        let asked = |racer: &Racer| self.policy.is_empty() || self.policy.contains(racer);
        Racer::ALL.into_iter().filter(asked).collect()
    }
}

pub(super) fn run(args: &SimulateArgs, out: Out) -> Result<(), CliError> {
    let program = match &args.file {
        Some(file) => text::program(file, None)?,
        None => Program::built_in().map_err(|wrong| CliError::Failed(wrong.to_string()))?,
    };
    let progress = Progress::new(out.quiet);
    let simulated = simulate(args, &Arc::new(program), &progress);
    progress.done();
    let simulated = simulated?;
    if let Some(path) = &args.plot {
        let written = std::fs::write(path, plot(&simulated).svg());
        written.map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))?;
    }
    out.document(&simulated, |simulated| table(simulated))
}

fn simulate(
    args: &SimulateArgs,
    program: &Arc<Program>,
    progress: &Progress,
) -> Result<Vec<Simulated>, CliError> {
    let scenario = args.scenario()?;
    let counts = |epoch: u32| epoch + 1 >= args.from_epoch;
    let mut course = Course::new(args.block);
    let mut objects = Objects::default();
    let mut accesses = 0_u64;
    let whole_bytes = scenario.each(|access, epoch| {
        course.add(objects.number(access), access, counts(epoch));
        accesses += 1;
        progress.line(|| format!("reading: {accesses} accesses"));
    })?;
    drop(objects);
    let whole_bytes = whole_bytes.unwrap_or_else(|| course.bytes());
    let told = if args.plans { scenario.told()? } else { Vec::new() };
    let racers = args.racers();
    let mut simulated = Vec::new();
    for cache in &args.cache {
        let (capacity_bytes, share) = cache.of(whole_bytes);
        let mut decided = None;
        let run = || {
            // What a person or a server wrote down is decided as a server decides.
            let mut runner = if args.file.is_some() || matches!(scenario, Scenario::Trace(_)) {
                Runner::with_rules(capacity_bytes, args.block, course.blocks(), Arc::clone(program))
            } else {
                Runner::new(capacity_bytes, args.block, course.blocks())
            };
            runner.tell(&told).map_err(|error| CliError::Usage(format!("--plans: {error}")))?;
            let mut done = 0_u64;
            scenario.each(|access, epoch| {
                runner.take(access, counts(epoch));
                done += 1;
                progress.line(|| format!("cache of {share:.2}: {done} of {accesses} accesses"));
            })?;
            decided = Some(runner.fingerprint());
            Ok(runner.score())
        };
        for (racer, score) in race(&racers, &course, capacity_bytes, run)? {
            let decided = decided.filter(|_| racer == Racer::Mlgw && args.trace.is_some());
            simulated.push(Simulated {
                profile: scenario.name(),
                seed: scenario.seed(),
                cache_fraction: share,
                policy: racer.name(),
                object_hit_ratio: score.object_hit_ratio(),
                byte_hit_ratio: score.byte_hit_ratio(),
                upstream_bytes: score.upstream_bytes(),
                flash_bytes_written: score.written_bytes,
                decisions_hash: decided.map(|decided| format!("{:016x}", decided.hash)),
            });
        }
    }
    Ok(simulated)
}

/// What each racer reaches: ours as `run` says, the others on the course, meanwhile.
fn race(
    racers: &[Racer],
    course: &Course,
    capacity_bytes: u64,
    run: impl FnOnce() -> Result<Score, CliError>,
) -> Result<Vec<(Racer, Score)>, CliError> {
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let score = |racer: &Racer| Some((*racer, course.score(*racer, capacity_bytes)?));
            racers.iter().filter_map(score).collect::<Vec<_>>()
        });
        let ours = if racers.contains(&Racer::Mlgw) { Some((Racer::Mlgw, run()?)) } else { None };
        let others = others.join().map_err(|_| CliError::Failed("a reference cache failed".to_owned()))?;
        Ok(ours.into_iter().chain(others).collect())
    })
}

fn table(simulated: &[Simulated]) -> String {
    let row = |one: &Simulated| {
        vec![
            format!("{:.2}", one.cache_fraction),
            one.policy.to_owned(),
            format!("{:.4}", one.object_hit_ratio),
            format!("{:.4}", one.byte_hit_ratio),
            ByteSize(one.upstream_bytes).human(),
            ByteSize(one.flash_bytes_written).human(),
        ]
    };
    let rows: Vec<_> = simulated.iter().map(row).collect();
    columns(&["CACHE", "POLICY", "OBJECT HITS", "BYTE HITS", "FROM UPSTREAM", "WRITTEN TO FLASH"], &rows)
}

fn plot(simulated: &[Simulated]) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for one in simulated {
        let point = (one.cache_fraction, one.byte_hit_ratio);
        match lines.iter_mut().find(|line| line.name == one.policy) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: one.policy, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let title = simulated.first().map_or_else(String::new, |one| match one.seed {
        0 => one.profile.clone(),
        seed => format!("{}, seed {seed}", one.profile),
    });
    Plot { title, x: "cache, as a share of all bytes", y: "byte hit ratio", lines }
}

#[cfg(test)]
mod tests {
    use super::{Simulated, plot, table};

    fn one(policy: &'static str, cache_fraction: f64) -> Simulated {
        Simulated {
            profile: "epochs".to_owned(),
            seed: 3,
            cache_fraction,
            policy,
            object_hit_ratio: 0.25,
            byte_hit_ratio: cache_fraction,
            upstream_bytes: 3 << 20,
            flash_bytes_written: 0,
            decisions_hash: None,
        }
    }

    #[test]
    fn a_row_for_each_policy_and_size() {
        let expected = "\
CACHE  POLICY  OBJECT HITS  BYTE HITS  FROM UPSTREAM  WRITTEN TO FLASH
0.50   mlgw    0.2500       0.5000     3.0 MiB        0 B
0.50   lru     0.2500       0.5000     3.0 MiB        0 B
";
        assert_eq!(table(&[one("mlgw", 0.5), one("lru", 0.5)]), expected);
    }

    #[test]
    fn fields_for_programs_are_a_promise() {
        let expected = r#"[{"profile":"epochs","seed":3,"cache_fraction":0.5,"policy":"mlgw","object_hit_ratio":0.25,"byte_hit_ratio":0.5,"upstream_bytes":3145728,"flash_bytes_written":0}]"#;
        assert_eq!(serde_json::to_string(&[one("mlgw", 0.5)]).unwrap(), expected);
    }

    #[test]
    fn lines_of_a_plot_go_to_the_right() {
        let plot = plot(&[one("mlgw", 0.5), one("lru", 0.5), one("mlgw", 0.2)]);
        assert_eq!(plot.title, "epochs, seed 3");
        assert_eq!(plot.lines[0].points, [(0.2, 0.2), (0.5, 0.5)]);
        assert_eq!(plot.lines[1].name, "lru");
    }
}
