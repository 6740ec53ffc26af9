//! The commands `mlgw policy show` and `mlgw policy history`.

use crate::client::Client;
use crate::output::{Out, columns};
use crate::{CliError, Global, discover};
use mlgw_api::{EffectivePolicy, PolicyHistory, PolicyInfo, PolicyText, PolicyVersionInfo};

pub(super) async fn show_effective(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let policy: EffectivePolicy = client.get("/v1/policy/effective").await?;
    out.document_or_file(&policy, |policy| policy.yaml.clone())
}

pub(super) async fn show(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    out.document_or_file(&client.get::<PolicyInfo>("/v1/policy").await?, texts)
}

/// Returns the text of a file as it was applied, or of several files, each under its name.
fn texts(policy: &PolicyInfo) -> String {
    let all: Vec<&PolicyText> = policy.files.iter().chain(&policy.frameworks).collect();
    match all[..] {
        [] => {
            "# No policy was applied; the built-in one runs. See `mlgw policy show --effective`.\n".to_owned()
        }
        [one] => ended(&one.text),
        _ => {
            let one = |file: &&PolicyText| format!("# --- {}\n{}", file.name, ended(&file.text));
            all.iter().map(one).collect()
        }
    }
}

fn ended(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

pub(super) async fn list(limit: usize, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let path = format!("/v1/policy/history?limit={limit}");
    out.document(&client.get::<PolicyHistory>(&path).await?, table)
}

fn table(history: &PolicyHistory) -> String {
    let rows: Vec<_> = history.versions.iter().map(row).collect();
    columns(&["VERSION", "TIME", "KIND", "WHO", "CHANGES", "MESSAGE"], &rows)
}

fn row(version: &PolicyVersionInfo) -> Vec<String> {
    let kind = match version.back_to {
        Some(back_to) => format!("{} to {back_to}", version.kind),
        None => version.kind.to_string(),
    };
    vec![
        version.version.to_string(),
        version.time.clone(),
        kind,
        version.who.clone(),
        version.changes.clone(),
        version.message.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::{row, texts};
    use mlgw_api::{PolicyChangeKind, PolicyInfo, PolicyText, PolicyVersionInfo};

    #[test]
    fn one_file_is_shown_as_it_is_and_several_under_their_names() {
        let file = |name: &str, text: &str| PolicyText { name: name.into(), text: text.into() };
        let mut policy = PolicyInfo {
            version: None,
            learning: true,
            environment: None,
            files: vec![file("a.yaml", "version: 1")],
            frameworks: vec![],
            rules_act: 0,
            rules_observe: 0,
            fault: None,
            refused: None,
        };
        assert_eq!(texts(&policy), "version: 1\n");
        policy.frameworks = vec![file("b.yaml", "framework: b\n")];
        assert_eq!(texts(&policy), "# --- a.yaml\nversion: 1\n# --- b.yaml\nframework: b\n");
    }

    #[test]
    fn a_row_has_the_target_version_of_a_rollback() {
        let version = PolicyVersionInfo {
            version: 3,
            time: "T".into(),
            who: "AK".into(),
            kind: PolicyChangeKind::Rollback,
            message: "m".into(),
            changes: "nothing".into(),
            files: 1,
            back_to: Some(1),
            frozen: false,
        };
        assert_eq!(row(&version), ["3", "T", "rollback to 1", "AK", "nothing", "m"]);
    }
}
