//! Digests of all rows by group and family: those that a division must have, and those that it has.

use super::plan::DivisionPlan;
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt;

/// Rows of a family in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FamilyPart {
    group: u32,
    family: u8,
}

impl fmt::Display for FamilyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} family {:02x}", self.group, self.family)
    }
}

/// Number and checksum of rows, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FamilyDigest {
    rows: u64,
    sum: [u8; 32],
}

/// Digests of a catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowDigests(BTreeMap<FamilyPart, FamilyDigest>);

/// Digests in progress.
#[derive(Default)]
pub(super) struct RowSums(BTreeMap<FamilyPart, RowSum>);

#[derive(Default)]
struct RowSum {
    rows: u64,
    sum: Sha256,
}

impl RowSums {
    /// Adds a row; rows of a group are added in the order of their keys.
    fn add(&mut self, group: u32, key: &[u8], value: &[u8]) {
        let family = key.first().copied().unwrap_or_default();
        let of = self.0.entry(FamilyPart { group, family }).or_default();
        of.rows += 1;
        for bytes in [key, value] {
            of.sum.update((bytes.len() as u64).to_le_bytes());
            of.sum.update(bytes);
        }
    }

    /// Adds all rows of a group as they are.
    pub(super) fn add_state(&mut self, group: u32, state: &StateDb) -> Result<(), StoreError> {
        let mut rows = state.rows(&[0], &[u8::MAX]);
        while let Some((key, value)) = rows.next()? {
            self.add(group, key, value);
        }
        Ok(())
    }

    /// Adds all rows of group 0 as a division must place them.
    pub(super) fn add_divided(&mut self, plan: DivisionPlan, state: &StateDb) -> Result<(), StoreError> {
        let mut rows = state.rows(&[0], &[u8::MAX]);
        while let Some((key, value)) = rows.next()? {
            if let Some(planned) = plan.system_value(key, value)? {
                self.add(0, key, &planned);
            }
            if let Some(planned) = plan.object_value(key, value)? {
                self.add(plan.object_group, key, &planned);
            }
            if let Some(planned) = plan.empty_value(key, value)? {
                plan.empty_group_ids().for_each(|group| self.add(group, key, &planned));
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> RowDigests {
        let finished = |(part, of): (FamilyPart, RowSum)| {
            (part, FamilyDigest { rows: of.rows, sum: of.sum.finalize().into() })
        };
        RowDigests(self.0.into_iter().map(finished).collect())
    }
}

impl RowDigests {
    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        self.0.values().map(|of| of.rows).sum()
    }

    /// Description of the first difference of `found` from these digests.
    pub(super) fn difference(&self, found: &Self) -> Option<String> {
        let parts = self.0.keys().chain(found.0.keys());
        let part = parts.filter(|part| self.0.get(part) != found.0.get(part)).min()?;
        let rows = |of: &Self| of.0.get(part).map_or(0, |of| of.rows);
        Some(match (rows(self), rows(found)) {
            (expected, found) if expected == found => format!("{part}: some of the {found} rows differ"),
            (expected, found) => format!("{part}: {found} rows instead of {expected}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::RowSums;

    fn digests(rows: &[(u32, &[u8], &[u8])]) -> super::RowDigests {
        let mut sums = RowSums::default();
        rows.iter().for_each(|(group, key, value)| sums.add(*group, key, value));
        sums.finish()
    }

    #[test]
    fn a_difference_of_one_row_is_named() {
        let rows: [(u32, &[u8], &[u8]); 3] = [(0, b"\x02a", b"1"), (1, b"\x11b", b"2"), (1, b"\x11c", b"3")];
        let whole = digests(&rows);
        assert_eq!((whole.rows(), whole.difference(&digests(&rows))), (3, None));
        let less = whole.difference(&digests(&rows[..2])).unwrap();
        assert_eq!(less, "group 1 family 11: 1 rows instead of 2");
        let mut other = rows;
        other[0].2 = b"4";
        let changed = whole.difference(&digests(&other)).unwrap();
        assert_eq!(changed, "group 0 family 02: some of the 1 rows differ");
        other = rows;
        other[2] = (1, b"\x11", b"c3");
        assert!(whole.difference(&digests(&other)).is_some(), "lengths are a part of the sum");
        other = rows;
        other[2].0 = 0;
        assert!(whole.difference(&digests(&other)).is_some(), "the group is a part of it");
    }
}
