//! The outputs of `mlgw cluster` in docs/OPERATIONS.md are those of the program: for the facts of the page it
//! prints the same lines.

use super::tests::cluster;
use super::{authority, copies, duty, leaving, open_segments, sets, show, upgrade};
use mlgw_api::{
    ClusterAuthorityChange, ClusterCopiesInfo, ClusterDutyPhase, ClusterInfo, ClusterLeavingInfo,
    ClusterNodeRole, ClusterNodeState, ClusterRebalanceChange, ClusterRebalanceInfo, ClusterSetInfo,
    ClusterUpgradeInfo,
};

const PAGE: &str = include_str!("../../../../docs/OPERATIONS.md");
const MIB: u64 = 1 << 20;

/// Returns the lines of the page without indentation. A line that ends with `\` continues.
fn page() -> String {
    let mut text = String::new();
    for line in PAGE.lines().map(str::trim_start) {
        match line.strip_suffix('\\') {
            Some(begin) => text += begin,
            None => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

/// Asserts that the page has these lines, one after the other.
fn assert_on_page(lines: &str) {
    assert!(page().contains(&format!("\n{}\n", lines.trim_end())), "not in docs/OPERATIONS.md:\n{lines}");
}

/// Returns a cluster of `count` storage nodes. The last one does not answer if `is_last_down`.
fn nodes(count: u64, is_last_down: bool) -> ClusterInfo {
    let mut found = cluster();
    let first = found.nodes[0].clone();
    found.nodes = (1..=count)
        .map(|id| {
            let reachable = Some(!(is_last_down && id == count));
            let mut node = first.clone();
            (node.id, node.own, node.reachable, node.role) =
                (id, id == 1, reachable, ClusterNodeRole::Storage);
            node
        })
        .collect();
    found
}

/// Returns the sets of the page, with the group that moves.
fn five_sets() -> ClusterInfo {
    let set = |id, nodes: [u64; 3], groups: &[u32]| ClusterSetInfo {
        id,
        nodes: nodes.into(),
        groups: groups.into(),
        guests: vec![],
    };
    ClusterInfo {
        sets: vec![
            set(0, [1, 2, 3], &[3]),
            set(1, [4, 5, 1], &[1]),
            set(2, [2, 3, 4], &[]),
            set(3, [5, 1, 2], &[]),
            set(4, [3, 4, 5], &[2]),
        ],
        ..nodes(5, false)
    }
}

/// The names of the lines of a status, up to the first empty line.
fn names<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let lines = lines.take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_once("  ").map(|(name, _)| name)).collect()
}

#[test]
fn a_whole_status_on_the_page_has_the_lines_and_the_columns_of_the_program() {
    let (page, shown) = (page(), show(&five_sets()));
    let begins: Vec<usize> = page.match_indices("\ncluster      ").map(|(at, _)| at + 1).collect();
    assert!(!begins.is_empty());
    for begin in begins {
        assert_eq!(names(page[begin..].lines()), names(shown.lines()));
    }
    for (first, other) in [("NODE", "ADDRESS"), ("SET", "GUESTS"), ("GROUP", "LEADER")] {
        let is_head = |line: &&str| line.starts_with(&format!("{first}  ")) && line.contains(other);
        let words = |text: &str| -> Vec<Vec<String>> {
            let heads = text.lines().filter(is_head);
            heads.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
        };
        let expected = words(&shown).concat();
        let found = words(&page);
        assert!(!found.is_empty() && found.iter().all(|head| *head == expected), "{expected:?}: {found:?}");
    }
}

#[test]
fn the_sets_on_the_page_are_those_of_the_program() {
    let copies =
        ClusterCopiesInfo { off_set_bytes: Some(578 * MIB + MIB / 10), ..ClusterCopiesInfo::default() };
    let rebalance = ClusterRebalanceInfo {
        requested: "2026-11-29T04:10:04.920Z".into(),
        by: "mlgw-local-ARC6FQNHVMGP4MXTJTXP".into(),
    };
    let moving = ClusterInfo {
        copies,
        rebalance: Some(rebalance),
        moving_groups: vec![2],
        sets_wait: Some("group 2 is moving to the nodes of set 4".into()),
        ..five_sets()
    };
    assert_on_page(&format!("sets  {}\n{}", sets::line(&moving), sets::table(&moving)));
    let copies = ClusterCopiesInfo { off_set_bytes: Some(554 * MIB + MIB / 10), ..copies };
    let moved = ClusterInfo { copies, ..five_sets() };
    assert_on_page(&format!("sets  {}\n{}", sets::line(&moved), sets::table(&moved)));
    assert_on_page(sets::begun(ClusterRebalanceChange { already_running: false }));
}

#[test]
fn the_lines_of_a_status_on_the_page_are_those_of_the_program() {
    let taken =
        ClusterInfo { duty: Some(2), duty_term: 4, duty_phase: ClusterDutyPhase::Waiting, ..nodes(3, false) };
    assert_on_page(&format!("duty         {}", duty(&taken)));
    let upgrade = Some(ClusterUpgradeInfo { version: 6, without: vec![3] });
    let upgraded = ClusterInfo { cluster_version: 5, upgrade, ..nodes(3, true) };
    assert_on_page(&format!("version      {}", upgrade::version(&upgraded)));
    let change =
        ClusterAuthorityChange { authority: 2, without_trust: vec![3], without_certificate: vec![3] };
    let replaced = ClusterInfo { authority_change: Some(change), ..nodes(3, true) };
    assert_on_page(&format!("authority    {}", authority::line(&replaced)));
    let mut differing = nodes(3, false);
    differing.nodes[2].differing_settings = vec!["bound.ttl".into()];
    assert_on_page(&format!("settings     {}", upgrade::settings(&differing)));

    let whole = ClusterCopiesInfo {
        wanted: 3,
        segments: 43,
        bytes: 598 * MIB + MIB / 10,
        open_segments: 2,
        ..ClusterCopiesInfo::default()
    };
    let with = |copies| ClusterInfo { copies, ..nodes(3, false) };
    assert!(page().contains(&format!("| `{}` |", copies(&with(whole)))));
    assert_on_page(&format!("open         {}", open_segments(&with(whole))));
    let healing =
        ClusterCopiesInfo { below_segments: 7, below_bytes: 105 * MIB, suspect_segments: 7, ..whole };
    assert_on_page(&format!("copies       {}", copies(&with(healing))));
}

#[test]
fn the_nodes_that_leave_on_the_page_are_those_of_the_program() {
    let shown = |segments, copied_segments, open_segments, sets, done| {
        let leaving = vec![ClusterLeavingInfo {
            node: 4,
            segments,
            copied_segments,
            open_segments,
            sets,
            votes: 0,
            done,
            replaced_by: None,
        }];
        let mut cluster = ClusterInfo { leaving, ..nodes(5, false) };
        cluster.nodes[3].state = ClusterNodeState::Draining;
        leaving::lines(&cluster)
    };
    assert_on_page(&shown(26, 0, 1, 2, false));
    assert_on_page(&shown(25, 12, 0, 0, false));
    assert_on_page(&shown(0, 0, 0, 0, true));
    assert_on_page(&leaving::draining(4));
    assert_on_page(&leaving::replacing(3));
    let lost = leaving::question(2, super::RemoveOptions { is_lost: true });
    assert_on_page(&format!("{lost} Type the id of the node to confirm: 2"));
    assert_on_page(authority::BEGUN);
}
