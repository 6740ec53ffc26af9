//! The command `mlgw cluster rebalance`, and the sets of nodes.

use super::CLUSTER;
use crate::client::Client;
use crate::output::{Out, columns, counted, pairs};
use crate::{CliError, Global, discover};
use http::Method;
use mlgw_api::{
    ClusterCopiesInfo, ClusterInfo, ClusterRebalanceChange, ClusterRebalanceInfo, ClusterSetInfo,
};
use mlgw_common::ByteSize;
use serde::Serialize;

/// Begins a rebalance, unless one is under way.
///
/// # Errors
/// If there is nothing to move, or a node is too old; see [`CliError`].
pub async fn rebalance(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let path = format!("{CLUSTER}/rebalance");
    let change: ClusterRebalanceChange = client.call(Method::POST, &path, None::<&()>).await?;
    out.done(&change, begun(change))
}

pub(super) const fn begun(change: ClusterRebalanceChange) -> &'static str {
    match change.already_running {
        true => {
            "A rebalance is running already, and goes on. `mlgw cluster rebalance --status` shows the \
             progress."
        }
        false => {
            "The rebalance has begun, and ends automatically. `mlgw cluster rebalance --status` shows the \
             progress."
        }
    }
}

/// The part of a status about sets.
#[derive(Serialize)]
struct SetsPart<'a> {
    rebalance: &'a Option<ClusterRebalanceInfo>,
    sets_wait: &'a Option<String>,
    moving_groups: &'a [u32],
    off_set_segments: u64,
    off_set_bytes: Option<u64>,
    sets: &'a [ClusterSetInfo],
}

/// Prints the sets of nodes, and the progress of a rebalance.
///
/// # Errors
/// See [`CliError`].
pub async fn rebalance_status(global: &Global, out: Out) -> Result<(), CliError> {
    let cluster: ClusterInfo = Client::new(discover::target(global)?)?.get(CLUSTER).await?;
    let ClusterInfo { rebalance, sets_wait, moving_groups, sets, .. } = &cluster;
    let ClusterCopiesInfo { off_set_segments, off_set_bytes, .. } = cluster.copies;
    let part = SetsPart { rebalance, sets_wait, moving_groups, off_set_segments, off_set_bytes, sets };
    out.document(&part, |_| pairs(&[("sets", line(&cluster))]) + &table(&cluster))
}

/// Describes the sets: how many there are, and what moves.
pub(super) fn line(cluster: &ClusterInfo) -> String {
    let sets = match cluster.sets.len() {
        0 => "none: every storage node is a member of every group".to_owned(),
        sets => counted(sets as u64, "set"),
    };
    let moves = match (&cluster.sets_wait, cluster.moving_groups.len()) {
        (Some(reason), _) => format!("; {reason}"),
        (None, 0) if cluster.sets.is_empty() => String::new(),
        (None, 0) => "; no group is moving".to_owned(),
        (None, 1) => "; 1 group is moving".to_owned(),
        (None, moving) => format!("; {moving} groups are moving"),
    };
    let rebalance = cluster.rebalance.as_ref().map_or_else(String::new, |rebalance| {
        format!("; a rebalance runs since {}, requested by {}", rebalance.requested, rebalance.by)
    });
    let off_set = match cluster.copies.off_set_segments {
        0 => String::new(),
        segments => format!("; {} on other nodes than those of their sets", counted(segments, "segment")),
    };
    let bytes = match cluster.copies.off_set_bytes {
        Some(0) => String::new(),
        Some(bytes) => format!("; {} to move to the nodes of their sets", ByteSize(bytes).human()),
        None if cluster.sets.is_empty() => String::new(),
        None => "; the bytes to move to the nodes of their sets cannot be read".to_owned(),
    };
    format!("{sets}{moves}{bytes}{off_set}{rebalance}")
}

