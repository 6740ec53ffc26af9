//! The output of the commands that make a recovered server: `mlgw cluster recover`, and `mlgw store restore`
//! from the backup of a cluster.

use mlgw_cli::CliError;
use mlgw_common::ByteSize;
use mlgw_store::{BackedUp, IncompleteObject, RecoveredServer};
use serde_json::{Value, json};

/// Steps that remain for every recovered server.
const STEPS: &str = "\
Write-back, rules and jobs are stopped. Start the server and check it; then stop it, and run `mlgw cluster \
recover` with --take-over.
";

const UNVERIFIED_SEGMENTS: &str = "\
The bytes in segments were not verified: `mlgw store check` reads them and lists damaged objects.
";

/// What was verified of a recovered server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum VerifiedParts {
    /// Everything that the command read to make it; it did not read sealed segments.
    Catalogue,
    /// Every file of a backup.
    Backup(BackedUp),
}

impl VerifiedParts {
    /// Describes what was verified and what was not.
    fn sentence(self) -> String {
        match self {
            Self::Catalogue => UNVERIFIED_SEGMENTS.to_owned(),
            Self::Backup(BackedUp { files, bytes }) => format!(
                "All {files} files ({}) were verified against the checksums of the backup. They do not show \
                 what was damaged before the backup: `mlgw store check` finds that, and lists damaged \
                 objects.\n",
                ByteSize(bytes).human()
            ),
        }
    }
}

/// Returns an error if objects of a recovered server lack bytes.
pub(crate) fn require_complete(recovered: &RecoveredServer) -> Result<(), CliError> {
    match recovered.incomplete.len() {
        0 => Ok(()),
        count => Err(CliError::Failed(format!("{count} objects lack bytes; they are listed above"))),
    }
}

/// Returns a recovered server as JSON.
pub(crate) fn recovered_document(recovered: &RecoveredServer) -> Value {
    let object = |of: &IncompleteObject| json!({ "bucket": of.bucket, "key": of.key });
    json!({
        "cluster": recovered.cluster.to_string(),
        "former": recovered.former.to_string(),
        "entries": recovered.entries,
        "objects": recovered.objects,
        "old_groups": recovered.old_groups,
        "incomplete": recovered.incomplete.iter().map(object).collect::<Vec<_>>(),
        "incomplete_list": list_of(recovered),
    })
}

/// Returns the path of the list of objects that lack bytes, if there are any.
fn list_of(recovered: &RecoveredServer) -> Option<String> {
    (!recovered.incomplete.is_empty()).then(|| recovered.list.display().to_string())
}

/// Describes the steps that remain for a recovered server, and lists every object that lacks bytes.
pub(crate) fn remaining_steps(recovered: &RecoveredServer, verified: VerifiedParts) -> String {
    let mut text = STEPS.to_owned() + &verified.sentence();
    if !recovered.old_groups.is_empty() {
        let groups: Vec<String> = recovered.old_groups.iter().map(u32::to_string).collect();
        text += &format!(
            "The rows of these groups may be old: {}. Changes that other nodes acknowledged may be \
             missing.\n",
            groups.join(", ")
        );
    }
    if let Some(list) = list_of(recovered) {
        let count = recovered.incomplete.len();
        text +=
            &format!("These {count} objects lack bytes, which only other nodes had; {list} has the list:\n");
    }
    for object in &recovered.incomplete {
        text += &format!("{object}\n");
    }
    text
}
