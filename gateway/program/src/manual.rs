//! Manual pages, one for each command: `mlgw.1`, `mlgw-bucket.1`, `mlgw-bucket-show.1` and so on.
//!
//! They contain the help of the command line and nothing of this machine.

use clap::{Args, Command};
use clap_mangen::Man;
use mlgw_cli::{CliError, Out};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::{fs, io};

#[derive(Debug, Args)]
pub(super) struct ManualArgs {
    /// Directory for the pages, such as /usr/local/share/man/man1. It is created if it does not exist.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// A manual page: the name of its file, and its text.
struct ManualPage {
    file: String,
    text: Vec<u8>,
}

/// Writes all pages. Existing ones are replaced.
pub(super) fn run(args: &ManualArgs, program: Command, out: Out) -> Result<(), CliError> {
    let failed = |path: &Path, error: io::Error| CliError::Failed(format!("{}: {error}", path.display()));
    fs::create_dir_all(&args.dir).map_err(|error| failed(&args.dir, error))?;
    let pages = pages(program).map_err(|error| failed(&args.dir, error))?;
    for page in &pages {
        let path = args.dir.join(&page.file);
        fs::write(&path, &page.text).map_err(|error| failed(&path, error))?;
    }
    let dir = args.dir.display().to_string();
    let sentence = format!("Wrote {} pages to {dir}.", pages.len());
    out.done(&json!({ "dir": dir, "pages": pages.len() }), &sentence)
}

/// Returns the pages of all commands of the program.
fn pages(program: Command) -> io::Result<Vec<ManualPage>> {
    // `help COMMAND` would repeat every page.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    add_pages(program, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: Command, pages: &mut Vec<ManualPage>) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        add_pages(subcommand.clone(), pages)?;
    }
    let source = concat!("mlgw ", env!("CARGO_PKG_VERSION"));
    // An empty date would be omitted, and the source would take its place.
    let page = Man::new(command).date(" ").source(source).manual("mlgw");
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push(ManualPage { file: page.get_filename(), text });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ManualPage, pages};
    use crate::Cli;
    use clap::{Command, CommandFactory as _};
    use std::io::{ErrorKind, Write as _};
    use std::process::{Command as Process, Stdio};

    /// Adds the names of the pages of a command and of those below it.
    fn add_names(command: &Command, name: &str, names: &mut Vec<String>) {
        names.push(format!("{name}.1"));
        for subcommand in command.get_subcommands() {
            add_names(subcommand, &format!("{name}-{}", subcommand.get_name()), names);
        }
    }

    #[test]
    fn each_command_has_a_page() {
        let mut names = Vec::new();
        add_names(&Cli::command(), "mlgw", &mut names);
        let mut files: Vec<String> =
            pages(Cli::command()).unwrap().into_iter().map(|page| page.file).collect();
        names.sort();
        files.sort();
        assert_eq!(files, names);
        assert!(files.iter().any(|file| file == "mlgw-workload-plan-put.1"), "{files:?}");
    }

    #[test]
    fn a_page_has_its_title_and_sections() {
        for ManualPage { file, text } in pages(Cli::command()).unwrap() {
            let text = String::from_utf8(text).unwrap();
            let title = file.trim_end_matches(".1");
            let head = format!(".TH {title} 1 \" \" \"mlgw {}\" mlgw", env!("CARGO_PKG_VERSION"));
            assert!(text.lines().any(|line| line == head), "{head} is missing: {text}");
            let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            assert_eq!(sections[..4], ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"], "{file}");
        }
    }

    /// Returns the problem of a line of a page, if it has a request or an escape sequence that pages do not
    /// use. An apostrophe or a full stop at its beginning would be a request.
    fn problem_of(line: &str) -> Option<String> {
        const REQUESTS: [&str; 9] = ["TH", "SH", "TP", "IP", "RS", "RE", "br", "ie", "el"];
        const ESCAPES: [&str; 8] = ["-", "e", "fR", "fB", "fI", "(bu", "(aq", "*(Aq"];
        let request = line.strip_prefix(['.', '\'']).map(|rest| rest.split(' ').next().unwrap_or(rest));
        if let Some(request) = request.filter(|request| !REQUESTS.contains(request)) {
            return Some(format!("unknown request {request:?}"));
        }
        // The first lines define `\*(Aq` for formatters with and without `\(aq`.
        if line == r".ie \n(.g .ds Aq \(aq" || line == ".el .ds Aq '" {
            return None;
        }
        let mut escapes = line.split('\\').skip(1);
        let unknown = escapes.find(|rest| !ESCAPES.iter().any(|escape| rest.starts_with(escape)));
        unknown.map(|rest| format!("unknown escape sequence \\{rest}"))
    }

    #[test]
    fn pages_have_only_known_requests_and_escapes() {
        for ManualPage { file, text } in pages(Cli::command()).unwrap() {
            let text = String::from_utf8(text).unwrap();
            for line in text.lines() {
                assert_eq!(problem_of(line), None, "{file}: {line}");
                let font = line.rfind(r"\f").map_or("R", |at| &line[at + 2..at + 3]);
                assert_eq!(font, "R", "{file}: the font of {line:?} continues after it");
            }
            let count = |request| text.lines().filter(|line| line.starts_with(request)).count();
            assert_eq!(count(".RS"), count(".RE"), "{file}");
        }
        for line in ["'quoted' word", ".PP", r"a\nb", r"a\zb"] {
            assert!(problem_of(line).is_some(), "{line}");
        }
    }

    #[test]
    fn the_formatter_of_man_has_no_warnings() {
        for ManualPage { file, text } in pages(Cli::command()).unwrap() {
            let mut groff = Process::new("groff");
            groff.args(["-Kutf8", "-man", "-ww", "-Tutf8"]).stdin(Stdio::piped()).stdout(Stdio::null());
            let mut running = match groff.stderr(Stdio::piped()).spawn() {
                Ok(running) => running,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return eprintln!("SKIPPED the warnings of manual pages: groff is not installed here");
                }
                Err(error) => panic!("groff: {error}"),
            };
            running.stdin.take().unwrap().write_all(&text).unwrap();
            let done = running.wait_with_output().unwrap();
            let warnings = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() && warnings.is_empty(), "{file}: {warnings}");
        }
    }
}
