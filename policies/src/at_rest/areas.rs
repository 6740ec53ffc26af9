//! Actions of rules on groups of objects: datasets, checkpoints and prefixes.
//!
//! A rule matches one object but may target the group that contains it. The group's action is therefore found
//! while objects are scanned, and applies to objects scanned earlier from the next pass on. Invariant: an
//! area holds each rule match once, and at most `AREAS_MAX` areas are remembered.

use super::RuleMatch;
use crate::checkpoints::CheckpointIndex;
use crate::language::Target;
use mlgw_common::limits::AREAS_MAX;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

/// A group of objects of one bucket that a rule targets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleArea {
    /// Objects of the engine's dataset of this name.
    Dataset(u64, Box<str>),
    /// Objects of the checkpoint with this prefix.
    Checkpoint(u64, Box<str>),
    /// Objects whose keys begin with this prefix.
    Prefix(u64, Box<str>),
}

impl RuleArea {
    /// Returns the area that a rule with this target refers to when it matches an object of `bucket` in this
    /// dataset and in the checkpoint of this prefix; `None` if the target is the object alone, or the object
    /// is in no such group.
    #[must_use]
    pub fn of(target: &Target, bucket: u64, dataset: Option<&str>, checkpoint: Option<&str>) -> Option<Self> {
        match target {
            Target::Object => None,
            Target::Dataset => dataset.map(|name| Self::Dataset(bucket, name.into())),
            Target::CheckpointGroup => checkpoint.map(|prefix| Self::Checkpoint(bucket, prefix.into())),
            Target::Prefix(prefix) => Some(Self::Prefix(bucket, prefix.clone())),
        }
    }

    /// Returns the target of rules for such an area.
    #[must_use]
    pub fn target(&self) -> Target {
        match self {
            Self::Dataset(..) => Target::Dataset,
            Self::Checkpoint(..) => Target::CheckpointGroup,
            Self::Prefix(_, prefix) => Target::Prefix(prefix.clone()),
        }
    }
}

impl fmt::Display for RuleArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dataset(_, name) => write!(f, "dataset {name}"),
            Self::Checkpoint(_, prefix) => write!(f, "checkpoint {prefix}"),
            Self::Prefix(_, prefix) => write!(f, "prefix {prefix}"),
        }
    }
}

/// Rule matches by area.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AreaRuleMatches(BTreeMap<RuleArea, Vec<RuleMatch>>);

impl AreaRuleMatches {
    /// Adds a rule match on an area. Returns false if it is dropped because the limit of areas is reached.
    pub fn add(&mut self, area: RuleArea, rule_match: RuleMatch) -> bool {
        if self.0.len() >= AREAS_MAX && !self.0.contains_key(&area) {
            return false;
        }
        let claims = self.0.entry(area).or_default();
        if !claims.contains(&rule_match) {
            claims.push(rule_match);
            claims.sort_by(|a, b| a.by.cmp(&b.by));
        }
        assert!(self.0.len() <= AREAS_MAX, "areas are limited");
        true
    }

    /// True if the area holds this rule match.
    #[must_use]
    pub fn has(&self, area: &RuleArea, claim: &RuleMatch) -> bool {
        self.0.get(area).is_some_and(|claims| claims.contains(claim))
    }

