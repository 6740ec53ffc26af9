//! What rules say of more than one object: datasets, checkpoints and prefixes.
//!
//! A rule matches an object and speaks of what that belongs to, so what it says is found while objects are looked at, and holds for those that were
//! looked at before from the next round on. Always: a claim stands once in an area, and so many areas are remembered at most.

use super::Claim;
use crate::checkpoints::Checkpoints;
use mlgw_common::limits::AREAS_MAX;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Objects of a bucket that belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// Those of the engine's dataset of this name.
    Dataset(u64, Box<str>),
    /// Those of the checkpoint of this prefix.
    Checkpoint(u64, Box<str>),
    /// All that begin so.
    Prefix(u64, Box<str>),
}

/// What is said of areas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Areas(BTreeMap<Area, Vec<Claim>>);

impl Areas {
    /// Somebody says something of an area. Beyond the limit it is not heard.
    pub fn add(&mut self, area: Area, claim: Claim) {
        if self.0.len() >= AREAS_MAX && !self.0.contains_key(&area) {
            return;
        }
        let claims = self.0.entry(area).or_default();
        if !claims.contains(&claim) {
            claims.push(claim);
            claims.sort_by(|a, b| a.by.cmp(&b.by));
        }
    }

    /// Whether nothing is said of any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is said of an object, by all areas that it is in, in no order.
    pub fn of<'a>(
        &'a self,
        bucket: u64,
        key: &'a str,
        dataset: Option<&str>,
    ) -> impl Iterator<Item = &'a Claim> + use<'a> {
        let dataset = dataset.and_then(|name| self.0.get(&Area::Dataset(bucket, name.into())));
        let checkpoint = self.checkpoints_of(bucket, key);
        let prefixes = self.prefixes(bucket).filter(|(prefix, _)| key.starts_with(*prefix));
        let prefixes = prefixes.flat_map(|(_, claims)| claims);
        dataset.into_iter().chain(checkpoint).flatten().chain(prefixes)
    }

    fn checkpoints_of<'a>(&'a self, bucket: u64, key: &'a str) -> impl Iterator<Item = &'a Vec<Claim>> {
        let prefixes = (!self.0.is_empty()).then(|| Checkpoints::prefixes_of(key));
        let areas = prefixes.into_iter().flatten().map(move |prefix| Area::Checkpoint(bucket, prefix.into()));
        areas.filter_map(|area| self.0.get(&area))
    }

    fn prefixes(&self, bucket: u64) -> impl Iterator<Item = (&str, &Vec<Claim>)> {
        let from = Area::Prefix(bucket, "".into());
        let behind = self.0.range((Bound::Included(from), Bound::Unbounded));
        behind.map_while(move |(area, claims)| match area {
            Area::Prefix(of, prefix) if *of == bucket => Some((&**prefix, claims)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Area, Areas};
    use crate::at_rest::{By, Claim};
    use crate::language::Wish;
    use proptest::prelude::*;

    fn claim(rank: usize) -> Claim {
        Claim { by: By { rank, rule: format!("r{rank}").as_str().into() }, wish: Wish::Unpin }
    }

    fn ranks(areas: &Areas, bucket: u64, key: &str, dataset: Option<&str>) -> Vec<usize> {
        let mut ranks: Vec<_> = areas.of(bucket, key, dataset).map(|claim| claim.by.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    #[test]
    fn an_object_hears_what_is_said_of_all_that_it_belongs_to() {
        let mut areas = Areas::default();
        assert!(areas.of(1, "a", None).next().is_none() && areas.is_empty());
        areas.add(Area::Prefix(1, "run/".into()), claim(1));
        areas.add(Area::Prefix(1, "run/a".into()), claim(2));
        areas.add(Area::Checkpoint(1, "run/a-5/".into()), claim(3));
        areas.add(Area::Dataset(1, "train/#.tar".into()), claim(4));
        areas.add(Area::Dataset(1, "train/#.tar".into()), claim(4));
        assert_eq!(ranks(&areas, 1, "run/a-5/x", None), [1, 2, 3]);
        assert_eq!(ranks(&areas, 1, "run/a-6/x", None), [1, 2]);
        assert_eq!(ranks(&areas, 1, "run/b", Some("train/#.tar")), [1, 4]);
        assert_eq!(ranks(&areas, 2, "run/a-5/x", Some("train/#.tar")), [0usize; 0]);
        assert_eq!(ranks(&areas, 0, "run/a-5/x", None), [0usize; 0]);
        areas.add(Area::Checkpoint(1, "own/model-1".into()), claim(5));
        assert_eq!(ranks(&areas, 1, "own/model-1.pt", None), [5]);
        assert_eq!(ranks(&areas, 1, "own/model-10.pt", None), [0usize; 0], "it only begins alike");
    }

    proptest! {
        #[test]
        fn areas_are_found_as_by_looking_at_each(
            prefixes in prop::collection::vec((0u64..3, "[ab/]{0,3}"), 0..12),
            groups in prop::collection::vec((0u64..3, "[ab]/"), 0..6),
            bucket in 0u64..3,
            key in "[ab/]{0,5}",
        ) {
            let mut areas = Areas::default();
            let mut expected = Vec::new();
            for (rank, (of, prefix)) in prefixes.iter().enumerate() {
                areas.add(Area::Prefix(*of, prefix.as_str().into()), claim(rank));
                expected.extend((*of == bucket && key.starts_with(prefix)).then_some(rank));
            }
            for (rank, (of, prefix)) in groups.iter().enumerate() {
                areas.add(Area::Checkpoint(*of, prefix.as_str().into()), claim(100 + rank));
                expected.extend((*of == bucket && key.starts_with(prefix)).then_some(100 + rank));
            }
            prop_assert_eq!(ranks(&areas, bucket, &key, None), expected);
        }
    }
}
