//! Health of a node, with the reasons.

use crate::facts::Contact;
use mlgw_common::limits::{CLOCK_SKEW_REFUSED_MS, CLOCK_SKEW_UNHEALTHY_MS};
use mlgw_formats::schema::NodeState;
use std::fmt;

/// Time without contact after which a node is unhealthy: its open segments are sealed without it then.
const UNREACHABLE_MS: u64 = 10_000;

/// Bytes of log that a healthy node may lack, which is also what a follower of a segment may lack.
const LAG_BYTES: u64 = 32 << 20;

/// Remaining life of a certificate that should have been renewed long ago.
const CERTIFICATE_MS: i64 = 30 * 24 * 60 * 60 * 1000;

/// Health of a node, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeHealth {
    /// Nothing is wrong.
    Healthy,
    /// The node serves and needs attention.
    Attention,
    /// The node does not do its part.
    Unhealthy,
}

/// Facts about a node, as the status of the cluster collects them.
#[derive(Clone, Copy, Debug)]
pub struct NodeCondition {
    /// State of its membership.
    pub state: NodeState,
    /// Reachability.
    pub contact: Contact,
    /// Bytes of log that it lacks, if they are known.
    pub lag_bytes: Option<u64>,
    /// Deviation of its clock from the median, in milliseconds, if it is known.
    pub clock_skew_ms: Option<i64>,
    /// Remaining life of its certificate in milliseconds, if it is known.
    pub certificate_ms: Option<i64>,
    /// Newest cluster version that its build knows.
    pub knows_version: u32,
    /// Newest cluster version that any node's build knows.
    pub newest_version: u32,
}

/// Reason why a node is not healthy, or is in another state than active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFinding {
    /// The node does not answer.
    Unreachable {
        /// Duration in milliseconds.
        for_ms: u64,
    },
    /// The node lacks much of the log.
    Behind {
        /// Bytes that it lacks.
        bytes: u64,
    },
    /// The node's clock deviates.
    ClockSkew {
        /// Deviation in milliseconds.
        skew_ms: i64,
    },
    /// The node's certificate expires soon, or has expired.
    Certificate {
        /// Remaining life in milliseconds; negative after its end.
        expires_in_ms: i64,
    },
    /// The node has an older build than another one.
    OlderBuild {
        /// Newest cluster version that it knows.
        knows: u32,
        /// Newest cluster version that another node knows.
        newest: u32,
    },
    /// The node is not active.
    NotActive {
        /// Its state.
        state: NodeState,
    },
}

impl NodeCondition {
    /// Reasons why the node is not healthy, the gravest first.
    #[must_use]
    pub fn findings(&self) -> Vec<NodeFinding> {
        let unreachable = match self.contact {
            Contact::Unreachable { for_ms } => Some(NodeFinding::Unreachable { for_ms }),
            Contact::Reachable { .. } => None,
        };
        let bytes = self.lag_bytes.filter(|bytes| *bytes > LAG_BYTES);
        let skew = self.clock_skew_ms.filter(|skew| skew.unsigned_abs() > CLOCK_SKEW_UNHEALTHY_MS);
        let certificate = self.certificate_ms.filter(|left| *left < CERTIFICATE_MS);
        let older = (self.knows_version < self.newest_version)
            .then_some(NodeFinding::OlderBuild { knows: self.knows_version, newest: self.newest_version });
        let inactive = Some(NodeFinding::NotActive { state: self.state });
        let found = [
            unreachable,
            bytes.map(|bytes| NodeFinding::Behind { bytes }),
            skew.map(|skew_ms| NodeFinding::ClockSkew { skew_ms }),
            certificate.map(|expires_in_ms| NodeFinding::Certificate { expires_in_ms }),
            older,
            inactive.filter(|_| self.state != NodeState::Active),
        ];
        let mut findings: Vec<NodeFinding> = found.into_iter().flatten().collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.health()));
        findings
    }

    /// Health of the node: that of its gravest finding.
    #[must_use]
    pub fn health(&self) -> NodeHealth {
        self.findings().first().map_or(NodeHealth::Healthy, |finding| finding.health())
    }
}

impl NodeFinding {
    /// Health of a node with this finding.
    #[must_use]
    pub const fn health(&self) -> NodeHealth {
        match self {
            Self::Unreachable { for_ms } if *for_ms < UNREACHABLE_MS => NodeHealth::Attention,
            Self::Certificate { expires_in_ms } if *expires_in_ms > 0 => NodeHealth::Attention,
            Self::Unreachable { .. } | Self::Certificate { .. } | Self::ClockSkew { .. } => {
                NodeHealth::Unhealthy
            }
            Self::Behind { .. } | Self::OlderBuild { .. } | Self::NotActive { .. } => NodeHealth::Attention,
        }
    }
}

