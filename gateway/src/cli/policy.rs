//! `mlgw policy …`
//!
//! Schema, validate, test and simulate need no server and write nothing but the plot that they are asked for.

mod decisions;
mod examine;
mod keys;
mod plot;
mod scenario;
mod simulate;
mod sizes;
mod text;
mod validate;

use super::output::Out;
use super::{CliError, Global, talk};
use clap::Subcommand;
use mlgw_policies::language;
pub(super) use text::unreadable;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
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
        PolicyCommand::Decisions(args) => talk(decisions::run(args, global, out)),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::printed::assert_section_is;
    use mlgw_policies::language;

    #[test]
    fn the_tables_of_the_language_are_documented() {
        assert_section_is("docs/POLICIES.md", "tables", language::printed().trim());
    }
}
