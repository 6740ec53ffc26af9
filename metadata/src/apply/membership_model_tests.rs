//! Random histories of membership: ids are never used again, a removed node is refused for ever, and a token
//! admits one node.

use super::membership_tests::{SystemGroup, admission, admit, remove, report, token};
use mlgw_formats::command::{AdmitNode, Change, DrainNode, PutNode, Reject, RemoveJoinToken, ReportNode};
use mlgw_formats::schema::{Node, NodeState};
use proptest::prelude::{Strategy, any, prop};
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Action {
    CreateToken(u64),
    RemoveToken(u64),
    Admit {
        token: u64,
        key: u8,
        is_late: bool,
    },
    Report {
        node: u64,
        counter: u64,
    },
    Drain {
        node: u64,
        is_draining: bool,
    },
    Remove(u64),
    Put(u64),
    /// The membership of the group: a set of bits.
    Membership(u8),
}

fn action() -> impl Strategy<Value = Action> {
    let (token, key, node) = (1u64..5, 1u8..5, 1u64..9);
    prop_oneof![
        2 => token.clone().prop_map(Action::CreateToken),
        1 => token.clone().prop_map(Action::RemoveToken),
        6 => (token, key, prop::bool::weighted(0.1))
            .prop_map(|(token, key, is_late)| Action::Admit { token, key, is_late }),
        4 => (node.clone(), 1u64..4).prop_map(|(node, counter)| Action::Report { node, counter }),
        2 => (node.clone(), any::<bool>())
            .prop_map(|(node, is_draining)| Action::Drain { node, is_draining }),
        3 => node.clone().prop_map(Action::Remove),
        1 => node.prop_map(Action::Put),
        1 => any::<u8>().prop_map(Action::Membership),
    ]
}

/// The history as an observer of the replies sees it.
#[derive(Default)]
struct Observer {
    /// Every id that was ever in use.
    ids: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    /// The key that each token was used with. A token that was removed may be created anew.
    used: BTreeMap<u64, u8>,
    /// The node that each key joined as.
    keys: BTreeMap<u8, u64>,
}

impl Observer {
    fn admitted(&mut self, token: u64, key: u8, node: &Node) {
        assert!(!self.removed.contains(&node.id), "a removed node was admitted: {node:?}");
        assert_eq!(*self.used.entry(token).or_insert(key), key, "two keys used token {token}");
        match self.keys.insert(key, node.id) {
            Some(before) => assert_eq!(before, node.id, "a key has two nodes"),
            None => {
                assert!(self.ids.last().is_none_or(|last| *last < node.id), "ids grow");
                assert!(self.ids.insert(node.id));
            }
        }
    }

    fn observe(&mut self, group: &mut SystemGroup, action: &Action) {
        match *action {
            Action::CreateToken(id) => {
                let _ = group.apply(token(id));
            }
            Action::RemoveToken(id) => {
                if group.apply(Change::RemoveJoinToken(RemoveJoinToken { token: id })).is_ok() {
                    self.used.remove(&id);
                }
            }
            Action::Admit { token, key, is_late } => {
                let late = AdmitNode { now_ms: i64::MAX, ..admission(token, key) };
                let command = if is_late { Change::AdmitNode(late) } else { admit(token, key) };
                if let Ok(node) = group.node_change(command) {
                    assert!(!is_late, "an expired token was accepted");
                    self.admitted(token, key, &node);
                }
            }
            Action::Report { node, counter } => {
                let report = ReportNode { is_serving: true, ..report(node, counter) };
                self.of_node(group, node, Change::ReportNode(report));
            }
            Action::Drain { node, is_draining } => {
                self.of_node(group, node, Change::DrainNode(DrainNode { node, is_draining, replaced_by: 0 }));
            }
            Action::Remove(node) => {
                if group.node_change(remove(node)).is_ok_and(|node| node.is_removed()) {
                    self.removed.insert(node);
                }
            }
            Action::Put(id) => {
                let put = Node { id, address: "p".into(), ..Node::default() };
                match group.apply(Change::PutNode(PutNode { node: put })) {
                    Ok(_) => {
                        assert!(!self.removed.contains(&id), "a removed node came back");
                        self.ids.insert(id);
                    }
                    Err(why) => assert_eq!(why, Reject::NodeRemoved { node: id }),
                }
            }
            Action::Membership(bits) => {
                let members: Vec<u64> = (1..9).filter(|node| bits >> (node - 1) & 1 == 1).collect();
                group.set_membership(&[&members], &members);
            }
        }
    }

    /// A command about a removed node is refused.
    fn of_node(&self, group: &mut SystemGroup, node: u64, change: Change) {
        let outcome = group.apply(change);
        if self.removed.contains(&node) {
            assert_eq!(outcome, Err(Reject::NodeRemoved { node }));
        }
    }
}

proptest! {
    #[test]
    fn membership_keeps_its_promises(actions in prop::collection::vec(action(), 1..80)) {
        let mut group = SystemGroup::new();
        let mut observer = Observer { ids: BTreeSet::from([1]), ..Observer::default() };
        for action in &actions {
            observer.observe(&mut group, action);
            for id in &observer.removed {
                prop_assert_eq!(group.node(*id).map(|node| node.state()), Some(NodeState::Removed));
            }
            let mut nodes = (1..200).filter_map(|id| group.node(id));
            let is_served = nodes.any(|node| node.state() == NodeState::Active);
            prop_assert!(is_served, "a storage node always stays");
        }
    }
}
