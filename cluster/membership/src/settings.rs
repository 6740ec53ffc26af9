//! Comparison of the settings that all nodes should share. Pure.
//!
//! The value that most nodes have counts as right. If several values are equally frequent, that of the node
//! with the lowest id does. So nodes that have the same answers report the same differences.

use mlgw_common::NodeId;
use mlgw_formats::node_settings::SettingDigests;
use std::collections::{BTreeMap, BTreeSet};

/// The settings of a node, as it stated them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedSettings {
    /// The node.
    pub node: NodeId,
    /// True if it is a storage node, and false if it is a gateway, which uses some of the settings only.
    pub is_storage: bool,
    /// Digests of those that have not their default.
    pub settings: SettingDigests,
}

/// Returns the names of the settings of each node that differ from those of most nodes, sorted. Nodes without
/// a difference are left out.
#[must_use]
pub fn differing_settings(stated: &[StatedSettings]) -> BTreeMap<NodeId, Vec<String>> {
    let mut differing = BTreeMap::<NodeId, Vec<String>>::new();
    for (name, is_of_storage) in names(stated) {
        let using = stated.iter().filter(|of| of.is_storage || !is_of_storage);
        let values: Vec<(NodeId, Option<u64>)> = using.map(|of| (of.node, digest_of(of, name))).collect();
        let Some(usual) = usual_value(&values) else { continue };
        for (node, _) in values.iter().filter(|(_, value)| *value != usual) {
            differing.entry(*node).or_default().push(name.to_owned());
        }
    }
    differing
}

/// Names of all settings that any node has set, and whether gateways do not use them.
fn names(stated: &[StatedSettings]) -> BTreeSet<(&str, bool)> {
    let all = stated.iter().flat_map(|of| &of.settings.settings);
    all.map(|setting| (setting.name.as_str(), setting.is_of_storage)).collect()
}

/// The digest of a setting; `None` if it has its default.
fn digest_of(stated: &StatedSettings, name: &str) -> Option<u64> {
    let found = stated.settings.settings.iter().find(|setting| setting.name == name);
    found.map(|setting| setting.digest)
}

/// The value that most nodes have.
fn usual_value(values: &[(NodeId, Option<u64>)]) -> Option<Option<u64>> {
    let count = |value: Option<u64>| values.iter().filter(|(_, other)| *other == value).count();
    let usual = values.iter().max_by_key(|(node, value)| (count(*value), std::cmp::Reverse(*node)));
    usual.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::{StatedSettings, differing_settings};
    use mlgw_common::NodeId;
    use mlgw_formats::node_settings::{SettingDigest, SettingDigests};

    /// A storage node with these settings.
    fn stated(node: u64, settings: &[(&str, u64)]) -> StatedSettings {
        let digest = |(name, digest): &(&str, u64)| SettingDigest {
            name: (*name).into(),
            digest: *digest,
            is_of_storage: !name.starts_with("s3."),
        };
        let settings = SettingDigests { settings: settings.iter().map(digest).collect() };
        StatedSettings { node: NodeId(node), is_storage: true, settings }
    }

    fn shown(stated: &[StatedSettings]) -> Vec<(u64, String)> {
        let differing = differing_settings(stated).into_iter();
        differing.map(|(node, names)| (node.get(), names.join(" "))).collect()
    }

    #[test]
    fn the_node_that_differs_from_most_is_named_with_its_settings() {
        let of = |node, region, ttl| stated(node, &[("s3.region", region), ("bound.ttl", ttl)]);
        assert_eq!(shown(&[of(1, 5, 6), of(2, 5, 6), of(3, 5, 6)]), []);
        assert_eq!(shown(&[of(1, 9, 8), of(2, 5, 6), of(3, 5, 6)]), [(1, "bound.ttl s3.region".into())]);
        let each = [of(1, 5, 6), of(2, 5, 7), of(3, 4, 6)];
        assert_eq!(shown(&each), [(2, "bound.ttl".into()), (3, "s3.region".into())]);
    }

    #[test]
    fn a_default_is_a_value_and_the_lowest_id_decides_between_equally_many() {
        let (set, unset) = (|node| stated(node, &[("s3.region", 5)]), |node| stated(node, &[]));
        assert_eq!(shown(&[set(1), unset(2)]), [(2, "s3.region".into())]);
        assert_eq!(shown(&[unset(1), set(2)]), [(2, "s3.region".into())]);
        assert_eq!(shown(&[set(1), unset(2), unset(3)]), [(1, "s3.region".into())]);
        assert_eq!(shown(&[unset(1)]), []);
        assert_eq!(shown(&[]), []);
    }

    #[test]
    fn a_gateway_is_compared_by_the_settings_that_it_uses() {
        let storage = |node| stated(node, &[("s3.region", 5), ("upstream.far", 1)]);
        let gateway = |settings: &[_]| StatedSettings { is_storage: false, ..stated(4, settings) };
        assert_eq!(shown(&[storage(1), storage(2), gateway(&[("s3.region", 5)])]), []);
        assert_eq!(shown(&[storage(1), storage(2), gateway(&[])]), [(4, "s3.region".into())]);
    }
}
