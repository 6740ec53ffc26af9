//! The command `mlgw policy test`.

use super::keys::PolicyTestKeys;
use super::text::{LowerLayerArgs, program};
use crate::CliError;
use crate::output::{Out, columns};
use clap::Args;
use mlgw_api::{PolicyTestResult, RuleTestResult};
use mlgw_lab::examine::{empty_answer, try_key};
use mlgw_policies::language::OfflineObject;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct TestArgs {
    /// A policy or a framework plugin, tested above the built-in policy.
    file: PathBuf,
    #[command(flatten)]
    keys: KeysArgs,
    #[command(flatten)]
    beneath: LowerLayerArgs,
    /// Maximum number of keys shown. All are counted. Default: 100 in a table, all in JSON.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct KeysArgs {
    /// File with a key on each line, as `a/b.tar` or `s3://bucket/a/b.tar`; `-` for standard input.
    #[arg(long, value_name = "LIST")]
    keys: Option<PathBuf>,
    /// Directory of files to test as uploads, with their sizes and first bytes.
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Trace whose keys are tested.
    #[arg(long, value_name = "F")]
    trace: Option<PathBuf>,
}

/// Default number of keys in a table.
const SHOWN: usize = 100;

pub(super) fn run(args: &TestArgs, out: Out) -> Result<(), CliError> {
    let program = program(Some(&args.file), &args.beneath)?;
    let KeysArgs { keys, files, trace } = &args.keys;
    let keys = match (keys, files, trace) {
        (Some(path), ..) => PolicyTestKeys::List(path),
        (None, Some(path), _) => PolicyTestKeys::Files(path),
        (None, None, Some(path)) => PolicyTestKeys::Trace(path),
        (None, None, None) => return Err(CliError::Usage("give --keys, --files or --trace".to_owned())),
    };
    let is_table = out.form == crate::OutputForm::Table;
    let limit = args.limit.unwrap_or(if is_table { SHOWN } else { usize::MAX });
    let mut examined = empty_answer(&program);
    keys.each(&mut |known| {
        let known = OfflineObject { environment: args.beneath.environment, ..known };
        try_key(&mut examined, &program, known, limit);
    })?;
    if examined.tried == 0 {
        return Err(CliError::Failed("no keys to test".to_owned()));
    }
    out.document(&examined, table)
}

fn table(examined: &PolicyTestResult) -> String {
    let mut rows = Vec::new();
    for one in &examined.keys {
        let key = match &one.bucket {
            Some(bucket) => format!("s3://{bucket}/{}", one.key),
            None => one.key.clone(),
        };
        if one.matched.is_empty() {
            rows.push(vec![key.clone(), "-".to_owned(), String::new()]);
        }
        for (number, matched) in one.matched.iter().enumerate() {
            let key = if number == 0 { key.clone() } else { String::new() };
            rows.push(vec![key, matched.rule.clone(), matched.actions.join(", ")]);
        }
    }
    let mut text = columns(&["KEY", "MATCHES", "ACTIONS"], &rows);
    let left = examined.tried - examined.keys.len() as u64;
    if left > 0 {
        text += &format!("{left} more keys: --limit shows more\n");
    }
    let row = |rule: &RuleTestResult| {
        let not_judged: Vec<_> = rule.not_judged.iter().map(String::as_str).collect();
        vec![
            rule.rule.clone(),
            format!("{} of {}", rule.matched, rule.of),
            rule.open.to_string(),
            not_judged.join(", "),
        ]
    };
    let rows: Vec<_> = examined.rules.iter().map(row).collect();
    text + "\n" + &columns(&["RULE", "MATCHED", "OPEN", "NEEDS MORE THAN THE KEY"], &rows)
}

#[cfg(test)]
mod tests {
    use super::{empty_answer, table, try_key};
    use mlgw_policies::language::{BuiltInLayers, Layers, NoFacts, OfflineObject, ParsedPolicy, Program};

    const POLICY: &str = "
version: 1
rules:
- id: tars
  priority: 2
  conditions: [{type: file_pattern, property: name, operator: matches, value: '*.tar'}]
  actions: [{type: promote}, {type: pin, target: dataset}]
- id: read
  conditions:
  - {type: file_pattern, property: name, operator: matches, value: '*.tar'}
  - {type: access_pattern, property: reads, operator: greater_than, value: 2}
  actions: [{type: promote}]
";

    #[test]
    fn keys_and_rules_as_a_table() {
        let mut built_in = BuiltInLayers::load().unwrap();
        built_in.frameworks.clear();
        built_in.defaults = ParsedPolicy::parse("none.yaml", "version: 1").unwrap();
        let custom = [ParsedPolicy::parse("p.yaml", POLICY).unwrap()];
        let layers = Layers {
            custom: &custom,
            frameworks: &[],
            environment: None,
            machine: &NoFacts,
            built_in: &built_in,
        };
        let program = Program::compile(&layers).unwrap();
        let mut examined = empty_answer(&program);
        for key in ["a/1.tar", "a/2.jpg", "a/3.tar"] {
            try_key(&mut examined, &program, OfflineObject { key, ..OfflineObject::default() }, 2);
        }
        let expected = "\
KEY      MATCHES  ACTIONS
a/1.tar  tars     promote (act), pin dataset (act)
a/2.jpg  -
1 more keys: --limit shows more

RULE  MATCHED  OPEN  NEEDS MORE THAN THE KEY
tars  2 of 3   0
read  0 of 3   2     reads
";
        assert_eq!(table(&examined), expected);
        let json = serde_json::to_value(&examined).unwrap();
        assert_eq!(json["keys"][0]["open"][0]["not_judged"][0], "reads");
        assert_eq!(json["rules"][0]["matched"], 2);
    }
}
