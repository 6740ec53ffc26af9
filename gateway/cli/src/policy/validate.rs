//! The command `mlgw policy validate`.

use super::text::texts;
use crate::CliError;
use crate::output::{Out, counted};
use clap::Args;
use mlgw_api::ValidationResult;
use mlgw_lab::validate::validate;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Policies or framework plugins, in YAML or JSON.
    #[arg(required_unless_present = "framework", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Framework plugins with templates that the policies may use. They are validated, too.
    #[arg(long, value_name = "FILE")]
    framework: Vec<PathBuf>,
}

pub(super) fn run(args: &ValidateArgs, out: Out) -> Result<(), CliError> {
    let (files, plugins) = (texts(&args.files)?, texts(&args.framework)?);
    let validated = validate(&files, &plugins).map_err(|wrong| CliError::Failed(wrong.to_string()))?;
    let wrong = validated.iter().filter(|one| !one.valid).count();
    if wrong == 0 {
        return out.done(&validated, lines(&validated).trim_end());
    }
    out.document(&validated, |validated| lines(validated))?;
    Err(CliError::Failed(match (wrong, &validated[..]) {
        (_, [one]) => format!("{} is invalid", one.file),
        (1, all) => format!("1 of {} files is invalid", all.len()),
        (wrong, all) => format!("{wrong} of {} files are invalid", all.len()),
    }))
}

fn lines(validated: &[ValidationResult]) -> String {
    let mut text = String::new();
    for one in validated {
        if one.valid {
            text += &format!(
                "{} is valid: a {} with {}, {} and {}.\n",
                one.file,
                one.kind,
                counted(one.rules as u64, "rule"),
                counted(one.templates as u64, "template"),
                counted(one.settings as u64, "setting")
            );
        }
        text.extend(one.diagnostics.iter().map(|finding| format!("{}\n", finding.message)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{ValidationResult, lines};
    use mlgw_api::PolicyFileKind;
    use mlgw_formats::schema::PolicyFile;

    fn validate(name: &str, text: &str) -> ValidationResult {
        let file = PolicyFile { name: name.to_owned(), text: text.to_owned() };
        super::validate(&[file], &[]).unwrap().remove(0)
    }

    #[test]
    fn a_valid_file_is_counted() {
        let text = "
version: 1
settings: {evaluation: all}
rules:
- {id: a, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.tar'}], \
            actions: [{type: pin}]}
";
        let found = validate("my.yaml", text);
        assert_eq!((found.rules, found.settings, found.valid), (1, 1, true));
        let expected = "my.yaml is valid: a policy with 1 rule, 0 templates and 1 setting.\n";
        assert_eq!(lines(&[found]), expected);
    }

    #[test]
    fn an_error_is_reported_with_its_place() {
        let found = validate("my.yaml", "version: 1\nsettings: {evalution: all}\n");
        let text = lines(&[found]);
        assert!(text.starts_with("my.yaml:2:12: settings.evalution: "), "{text}");
        assert!(text.contains("did you mean \"evaluation\"?"), "{text}");
    }

    #[test]
    fn plugins_are_distinguished_from_policies() {
        let found = validate("mine.yaml", "version: 1\nframework: mine\ndetekt: {}\n");
        assert_eq!((found.kind, found.valid), (PolicyFileKind::Framework, false));
    }
}
