//! Rules that delete checkpoints. A cluster refuses them: no node observes the reads through all others.
//! Nothing is stored here.

use super::{
    BuiltInLayers, Catalogue, InvalidPolicyFiles, PolicyError, PolicyFiles, PolicyFilesUpdate, Program,
    ServerProfile, SubmittedFiles, WatchedPolicyFiles, compile, merged_with_running,
};
use std::collections::BTreeSet;

/// Returns a program that the server of this catalogue may run. In a cluster its rules must not delete.
///
/// # Errors
/// [`PolicyError::DeletesInCluster`], with the rules that delete.
pub(super) fn permitted(catalogue: &Catalogue, program: Program) -> Result<Program, PolicyError> {
    if catalogue.is_clustered() { without_deletions(program) } else { Ok(program) }
}

/// Returns a program of a cluster, unless its rules delete.
pub(super) fn without_deletions(program: Program) -> Result<Program, PolicyError> {
    let rules: Vec<String> = mlgw_policies::at_rest::deleting_rules(&program).map(str::to_owned).collect();
    if rules.is_empty() { Ok(program) } else { Err(PolicyError::DeletesInCluster(rules)) }
}

/// Ids of the rules that would delete checkpoints on a server of this kind: those of the stored files, and
/// those that the watched files bring at its next start.
///
/// # Errors
/// The reason why the files cannot be read or compiled.
pub fn deleting_rules(
    stored: &PolicyFiles,
    server: &ServerProfile,
    watched: &WatchedPolicyFiles,
) -> Result<Vec<String>, String> {
    let built_in = BuiltInLayers::load().map_err(|wrong| InvalidPolicyFiles(wrong).to_string())?;
    let content = watched.read()?;
    let update = PolicyFilesUpdate { custom: content.custom, frameworks: content.frameworks };
    let mut rules = BTreeSet::new();
    for files in [stored.clone(), merged_with_running(update, stored)] {
        let program = compile(&built_in, server.environment, server, &files, SubmittedFiles::NOTHING);
        let program = program.map_err(|wrong| wrong.to_string())?;
        rules.extend(mlgw_policies::at_rest::deleting_rules(&program).map(str::to_owned));
    }
    Ok(rules.into_iter().collect())
}
