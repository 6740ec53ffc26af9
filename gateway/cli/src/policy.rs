//! `mlgw policy …`
//!
//! Schema, validate, test and simulate need no server and write nothing but the plot that they are asked for; the others ask a server.

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

use super::object::{Location, location};
use super::output::Out;
use super::{CliError, Global, talk};
use clap::Subcommand;
use mlgw_policies::language;
pub(super) use text::{read, unreadable};

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// The JSON Schema of policy files, for editors and programs.
    Schema {
        /// That of plugins of frameworks instead.
        #[arg(long)]
        framework: bool,
    },
    /// Whether files are right; everything that is wrong is listed with its line.
    Validate(validate::ValidateArgs),
    /// Which rules match which keys, as far as keys alone tell.
    Test(examine::TestArgs),
    /// What caches would have got on a trace or a generated workload: ours, those of others, and the best there can be.
    Simulate(simulate::SimulateArgs),
    /// What a policy would do with what is stored, beside the one that runs. Nothing changes.
    Plan(plan::PlanArgs),
    /// Lets a policy run, at once and for good. One that is wrong is refused whole.
    Apply(apply::ApplyArgs),
    /// The policy that runs, as it was applied.
    Show {
        /// What all layers come to, with where each value is from.
        #[arg(long)]
        effective: bool,
    },
    /// The versions of the policy, the newest first.
    History {
        /// At most so many.
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
    },
    /// Goes back to the files of another version; that is a version of its own.
    Rollback(apply::RollbackArgs),
    /// Stops the learning: no bound moves by itself any more.
    Freeze(apply::FreezeArgs),
    /// Lets the learning go on.
    Unfreeze(apply::FreezeArgs),
    /// What the policy makes of one object: each rule with what it saw, what is due, and why.
    Explain {
        /// The object.
        #[arg(value_name = "s3://BUCKET/KEY", value_parser = location)]
        object: Location,
    },
    /// What became of what was decided, by rule and by dataset, beside what other caches would have got.
    Outcomes,
    /// What was moved, kept and let go of lately, and why; the newest first.
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
        PolicyCommand::Plan(args) => talk(plan::run(args, global, out)),
        PolicyCommand::Apply(args) => talk(apply::run(args, global, out)),
        PolicyCommand::Show { effective } => talk(history::show(effective, global, out)),
        PolicyCommand::History { limit } => talk(history::list(limit, global, out)),
        PolicyCommand::Rollback(args) => talk(apply::roll_back(args, global, out)),
        PolicyCommand::Freeze(args) => talk(apply::freeze(args, "freeze", global, out)),
        PolicyCommand::Unfreeze(args) => talk(apply::freeze(args, "unfreeze", global, out)),
        PolicyCommand::Explain { object } => talk(explain::run(&object, global, out)),
        PolicyCommand::Outcomes => talk(outcomes::run(global, out)),
        PolicyCommand::Decisions(args) => talk(decisions::run(args, global, out)),
    }
}

#[cfg(test)]
mod tests {
    use mlgw_policies::language;
    use mlgw_testing::printed::assert_section_is;

    #[test]
    fn the_tables_of_the_language_are_documented() {
        assert_section_is("docs/POLICIES.md", "tables", language::printed().trim());
    }
}
