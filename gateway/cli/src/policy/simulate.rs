//! The command `mlgw policy simulate`.

use super::plot::{Plot, PlotLine};
use super::text::{self, LowerLayerArgs};
use crate::CliError;
use crate::output::{Out, columns};
use crate::progress::CommandProgress;
use crate::word_arg::word_of;
use clap::Args;
use mlgw_api::{EpochOrderName, SimulationRow};
use mlgw_common::ByteSize;
use mlgw_lab::comparison::CacheAlgorithm;
use mlgw_lab::scenario::Scenario;
use mlgw_lab::simulate::{Simulation, SimulationProgress, algorithms, parse_order};
use mlgw_lab::sizes::{CacheSize, DEFAULT_CACHES, block_bytes};
use mlgw_lab::workload::{SimulationProfile, WorkloadSettings};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Policy whose rules apply. Default for a trace: the built-in rules.
    file: Option<PathBuf>,
    /// Recorded accesses, from `mlgw trace import`.
    #[arg(long, value_name = "F", conflicts_with = "profile")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    generated: Generated,
    #[command(flatten)]
    beneath: LowerLayerArgs,
    /// Sizes of the cache: fractions of the workload's bytes, or bytes such as 10GiB.
    #[arg(long, value_delimiter = ',', default_value = DEFAULT_CACHES, value_name = "C,…")]
    cache: Vec<CacheSize>,
    /// Bytes of a block.
    #[arg(long, value_parser = block_bytes, default_value = "8MiB", value_name = "SIZE")]
    block: u32,
    /// Simulate only these policies.
    #[arg(
        long, value_delimiter = ',', value_name = "NAMES",
        value_parser = word_of(CacheAlgorithm::ALL, CacheAlgorithm::name)
    )]
    policy: Vec<CacheAlgorithm>,
    /// First counted epoch of each job, starting at 1.
    #[arg(
        long, default_value_t = 1, value_name = "N", conflicts_with = "trace",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    from_epoch: u32,
    /// Jobs submit access plans to the engine in advance.
    #[arg(long, conflicts_with = "trace")]
    plans: bool,
    /// Draw byte hit ratios into this SVG file.
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    plot: Option<PathBuf>,
}

/// Parameters of a generated workload. Omitted ones have the defaults of the profile.
#[derive(Debug, Args)]
struct Generated {
    /// Generated workload.
    #[arg(long, value_name = "P", value_parser = word_of(SimulationProfile::ALL, SimulationProfile::name))]
    profile: Option<SimulationProfile>,
    /// Jobs on the dataset. In mix: trainers of the hyperparameter search.
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    workloads: Option<u16>,
    /// Seed of orders, times and sizes.
    #[arg(long, value_name = "S", default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
    /// Epochs of each job. In zipf: requests for each object.
    #[arg(long, value_name = "E", conflicts_with = "trace")]
    epochs: Option<u32>,
    /// Order of each job's epochs: `sequential` (by key), `shuffled` (a new random order each epoch) or
    /// `shard-shuffled` (shards in random order, the objects of each by key).
    #[arg(
        long, value_name = "O", conflicts_with = "trace",
        value_parser = word_of(EpochOrderName::ALL, EpochOrderName::name)
    )]
    order: Option<EpochOrderName>,
    /// Objects of the dataset. In mix: of a training set.
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    objects: Option<u32>,
}

impl SimulateArgs {
    fn scenario(&self) -> Result<Scenario, CliError> {
        let Generated { profile, workloads, seed, epochs, order, objects } = self.generated;
        let order = order.map(parse_order);
        match (&self.trace, profile) {
            (Some(trace), _) => Ok(Scenario::of_file(trace)),
            (None, Some(profile)) => {
                let settings = WorkloadSettings {
                    seed,
                    workloads,
                    epochs,
                    order,
                    objects,
                    ..WorkloadSettings::default()
                };
                Ok(Scenario::Profile(profile, settings))
            }
            (None, None) => {
                Err(CliError::Usage("nothing to replay: give --trace FILE or --profile NAME".to_owned()))
            }
        }
    }

    /// Returns true if rules apply: for a policy, a trace, a framework plugin or an environment. Other
    /// runs use the engine alone.
    fn has_rules(&self) -> bool {
        let LowerLayerArgs { framework, environment } = &self.beneath;
        self.file.is_some() || self.trace.is_some() || !framework.is_empty() || environment.is_some()
    }
}

