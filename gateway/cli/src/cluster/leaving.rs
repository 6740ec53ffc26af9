//! The commands `mlgw cluster drain`, `undrain`, `remove` and `replace`, and the progress of nodes that
//! leave.

use super::CLUSTER;
use crate::client::Client;
use crate::output::{Out, aborted, counted, request_answer, text_line};
use crate::{CliError, Global, discover};
use http::Method;
use mlgw_api::{
    ClusterInfo, ClusterLeavingInfo, ClusterNodeChange, ClusterNodeInfo, ClusterNodeState, DrainNodeRequest,
    RemoveNodeRequest, ReplaceNodeRequest,
};

/// Options of `mlgw cluster remove`.
#[derive(Clone, Copy, Debug)]
pub struct RemoveOptions {
    /// The node is lost for ever.
    pub is_lost: bool,
}

/// Begins to drain a node.
///
/// # Errors
/// If too few nodes would be left; see [`CliError`].
pub async fn drain(global: &Global, out: Out, node: u64, to_copies: Option<u64>) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let request = DrainNodeRequest { to_copies };
    let changed: ClusterNodeChange = client.call(Method::POST, &path(node, "drain"), Some(&request)).await?;
    out.done(&changed, &draining(node))
}

pub(super) fn draining(node: u64) -> String {
    format!(
        "Node {node} is draining: other nodes copy its segments. `mlgw cluster status` shows the progress."
    )
}

/// Ends the draining of a node.
///
/// # Errors
/// See [`CliError`].
pub async fn undrain(global: &Global, out: Out, node: u64) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let changed: ClusterNodeChange = client.call(Method::POST, &path(node, "undrain"), None::<&()>).await?;
    out.done(&changed, &format!("Node {node} is active again."))
}

/// Removes a node for ever, after a confirmation.
///
/// # Errors
/// If the node is not drained and not lost, or the removal is not confirmed; see [`CliError`].
pub async fn remove(global: &Global, out: Out, node: u64, options: RemoveOptions) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    confirm_id(node, options, global)?;
    let request = RemoveNodeRequest { lost: options.is_lost };
    let changed: ClusterNodeChange = client.call(Method::POST, &path(node, "remove"), Some(&request)).await?;
    out.done(&changed, &format!("Node {node} is {}.", of_state(changed.state)))
}

/// Replaces a storage node by another one. A lost one is removed at once, after a confirmation.
///
/// # Errors
/// If the other node is no active storage node, or the loss is not confirmed; see [`CliError`].
pub async fn replace(
    global: &Global,
    out: Out,
    old: u64,
    new: u64,
    options: RemoveOptions,
) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    if options.is_lost {
        confirm_id(old, options, global)?;
    }
    let request = ReplaceNodeRequest { with: new, lost: options.is_lost };
    let changed: ClusterNodeChange = client.call(Method::POST, &path(old, "replace"), Some(&request)).await?;
    let sentence = match options.is_lost {
        true => format!("Node {old} is {}. Node {new} gets its copies.", of_state(changed.state)),
        false => replacing(old),
    };
    out.done(&changed, &sentence)
}

pub(super) fn replacing(old: u64) -> String {
    format!(
        "Node {old} is draining, and is removed automatically when other nodes have its segments. `mlgw \
         cluster status` shows the progress."
    )
}

fn of_state(state: ClusterNodeState) -> &'static str {
    match state {
        ClusterNodeState::Removed => "removed",
        ClusterNodeState::Joining
        | ClusterNodeState::Active
        | ClusterNodeState::Draining
        | ClusterNodeState::Leaving => "being removed; its process exits if it runs",
    }
}

/// Requests the id of the node as a confirmation.
fn confirm_id(node: u64, options: RemoveOptions, global: &Global) -> Result<(), CliError> {
    if global.yes {
        return Ok(());
    }
    let answer = request_answer(&question(node, options), "Type the id of the node to confirm:")?;
    match answer.parse::<u64>() {
        Ok(typed) if typed == node => Ok(()),
        _ => Err(aborted()),
    }
}

pub(super) fn question(node: u64, options: RemoveOptions) -> String {
    match options.is_lost {
        true => format!(
            "Remove node {node} for ever? What only it has is lost, and its data directory can never be used \
             again."
        ),
        false => format!("Remove node {node} for ever? Its data directory can never be used again."),
    }
}

