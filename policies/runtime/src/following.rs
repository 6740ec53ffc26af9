//! Follows the policy of another node of the cluster, where it is changed: a newer version in the catalogue
//! becomes the running one here. A change is reported when all nodes run it. Nothing is stored.

use super::{AppliedPolicyChange, Policies, PolicyError};
use mlgw_metadata::Catalogue;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval between looks at the newest version. A change waits for as long.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

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

/// Answers the questions of other nodes which version runs here.
pub(super) fn answer_questions(policies: &Arc<Policies>) {
    let running = Arc::downgrade(policies);
    let runs = move |version| running.upgrade().is_none_or(|policies| policies.running().number() >= version);
    policies.catalogue.set_policy_check(Arc::new(runs));
}

/// Waits until the other storage nodes run the version after a change, also if the change was not necessary:
/// it may repeat one whose answer was lost. A node that does not answer is not waited for without a limit
/// ([`Catalogue::until_applied_elsewhere`]).
pub(super) async fn until_followed(
    catalogue: &Catalogue,
    done: Result<AppliedPolicyChange, PolicyError>,
) -> Result<AppliedPolicyChange, PolicyError> {
    let done = done?;
    if let Some(version) = &done.after {
        catalogue.until_policy_runs_elsewhere(version.number).await;
    }
    Ok(done)
}
