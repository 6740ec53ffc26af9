//! Shell completion: the script that a shell loads, and the answers to the shell at each press of TAB.
//!
//! The script runs this program with [`VARIABLE`] set. The program then completes the given command line and
//! exits. Names of buckets, datasets, jobs and others come from the running server.

use super::Cli;
use clap::{Args, CommandFactory as _};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use mlgw_cli::{CliError, Out};
use std::path::PathBuf;

/// Environment variable with the name of the shell that requests a completion.
const VARIABLE: &str = "MLGW_COMPLETE";

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Completes a command line and exits, if a shell started this process for that.
pub(super) fn answer_shell() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// Prints the script of a shell. It runs this program by name if it was started by name, otherwise by its
/// absolute path.
pub(super) fn run(args: &CompletionsArgs, out: Out) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::Failed(format!("completion script: {error}"));
    let mut program = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    if program.components().nth(1).is_some() {
        program = std::path::absolute(program).map_err(failed)?;
    }
    let name = args.shell.to_string();
    let shell = Shells::builtins();
    let shell = shell.completer(&name).ok_or_else(|| CliError::Usage(format!("{name}: no script")))?;
    let mut script = Vec::new();
    let program = program.to_string_lossy();
    shell.write_registration(VARIABLE, "mlgw", "mlgw", &program, &mut script).map_err(failed)?;
    out.text(&String::from_utf8_lossy(&script))
}