fn path(node: u64, change: &str) -> String {
    format!("{CLUSTER}/nodes/{node}/{change}")
}

/// Formats the progress of the nodes that leave, one line each.
pub(super) fn lines(cluster: &ClusterInfo) -> String {
    cluster.leaving.iter().map(|leaving| text_line(&progress(cluster, leaving))).collect()
}

fn progress(cluster: &ClusterInfo, leaving: &ClusterLeavingInfo) -> String {
    let ClusterLeavingInfo {
        node, segments, copied_segments, open_segments, sets, done, replaced_by, ..
    } = *leaving;
    let is_draining = |of: &ClusterNodeInfo| of.id == node && of.state == ClusterNodeState::Draining;
    let is_draining = cluster.nodes.iter().any(is_draining);
    match (done, is_draining) {
        (true, true) if replaced_by.is_some() => {
            format!("node {node} is drained, and is removed automatically")
        }
        (true, true) => {
            format!("node {node} is drained: run `mlgw cluster remove {node}`, then its process exits")
        }
        (true, false) => format!("node {node} is being removed"),
        (false, _) => {
            let word = if is_draining { "draining" } else { "being removed" };
            let open = match open_segments {
                0 => String::new(),
                open => format!("; {} to seal", counted(open, "open segment")),
            };
            let total = counted(segments, "segment");
            let sets = match sets {
                0 => String::new(),
                sets => format!("; in {} yet", counted(sets, "set")),
            };
            format!("node {node} is {word}: {copied_segments} of {total} have copies elsewhere{open}{sets}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cluster;
    use super::{RemoveOptions, lines, question};
    use mlgw_api::{ClusterInfo, ClusterLeavingInfo, ClusterNodeState};

    fn shown(state: ClusterNodeState, segments: u64, open_segments: u64) -> String {
        let done = segments == 0 && open_segments == 0;
        let leaving = vec![ClusterLeavingInfo {
            node: 2,
            segments,
            copied_segments: 12,
            open_segments,
            sets: 0,
            votes: 0,
            done,
            replaced_by: None,
        }];
        let mut cluster = ClusterInfo { leaving, ..cluster() };
        cluster.nodes[1].state = state;
        lines(&cluster)
    }

    #[test]
    fn the_progress_of_a_drain_is_shown_until_the_node_may_be_removed() {
        let expected = "node 2 is draining: 12 of 120 segments have copies elsewhere\n";
        assert_eq!(shown(ClusterNodeState::Draining, 120, 0), expected);
        let open = shown(ClusterNodeState::Draining, 120, 1);
        assert!(open.ends_with("; 1 open segment to seal\n"), "{open}");
        let drained = shown(ClusterNodeState::Draining, 0, 0);
        assert!(drained.starts_with("node 2 is drained: run `mlgw cluster remove 2`"), "{drained}");
        assert_eq!(shown(ClusterNodeState::Leaving, 0, 0), "node 2 is being removed\n");
    }

    #[test]
    fn the_sets_of_a_node_that_leaves_are_shown() {
        let leaving = ClusterLeavingInfo {
            node: 2,
            segments: 0,
            copied_segments: 0,
            open_segments: 0,
            sets: 2,
            votes: 1,
            done: false,
            replaced_by: None,
        };
        let mut cluster = ClusterInfo { leaving: vec![leaving], ..cluster() };
        cluster.nodes[1].state = ClusterNodeState::Draining;
        let expected = "node 2 is draining: 0 of 0 segments have copies elsewhere; in 2 sets yet\n";
        assert_eq!(lines(&cluster), expected);
    }

    #[test]
    fn a_replaced_node_needs_no_further_command() {
        let leaving = ClusterLeavingInfo {
            node: 2,
            segments: 0,
            copied_segments: 0,
            open_segments: 0,
            sets: 0,
            votes: 0,
            done: true,
            replaced_by: Some(4),
        };
        let mut cluster = ClusterInfo { leaving: vec![leaving], ..cluster() };
        cluster.nodes[1].state = ClusterNodeState::Draining;
        assert_eq!(lines(&cluster), "node 2 is drained, and is removed automatically\n");
    }

    #[test]
    fn the_question_names_what_a_removal_loses() {
        let asked = |is_lost| question(2, RemoveOptions { is_lost });
        assert!(asked(false).starts_with("Remove node 2 for ever? Its data directory"));
        assert!(asked(true).contains("What only it has is lost"));
    }
}
