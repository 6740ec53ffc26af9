//! `mlgw policy validate`

use super::text::{Held, read};
use crate::cli::CliError;
use crate::cli::output::Out;
use clap::Args;
use mlgw_policies::language::{Diagnostic, Overrides, PolicyFile};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(in crate::cli) struct ValidateArgs {
    /// Policies, or plugins of frameworks, in YAML or JSON.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// What is said of a file.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Validated {
    file: String,
    kind: &'static str,
    valid: bool,
    rules: usize,
    templates: usize,
    settings: usize,
    diagnostics: Vec<Finding>,
}

/// A diagnostic, for programs.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    file: String,
    line: u32,
    column: u32,
    path: String,
    found: String,
    expected: String,
    nearest: Option<String>,
    message: String,
}

pub(super) fn run(args: &ValidateArgs, out: Out) -> Result<(), CliError> {
    let texts = args.files.iter().map(|path| Ok((path.display().to_string(), read(path)?)));
    let texts: Vec<_> = texts.collect::<Result<_, CliError>>()?;
    let validated: Vec<_> = texts.iter().map(|(file, text)| validate(file, text)).collect();
    let wrong = validated.iter().filter(|one| !one.valid).count();
    if wrong == 0 {
        return out.done(&validated, lines(&validated).trim_end());
    }
    out.document(&validated, |validated| lines(validated))?;
    Err(CliError::Failed(match (wrong, &validated[..]) {
        (_, [one]) => format!("{} is wrong", one.file),
        (1, all) => format!("1 of {} files is wrong", all.len()),
        (wrong, all) => format!("{wrong} of {} files are wrong", all.len()),
    }))
}

fn validate(file: &str, text: &str) -> Validated {
    let held = Held::parse(file, text);
    let wrong = match &held {
        Ok(held) => held.compile(None).err().map_or_else(Vec::new, |wrong| wrong.0),
        Err(wrong) => wrong.0.clone(),
    };
    let mut validated = match &held {
        Ok(Held::Policy(policy)) => counted(policy),
        Ok(Held::Framework(framework)) => Validated {
            kind: "framework",
            rules: framework.rules.len() + framework.uses.len(),
            templates: framework.templates.len(),
            ..Validated::default()
        },
        Err(_) => Validated {
            kind: if mlgw_policies::language::is_framework(text) { "framework" } else { "policy" },
            ..Validated::default()
        },
    };
    validated.file = file.to_owned();
    validated.valid = wrong.is_empty();
    validated.diagnostics = wrong.iter().map(Finding::of).collect();
    validated
}

/// What a policy holds, wherever it holds; an instance of a template counts as a rule.
fn counted(policy: &PolicyFile) -> Validated {
    let environments = policy.environments.iter().map(|(_, overrides)| overrides);
    let profiles = policy.hardware_profiles.iter().map(|profile| &profile.overrides);
    let places: Vec<&Overrides> =
        std::iter::once(&policy.everywhere).chain(environments).chain(profiles).collect();
    let of_frameworks: usize = policy.frameworks.iter().map(|section| section.rules.len()).sum();
    Validated {
        kind: "policy",
        rules: places.iter().map(|one| one.rules.len()).sum::<usize>() + of_frameworks + policy.uses.len(),
        templates: policy.templates.len(),
        settings: places.iter().map(|one| one.settings.len()).sum(),
        ..Validated::default()
    }
}

impl Finding {
    fn of(one: &Diagnostic) -> Self {
        Self {
            file: one.file.to_string(),
            line: one.line,
            column: one.column,
            path: one.path.clone(),
            found: one.found.clone(),
            expected: one.expected.clone(),
            nearest: one.nearest.clone(),
            message: one.to_string(),
        }
    }
}

fn lines(validated: &[Validated]) -> String {
    let mut text = String::new();
    for one in validated {
        if one.valid {
            text += &format!(
                "{} is right: a {} with {}, {} and {}.\n",
                one.file,
                one.kind,
                some(one.rules, "rule"),
                some(one.templates, "template"),
                some(one.settings, "setting")
            );
        }
        text.extend(one.diagnostics.iter().map(|finding| format!("{}\n", finding.message)));
    }
    text
}

/// `1 rule`, `2 rules`.
pub(super) fn some(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::{lines, validate};

    #[test]
    fn a_right_file_is_counted() {
        let text = "
version: 1
settings: {evaluation: all}
rules:
- {id: a, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.tar'}], actions: [{type: pin}]}
";
        let found = validate("my.yaml", text);
        assert_eq!((found.rules, found.settings, found.valid), (1, 1, true));
        let expected = "my.yaml is right: a policy with 1 rule, 0 templates and 1 setting.\n";
        assert_eq!(lines(&[found]), expected);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let found = validate("my.yaml", "version: 1\nsettings: {evalution: all}\n");
        let text = lines(&[found]);
        assert!(text.starts_with("my.yaml:2:12: settings.evalution: "), "{text}");
        assert!(text.contains("did you mean \"evaluation\"?"), "{text}");
    }

    #[test]
    fn plugins_are_told_from_policies() {
        let found = validate("mine.yaml", "version: 1\nframework: mine\ndetekt: {}\n");
        assert_eq!((found.kind, found.valid), ("framework", false));
    }
}