/// Parses the path of an SVG file.
fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|of| of.eq_ignore_ascii_case("svg"));
    if is_svg { Ok(path) } else { Err("expected a name that ends in .svg".to_owned()) }
}

/// Maximum number of blocks requested in total: block numbers have 32 bits.
const BLOCKS_MAX: usize = i32::MAX as usize;

pub(super) fn run(args: &SimulateArgs, out: Out) -> Result<(), CliError> {
    let scenario = args.scenario()?;
    let program = text::program(args.file.as_ref(), &args.beneath)?;
    let simulation = Simulation {
        scenario,
        program: args.has_rules().then(|| Arc::new(program)),
        caches: args.cache.clone(),
        block_bytes: args.block,
        algorithms: algorithms(&args.policy),
        from_epoch: args.from_epoch,
        plans: args.plans,
        blocks_max: BLOCKS_MAX,
    };
    let progress = CommandProgress::new(out.quiet);
    let simulated = simulation.run(&|SimulationProgress { share, done, total: of }| {
        match share {
            None if of > 0 => progress.line(0, 0, || "finishing the last caches".to_owned()),
            None => progress.count("reading accesses", done, 0),
            Some(share) => progress.count(&format!("cache of {share:.2}"), done, of),
        }
        Ok(())
    });
    progress.done();
    let simulated = simulated?;
    if let Some(path) = &args.plot {
        let written = std::fs::write(path, plot(&simulated).svg());
        written.map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))?;
    }
    out.document(&simulated, |simulated| table(simulated))
}

fn table(simulated: &[SimulationRow]) -> String {
    let row = |one: &SimulationRow| {
        vec![
            format!("{:.2}", one.cache_fraction),
            one.policy.to_string(),
            format!("{:.4}", one.object_hit_ratio),
            format!("{:.4}", one.byte_hit_ratio),
            ByteSize(one.upstream_bytes).human(),
            ByteSize(one.flash_bytes_written).human(),
        ]
    };
    let rows: Vec<_> = simulated.iter().map(row).collect();
    columns(&["CACHE", "POLICY", "OBJECT HITS", "BYTE HITS", "FROM UPSTREAM", "WRITTEN TO FLASH"], &rows)
}

fn plot(simulated: &[SimulationRow]) -> Plot {
    let mut lines: Vec<PlotLine> = Vec::new();
    for one in simulated {
        let point = (one.cache_fraction, one.byte_hit_ratio);
        match lines.iter_mut().find(|line| line.name == one.policy.name()) {
            Some(line) => line.points.push(point),
            None => lines.push(PlotLine { name: one.policy.name(), points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let title = simulated.first().map_or_else(String::new, |one| match one.seed {
        0 => one.profile.clone(),
        seed => format!("{}, seed {seed}", one.profile),
    });
    Plot { title, x: "cache size, fraction of all bytes", y: "byte hit ratio", lines }
}

#[cfg(test)]
mod tests {
    use super::{SimulationRow, plot, svg, table};
    use mlgw_api::CacheAlgorithm;

    fn one(policy: CacheAlgorithm, cache_fraction: f64) -> SimulationRow {
        SimulationRow {
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
        assert_eq!(table(&[one(CacheAlgorithm::Mlgw, 0.5), one(CacheAlgorithm::Lru, 0.5)]), expected);
    }

    #[test]
    fn pictures_are_svg() {
        assert!(svg("a/b.SVG").is_ok());
        for other in ["a.png", "svg", ".svg", "a.svg/b"] {
            assert!(svg(other).is_err(), "{other}");
        }
    }

    #[test]
    fn lines_of_a_plot_go_to_the_right() {
        let plot = plot(&[
            one(CacheAlgorithm::Mlgw, 0.5),
            one(CacheAlgorithm::Lru, 0.5),
            one(CacheAlgorithm::Mlgw, 0.2),
        ]);
        assert_eq!(plot.title, "epochs, seed 3");
        assert_eq!(plot.lines[0].points, [(0.2, 0.2), (0.5, 0.5)]);
        assert_eq!(plot.lines[1].name, "lru");
    }
}
