//! The settings of this node that all nodes of its cluster should share.
//!
//! Their digests are compared with those of the other nodes. They are read again periodically, because some
//! settings and the policy files change while the server runs. Nothing is stored.

use super::bring_up::watched_of;
use arc_swap::ArcSwap;
use mlgw_common::time::sleep;
use mlgw_common::{Secret, SharedSetting};
use mlgw_config::LoadedConfig;
use mlgw_node::ClusterNode;
use mlgw_policy_runtime::WatchedPolicyFiles;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Interval at which the settings are read.
const INTERVAL: Duration = Duration::from_secs(10);

/// Starts to keep the settings of the node up to date. A gateway states those only that it uses.
pub(super) fn share(
    cluster: &ClusterNode,
    loaded: &Arc<ArcSwap<LoadedConfig>>,
    is_storage: bool,
) -> AbortOnDropHandle<()> {
    let (cluster, loaded) = (cluster.clone(), Arc::clone(loaded));
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let current = loaded.load_full();
            let read = tokio::task::spawn_blocking(move || shared_settings(&current, is_storage));
            match read.await {
                Ok(settings) => cluster.set_settings(&settings),
                Err(error) => tracing::warn!(%error, "the settings of this node were not compared"),
            }
            sleep(INTERVAL).await;
        }
    }))
}

/// Returns the shared settings, with the content of policy files in place of their paths.
fn shared_settings(loaded: &LoadedConfig, is_storage: bool) -> Vec<SharedSetting> {
    let mut settings = loaded.shared_settings();
    let watched = watched_of(&loaded.config);
    if !watched.is_empty() {
        let (name, value) = ("policy.files".to_owned(), Secret::new(content_of(&watched)));
        settings.push(SharedSetting { name, value, is_of_storage: true });
    }
    settings.retain(|setting| is_storage || !setting.is_of_storage);
    settings
}

/// Returns the texts of all watched files. The error of a file that cannot be read is another content, too.
fn content_of(watched: &WatchedPolicyFiles) -> String {
    let content = match watched.read() {
        Ok(content) => content,
        Err(error) => return error,
    };
    let mut texts = String::new();
    for (kind, files) in [("policy", content.custom), ("framework", content.frameworks)] {
        for file in files.iter().flatten() {
            texts += &format!("{kind} {}\n{}", file.text.len(), file.text);
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::shared_settings;
    use mlgw_common::SharedSetting;
    use mlgw_config::{ConfigSources, LoadedConfig};
    use std::path::Path;

    fn shared(policy: &Path, is_storage: bool) -> Vec<SharedSetting> {
        let environment = [("MLGW_POLICY__FILES", policy.to_str().unwrap()), ("MLGW_S3__REGION", "north")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let loaded = LoadedConfig::load(&ConfigSources { environment, ..ConfigSources::default() }).unwrap();
        shared_settings(&loaded, is_storage)
    }

    #[test]
    fn policy_files_are_compared_by_their_content() {
        let room = tempfile::tempdir().unwrap();
        let [first, other, missing] = ["first", "other", "missing"].map(|name| room.path().join(name));
        std::fs::write(&first, "version: 1").unwrap();
        std::fs::write(&other, "version: 1").unwrap();
        assert_eq!(shared(&first, true), shared(&other, true));
        std::fs::write(&other, "version: 1\n").unwrap();
        assert_ne!(shared(&first, true), shared(&other, true));
        assert_ne!(shared(&first, true), shared(&missing, true));
        let names = |is_storage| shared(&first, is_storage).into_iter().map(|of| of.name).collect::<Vec<_>>();
        assert_eq!(names(true), ["s3.region", "policy.files"]);
        assert_eq!(names(false), ["s3.region"]);
    }
}
