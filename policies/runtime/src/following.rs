//! Follows the policy of another node of the cluster, where it is changed: a newer version in the catalogue
//! becomes the running one here. Nothing is stored.

use super::Policies;
use std::sync::Weak;
use std::time::Duration;

/// Interval between looks at the newest version.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Loads newer versions until the policy is dropped.
pub async fn run(policies: Weak<Policies>) {
    loop {
        mlgw_common::time::sleep(CHECK_INTERVAL).await;
        let Some(policies) = policies.upgrade() else { return };
        if let Err(error) = policies.load_newer().await {
            tracing::warn!(%error, "the newest policy is not loaded; retrying");
        }
    }
}