/// Lists the sets; empty if there are none.
pub(super) fn table(cluster: &ClusterInfo) -> String {
    if cluster.sets.is_empty() {
        return String::new();
    }
    let row = |set: &ClusterSetInfo| {
        let moving = set.groups.iter().filter(|group| cluster.moving_groups.contains(group));
        vec![set.id.to_string(), listed(&set.nodes), listed(&set.groups), listed(moving), listed(&set.guests)]
    };
    let rows: Vec<_> = cluster.sets.iter().map(row).collect();
    format!("\n{}", columns(&["SET", "NODES", "GROUPS", "MOVING", "GUESTS"], &rows))
}

fn listed<T: ToString>(ids: impl IntoIterator<Item = T>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
    if ids.is_empty() { "-".to_owned() } else { ids.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cluster;
    use super::{begun, line, table};
    use mlgw_api::{
        ClusterCopiesInfo, ClusterInfo, ClusterRebalanceChange, ClusterRebalanceInfo, ClusterSetInfo,
    };

    fn with_sets() -> ClusterInfo {
        let set = |id, nodes: &[u64], groups: &[u32], guests: &[u32]| ClusterSetInfo {
            id,
            nodes: nodes.into(),
            groups: groups.into(),
            guests: guests.into(),
        };
        let sets = vec![set(0, &[1, 2, 3], &[1, 4], &[]), set(1, &[4, 5, 1], &[2, 3], &[7])];
        ClusterInfo { sets, ..cluster() }
    }

    #[test]
    fn sets_are_listed_with_their_groups_and_guests() {
        let moving = ClusterInfo { moving_groups: vec![3], ..with_sets() };
        let expected = "\nSET  NODES    GROUPS  MOVING  GUESTS\n\
                        0    1, 2, 3  1, 4    -       -\n\
                        1    4, 5, 1  2, 3    3       7\n";
        assert_eq!(table(&moving), expected);
        assert_eq!(table(&cluster()), "");
    }

    #[test]
    fn the_line_of_the_sets_names_what_moves_and_what_is_waited_for() {
        assert_eq!(line(&cluster()), "none: every storage node is a member of every group");
        assert_eq!(line(&with_sets()), "2 sets; no group is moving");
        let moving = ClusterInfo { moving_groups: vec![3], ..with_sets() };
        assert_eq!(line(&moving), "2 sets; 1 group is moving");
        let none = ClusterCopiesInfo { off_set_bytes: Some(0), ..ClusterCopiesInfo::default() };
        let copies = ClusterCopiesInfo { off_set_segments: 12, ..none };
        let off_set = line(&ClusterInfo { copies, ..with_sets() });
        assert_eq!(
            off_set,
            "2 sets; no group is moving; 12 segments on other nodes than those of their sets"
        );
        let copies = ClusterCopiesInfo { off_set_bytes: Some(3 << 20), ..ClusterCopiesInfo::default() };
        let bytes = line(&ClusterInfo { copies, ..with_sets() });
        assert_eq!(bytes, "2 sets; no group is moving; 3.0 MiB to move to the nodes of their sets");
        let copies = ClusterCopiesInfo { off_set_bytes: None, ..copies };
        let unknown = line(&ClusterInfo { copies, ..with_sets() });
        assert!(
            unknown.ends_with("; the bytes to move to the nodes of their sets cannot be read"),
            "{unknown}"
        );
        let waits = ClusterInfo { sets_wait: Some("group 3 is moving".into()), ..moving };
        assert_eq!(line(&waits), "2 sets; group 3 is moving");
        let rebalance = ClusterRebalanceInfo { requested: "T".into(), by: "AK".into() };
        let running = ClusterInfo { rebalance: Some(rebalance), ..with_sets() };
        let expected = "2 sets; no group is moving; a rebalance runs since T, requested by AK";
        assert_eq!(line(&running), expected);
    }

    #[test]
    fn a_request_during_a_rebalance_has_another_answer() {
        let [first, second] =
            [false, true].map(|already_running| begun(ClusterRebalanceChange { already_running }));
        assert!(first.contains("has begun") && second.contains("is running already"));
    }
}