impl fmt::Display for NodeFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { for_ms } => {
                write!(f, "unreachable for {} s: check its process and its network", for_ms / 1000)
            }
            Self::Behind { bytes } => write!(f, "lacks {} MiB of the log: it is catching up", bytes >> 20),
            Self::ClockSkew { skew_ms } => {
                let writes = if skew_ms.unsigned_abs() > CLOCK_SKEW_REFUSED_MS {
                    ", and it refuses writes"
                } else {
                    ""
                };
                write!(f, "its clock deviates by {skew_ms} ms{writes}: check its time service")
            }
            Self::Certificate { expires_in_ms } if *expires_in_ms > 0 => {
                let days = expires_in_ms / (24 * 60 * 60 * 1000);
                write!(f, "its certificate expires in {days} days: check why it is not renewed")
            }
            Self::Certificate { .. } => {
                f.write_str("its certificate has expired: remove the node and join again")
            }
            Self::OlderBuild { knows, newest } => {
                write!(f, "its build knows cluster version {knows}, and others know {newest}: upgrade it")
            }
            Self::NotActive { state } => write!(f, "it is {state}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CERTIFICATE_MS, LAG_BYTES, NodeCondition, NodeFinding, NodeHealth};
    use crate::facts::Contact;
    use mlgw_formats::schema::NodeState;

    const HEALTHY: NodeCondition = NodeCondition {
        state: NodeState::Active,
        contact: Contact::Reachable { for_ms: 0 },
        lag_bytes: Some(LAG_BYTES),
        clock_skew_ms: Some(-500),
        certificate_ms: Some(CERTIFICATE_MS),
        knows_version: 2,
        newest_version: 2,
    };

    #[test]
    fn each_reason_is_found_at_its_limit() {
        assert_eq!((HEALTHY.health(), HEALTHY.findings()), (NodeHealth::Healthy, vec![]));
        let unreachable = |for_ms| NodeCondition { contact: Contact::Unreachable { for_ms }, ..HEALTHY };
        let skew = |skew_ms| NodeCondition { clock_skew_ms: Some(skew_ms), ..HEALTHY };
        let certificate = |left| NodeCondition { certificate_ms: Some(left), ..HEALTHY };
        let attention = NodeHealth::Attention;
        let cases = [
            (unreachable(9_999), attention, "unreachable for 9 s: check its process and its network"),
            (
                unreachable(10_000),
                NodeHealth::Unhealthy,
                "unreachable for 10 s: check its process and its network",
            ),
            (
                NodeCondition { lag_bytes: Some(LAG_BYTES + 1), ..HEALTHY },
                attention,
                "lacks 32 MiB of the log: it is catching up",
            ),
            (skew(-501), NodeHealth::Unhealthy, "its clock deviates by -501 ms: check its time service"),
            (
                skew(5_001),
                NodeHealth::Unhealthy,
                "its clock deviates by 5001 ms, and it refuses writes: check its time service",
            ),
            (
                certificate(CERTIFICATE_MS - 1),
                attention,
                "its certificate expires in 29 days: check why it is not renewed",
            ),
            (
                certificate(0),
                NodeHealth::Unhealthy,
                "its certificate has expired: remove the node and join again",
            ),
            (
                NodeCondition { knows_version: 1, ..HEALTHY },
                attention,
                "its build knows cluster version 1, and others know 2: upgrade it",
            ),
            (NodeCondition { state: NodeState::Draining, ..HEALTHY }, attention, "it is draining"),
        ];
        for (condition, health, text) in cases {
            let findings = condition.findings();
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!((condition.health(), findings[0].to_string()), (health, text.to_owned()));
        }
    }

    #[test]
    fn unknown_facts_are_no_finding_and_the_gravest_is_first() {
        let unknown = NodeCondition { lag_bytes: None, clock_skew_ms: None, certificate_ms: None, ..HEALTHY };
        assert_eq!(unknown.findings(), []);
        let wrong = NodeCondition {
            state: NodeState::Joining,
            lag_bytes: Some(u64::MAX),
            clock_skew_ms: Some(600),
            ..HEALTHY
        };
        let findings = wrong.findings();
        assert_eq!(findings[0], NodeFinding::ClockSkew { skew_ms: 600 });
        assert_eq!((findings.len(), wrong.health()), (3, NodeHealth::Unhealthy));
    }
}
