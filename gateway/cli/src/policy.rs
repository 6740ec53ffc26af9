//! The command `mlgw policy …`.
//!
//! Schema, validate, test and simulate need no server and write no file but the requested plot. The others
//! use a server.

mod apply;
mod decisions;
mod examine;
mod explain;
mod history;
mod keys;
mod outcomes;
mod plan;
mod plot;
mod simulate;
mod text;
mod validate;

use super::object::{ObjectUri, parse_object_uri};
use super::output::Out;
use super::{CliError, Global, run_async};
use clap::Subcommand;
use mlgw_policies::language;
pub(super) use text::{read, unreadable};

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print the JSON Schema of policy files, for editors and programs.
    Schema {
        /// Print the schema of framework plugins instead.
        #[arg(long)]
        framework: bool,
    },
    /// Check files and list every error with its line.
    Validate(validate::ValidateArgs),
    /// Show which rules match which keys, as far as keys alone determine it.
    Test(examine::TestArgs),
    /// Simulate caches on a trace or a generated workload: mlgw, other policies, and the optimum.
    Simulate(simulate::SimulateArgs),
    /// Show the effect of a policy on stored objects, compared with the running one. Changes nothing.
    Plan(plan::PlanArgs),
    /// Apply a policy immediately and permanently. An invalid policy is refused as a whole.
    Apply(apply::ApplyArgs),
    /// Show the running policy, as it was applied.
    Show {
        /// Show the merged layers, with the source of each value.
        #[arg(long)]
        effective: bool,
    },
    /// List the versions of the policy, the newest first.
    History {
        /// Maximum number of versions.
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
    },
    /// Return to the files of another version, as a new version.
    Rollback(apply::RollbackArgs),
    /// Stop the learning: no bound is adjusted automatically.
    Freeze(apply::FreezeArgs),
    /// Resume the learning.
    Unfreeze(apply::FreezeArgs),
    /// Explain the decisions on an object: each rule with its inputs, due actions, and reasons.
    Explain {
        /// The object.
        #[arg(value_name = "s3://BUCKET/KEY", value_parser = parse_object_uri)]
        object: ObjectUri,
    },
    /// Show the outcomes of decisions, by rule and by dataset, compared with other caches.
    Outcomes,
    /// List recent moves, cached copies and evictions with their reasons, the newest first.
    Decisions(decisions::DecisionsArgs),
}

pub(super) fn run(command: PolicyCommand, global: &Global, out: Out) -> Result<(), CliError> {
    match command {
        PolicyCommand::Schema { framework } => {
            let schema = if framework { language::framework_schema() } else { language::schema() };
            out.text(&format!("{schema:#}\n"))
        }
        PolicyCommand::Validate(args) => validate::run(&args, out),
        PolicyCommand::Test(args) => examine::run(&args, out),
        PolicyCommand::Simulate(args) => simulate::run(&args, out),
        PolicyCommand::Plan(args) => run_async(plan::run(args, global, out)),
        PolicyCommand::Apply(args) => run_async(apply::run(args, global, out)),
        PolicyCommand::Show { effective: true } => run_async(history::show_effective(global, out)),
        PolicyCommand::Show { effective: false } => run_async(history::show(global, out)),
        PolicyCommand::History { limit } => run_async(history::list(limit, global, out)),
        PolicyCommand::Rollback(args) => run_async(apply::roll_back(args, global, out)),
        PolicyCommand::Freeze(args) => run_async(apply::freeze(args, "freeze", global, out)),
        PolicyCommand::Unfreeze(args) => run_async(apply::freeze(args, "unfreeze", global, out)),
        PolicyCommand::Explain { object } => run_async(explain::run(&object, global, out)),
        PolicyCommand::Outcomes => run_async(outcomes::run(global, out)),
        PolicyCommand::Decisions(args) => run_async(decisions::run(args, global, out)),
    }
}

#[cfg(test)]
mod tests {
    use mlgw_policies::language;
    use mlgw_testing::printed::assert_section_is;

    #[test]
    fn the_tables_of_the_language_are_documented() {
        assert_section_is("docs/POLICIES.md", "tables", language::language_tables().trim());
    }
}