    /// True if no area holds a rule match.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the rule matches on an object from all areas that contain it, in no particular order.
    pub fn of<'a>(
        &'a self,
        bucket: u64,
        key: &'a str,
        dataset: Option<&str>,
    ) -> impl Iterator<Item = (&'a RuleArea, &'a RuleMatch)> + use<'a> {
        let dataset = dataset.and_then(|name| self.0.get_key_value(&RuleArea::Dataset(bucket, name.into())));
        let wide = dataset.into_iter().chain(self.checkpoints_of(bucket, key));
        let wide = wide.chain(self.prefixes_of(bucket, key));
        wide.flat_map(|(area, claims)| claims.iter().map(move |claim| (area, claim)))
    }

    fn checkpoints_of<'a>(
        &'a self,
        bucket: u64,
        key: &'a str,
    ) -> impl Iterator<Item = (&'a RuleArea, &'a Vec<RuleMatch>)> {
        let prefixes = (!self.0.is_empty()).then(|| CheckpointIndex::prefixes_of(key));
        let areas =
            prefixes.into_iter().flatten().map(move |prefix| RuleArea::Checkpoint(bucket, prefix.into()));
        areas.filter_map(|area| self.0.get_key_value(&area))
    }

    fn prefixes_of<'a>(
        &'a self,
        bucket: u64,
        key: &'a str,
    ) -> impl Iterator<Item = (&'a RuleArea, &'a Vec<RuleMatch>)> {
        let from = RuleArea::Prefix(bucket, "".into());
        let from_bucket = self.0.range((Bound::Included(from), Bound::Unbounded));
        let of_bucket =
            from_bucket.take_while(move |(area, _)| matches!(area, RuleArea::Prefix(of, _) if *of == bucket));
        of_bucket.filter(
            move |(area, _)| matches!(area, RuleArea::Prefix(_, prefix) if key.starts_with(&**prefix)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{AreaRuleMatches, RuleArea};
    use crate::at_rest::{RuleMatch, RuleSource};
    use crate::language::ActionRequest;
    use proptest::prelude::*;

    fn claim(rank: usize) -> RuleMatch {
        RuleMatch {
            by: RuleSource { rank, rule: format!("r{rank}").as_str().into() },
            request: ActionRequest::Unpin,
        }
    }

    fn ranks(areas: &AreaRuleMatches, bucket: u64, key: &str, dataset: Option<&str>) -> Vec<usize> {
        let mut ranks: Vec<_> = areas.of(bucket, key, dataset).map(|(_, claim)| claim.by.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    #[test]
    fn an_object_receives_the_rule_matches_of_all_areas_that_contain_it() {
        let mut areas = AreaRuleMatches::default();
        assert!(areas.of(1, "a", None).next().is_none() && areas.is_empty());
        areas.add(RuleArea::Prefix(1, "run/".into()), claim(1));
        areas.add(RuleArea::Prefix(1, "run/a".into()), claim(2));
        areas.add(RuleArea::Checkpoint(1, "run/a-5/".into()), claim(3));
        areas.add(RuleArea::Dataset(1, "train/#.tar".into()), claim(4));
        areas.add(RuleArea::Dataset(1, "train/#.tar".into()), claim(4));
        assert_eq!(ranks(&areas, 1, "run/a-5/x", None), [1, 2, 3]);
        assert_eq!(ranks(&areas, 1, "run/a-6/x", None), [1, 2]);
        assert_eq!(ranks(&areas, 1, "run/b", Some("train/#.tar")), [1, 4]);
        assert_eq!(ranks(&areas, 2, "run/a-5/x", Some("train/#.tar")), [0usize; 0]);
        assert_eq!(ranks(&areas, 0, "run/a-5/x", None), [0usize; 0]);
        areas.add(RuleArea::Checkpoint(1, "own/model-1".into()), claim(5));
        assert_eq!(ranks(&areas, 1, "own/model-1.pt", None), [5]);
        assert_eq!(ranks(&areas, 1, "own/model-10.pt", None), [0usize; 0], "only the prefix is equal");
    }

    proptest! {
        #[test]
        fn areas_of_an_object_equal_those_of_a_linear_search(
            prefixes in prop::collection::vec((0u64..3, "[ab/]{0,3}"), 0..12),
            groups in prop::collection::vec((0u64..3, "[ab]/"), 0..6),
            bucket in 0u64..3,
            key in "[ab/]{0,5}",
        ) {
            let mut areas = AreaRuleMatches::default();
            let mut expected = Vec::new();
            for (rank, (of, prefix)) in prefixes.iter().enumerate() {
                areas.add(RuleArea::Prefix(*of, prefix.as_str().into()), claim(rank));
                expected.extend((*of == bucket && key.starts_with(prefix)).then_some(rank));
            }
            for (rank, (of, prefix)) in groups.iter().enumerate() {
                areas.add(RuleArea::Checkpoint(*of, prefix.as_str().into()), claim(100 + rank));
                expected.extend((*of == bucket && key.starts_with(prefix)).then_some(100 + rank));
            }
            prop_assert_eq!(ranks(&areas, bucket, &key, None), expected);
        }
    }
}
