//! Decisions about the members of groups: who votes, who learns, and what the loss of a node costs.
//!
//! Everything here is pure: [`decide`] reads facts and returns the next single step. The caller carries the
//! step out, waits for its outcome, collects the facts anew and decides again. No step depends on an earlier
//! decision, so a step that failed, or whose outcome is unknown, needs no special care.
//!
//! Invariants, each kept by a [`Rule`] that a simulation breaks when it is left out:
//! - The group has 1, 3 or 5 voters, never 2 or 4 except inside a joint change.
//! - A change of voters never starts while another one is in progress.
//! - After a step a majority of the voters is reachable.
//! - A leader transfers its leadership before it leaves the voters. A lone voter cannot, so it stays until
//!   two others vote beside it.
//! - A node is recorded as removed only when it is in no membership.
//! - In a group of a set only nodes of the set get votes. The others keep theirs until the set can take them,
//!   also those that leave, as long as the set can be filled.
//! - A node that is to leave a group does so when all others that belong to it have its rows.
//!
//! [`duty`] decides in the same way which node has the duty, and [`sets`] which nodes are in which set.
//! [`settings`] compares the settings of the nodes.
//!
//! [`decide`]: decision::decide
//! [`Rule`]: rules::Rule

pub mod clocks;
pub mod copies;
pub mod decision;
pub mod duty;
pub mod facts;
mod goal;
pub mod health;
pub mod places;
pub mod rules;
pub mod sets;
pub mod settings;
#[cfg(test)]
mod simulation;

pub use clocks::{ClockSample, compare_clocks, skew_of};
pub use copies::{GroupRisk, LossLimit, SegmentCopies, cluster_risk, risk_after_removal};
pub use decision::{MemberStep, VoterChange, VoterChangeKind, WaitReason, decide};
pub use duty::{DutyFacts, DutyStep, DutyWaits, HeldDuty, NodeLeader, decide_duty, phase_at_end};
pub use facts::{ChangeState, Contact, DecisionInput, DecisionLimits, MemberFacts, SystemMembership};
pub use health::{NodeCondition, NodeFinding, NodeHealth};
pub use places::{MemberPlace, SYSTEM_GROUP, SetRows};
pub use sets::{GroupProgress, SetInput, SetStep, SetWait, next_set_step};
pub use settings::{StatedSettings, differing_settings};
