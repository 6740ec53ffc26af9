//! The command `mlgw cluster recover`: makes a stopped storage node a server of its own, after the loss of
//! all other nodes.
//!
//! Two servers that continue one cluster would both delete and overwrite objects at upstreams and origins. So
//! the command asks for the id of the cluster, as a statement that all other nodes are destroyed.

use crate::recovered::{VerifiedParts, recovered_document, remaining_steps, require_complete};
use crate::store::{DataDirArgs, failure};
use mlgw_cli::output::{Out, aborted, request_answer};
use mlgw_cli::progress::CommandProgress;
use mlgw_cli::{CliError, Global};
use mlgw_common::{ClusterId, SystemClock};
use mlgw_store::{
    ClusterRecoverError, OldRows, RecoveredServer, cluster_recover, cluster_take_over, recoverable_cluster,
};
use serde_json::json;

/// Ends the recovery of a stopped server.
pub(super) fn take_over(place: &DataDirArgs, out: Out) -> Result<(), CliError> {
    let cluster = cluster_take_over(&place.config()?).map_err(refused)?;
    let document = json!({ "cluster": cluster.to_string(), "taken_over": true });
    let sentence = "Write-back, rules and jobs run from the next start on. Run `mlgw upstream adopt` for \
                    each upstream with segments of this server.";
    out.done(&document, sentence)
}

/// Recovers a stopped node, after a confirmation.
pub(super) fn run(place: &DataDirArgs, old_rows: OldRows, global: &Global, out: Out) -> Result<(), CliError> {
    let config = place.config()?;
    confirm(recoverable_cluster(&config).map_err(refused)?, global)?;
    let progress = CommandProgress::new(out.quiet);
    let watch = |stage, done, total| progress.step(stage, done, total);
    let recovered = cluster_recover(&config, old_rows, &SystemClock, &watch);
    progress.done();
    let recovered = recovered.map_err(refused)?;
    out.document(&recovered_document(&recovered), |_| text(&recovered))?;
    require_complete(&recovered)
}

/// Requests the id of the cluster as a statement that all other nodes are destroyed.
fn confirm(cluster: ClusterId, global: &Global) -> Result<(), CliError> {
    if global.yes {
        return Ok(());
    }
    let question = format!(
        "Are all other nodes of cluster {cluster} destroyed? If one of them runs again, both overwrite and \
         delete what the other one stored."
    );
    let answer = request_answer(&question, "Type the id of the cluster to confirm:")?;
    if answer == cluster.to_string() { Ok(()) } else { Err(aborted()) }
}

fn refused(error: ClusterRecoverError) -> CliError {
    match error {
        ClusterRecoverError::Store(error) => failure(error),
        ClusterRecoverError::Alone(_)
        | ClusterRecoverError::Gateway(_)
        | ClusterRecoverError::Recovered(_)
        | ClusterRecoverError::NotRecovered(_) => CliError::Refused(error.to_string()),
        ClusterRecoverError::Catalogue(_) => CliError::Failed(error.to_string()),
    }
}

fn text(recovered: &RecoveredServer) -> String {
    let RecoveredServer { cluster, former, entries, objects, .. } = recovered;
    format!(
        "The node of cluster {former} is a server of its own now, with the cluster id {cluster}: {objects} \
         objects, {entries} entries of the log applied.\n{}",
        remaining_steps(recovered, VerifiedParts::Catalogue)
    )
}

#[cfg(test)]
mod tests {
    use super::text;
    use crate::recovered::{VerifiedParts, recovered_document, remaining_steps};
    use mlgw_common::ClusterId;
    use mlgw_store::{BackedUp, IncompleteObject, RecoveredServer};

    #[test]
    fn every_object_that_lacks_bytes_is_listed() {
        let lacking = |key: &str| IncompleteObject { bucket: "b".to_owned(), key: key.to_owned() };
        let mut recovered = RecoveredServer {
            cluster: ClusterId(2),
            former: ClusterId(1),
            entries: 3,
            objects: 10,
            old_groups: vec![],
            incomplete: vec![],
            list: "/d/incomplete-objects".into(),
        };
        assert!(!text(&recovered).contains("lack bytes"));
        assert!(text(&recovered).contains("segments were not verified"), "sealed segments are not read");
        let of_backup = VerifiedParts::Backup(BackedUp { files: 7, bytes: 3 << 20 });
        let restored = remaining_steps(&recovered, of_backup);
        assert!(restored.contains("All 7 files (3.0 MiB) were verified against the checksums of the backup"));
        assert!(!restored.contains("not verified"), "{restored}");
        assert!(!text(&recovered).contains("may be old"));
        recovered.old_groups = vec![2, 5];
        assert!(text(&recovered).contains("The rows of these groups may be old: 2, 5."));
        assert_eq!(recovered_document(&recovered)["old_groups"], serde_json::json!([2, 5]));
        recovered.incomplete = vec![lacking("k"), lacking("a\nb")];
        let text = text(&recovered);
        assert!(text.ends_with(
            "These 2 objects lack bytes, which only other nodes had; /d/incomplete-objects has the \
                 list:\ns3://b/k\ns3://b/a\\nb\n"
        ));
    }
}
