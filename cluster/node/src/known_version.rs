//! The newest cluster version that this process knows.
//!
//! It is that of the build. A test of an upgrade has one build stand for two: with the test switch a process
//! knows the version before only. It reports that one, proposes nothing of a later one, and stops at later
//! commands and fields of the log, as the earlier build does. Nothing is stored here.

use mlgw_formats::cluster_version::{CLUSTER_VERSION, PREVIOUS_CLUSTER_VERSION};

/// Environment variable of the test switch. Its value is `1`.
const SWITCH: &str = "MLGW_TEST_PREVIOUS_VERSION";

/// The newest cluster version that this process knows.
#[must_use]
pub fn known_cluster_version() -> u32 {
    if std::env::var_os(SWITCH).is_none_or(|value| value != "1") {
        return CLUSTER_VERSION;
    }
    tracing::warn!(version = PREVIOUS_CLUSTER_VERSION, "{SWITCH} is set: later cluster versions are unknown");
    PREVIOUS_CLUSTER_VERSION
}
