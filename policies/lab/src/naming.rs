//! Renaming of keys.
//!
//! The decisions of a policy must not depend on names. A workload can therefore be generated with every
//! component of every key renamed: keys in one directory stay in one directory, and keys in different
//! directories stay in different directories.

use mlgw_policies::stable_hash::hash;

/// Naming of the keys of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// The usual names of such a dataset.
    #[default]
    Plain,
    /// Replaces every run of letters and keeps numbers, so that the order of numbered keys is preserved.
    Renamed {
        /// Seed of the names.
        seed: u64,
    },
    /// Replaces every component with a hash: no order is preserved, and names carry no information.
    Hashed {
        /// Seed of the names.
        seed: u64,
    },
}

impl Naming {
    /// Appends the name that replaces `key` to `out`.
    pub(super) fn append(self, key: &str, out: &mut String) {
        let Some(seed) = self.seed() else { return out.push_str(key) };
        for (at, component) in key.split('/').enumerate() {
            if at > 0 {
                out.push('/');
            }
            match self {
                Self::Hashed { .. } => letters(hash(seed, component), out),
                _ => rename(seed, component, out),
            }
        }
    }

    fn seed(self) -> Option<u64> {
        match self {
            Self::Plain => None,
            Self::Renamed { seed } | Self::Hashed { seed } => Some(seed),
        }
    }
}

/// Appends the replacement of a component. A letter is put in front, so that the replacement of a component
/// of digits alone differs from the original.
fn rename(seed: u64, component: &str, out: &mut String) {
    out.push('n');
    let mut rest = component;
    while let Some(first) = rest.chars().next() {
        let is_digit = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        if is_digit {
            out.push_str(run)
        } else {
            letters(hash(seed, run), out)
        }
        rest = after;
    }
}

/// Appends ten letters: 47 bits, so that two names of a workload practically never collide.
fn letters(hash: u64, out: &mut String) {
    let mut rest = hash;
    for _ in 0..10 {
        out.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
}

#[cfg(test)]
mod tests {
    use super::Naming;
    use std::collections::BTreeMap;

    fn named(naming: Naming, key: &str) -> String {
        let mut out = String::new();
        naming.append(key, &mut out);
        out
    }

    #[test]
    fn directories_stay_apart_and_together() {
        let keys: Vec<_> =
            (0..2000).map(|i| format!("data/train{}/shard-{:03}/{i:05}.bin", i % 2, i / 100)).collect();
        for naming in [Naming::Renamed { seed: 1 }, Naming::Hashed { seed: 1 }] {
            let mut parents = BTreeMap::new();
            let mut names = std::collections::BTreeSet::new();
            for key in &keys {
                let name = named(naming, key);
                assert!(key.split('/').all(|component| name.split('/').all(|other| other != component)));
                assert_eq!(name.split('/').count(), 4);
                let parent = name.rsplit_once('/').unwrap().0.to_owned();
                let before = parents.insert(key.rsplit_once('/').unwrap().0, parent.clone());
                assert!(before.is_none_or(|before| before == parent));
                names.insert(name);
            }
            assert_eq!(names.len(), keys.len());
            assert_eq!(parents.values().collect::<std::collections::BTreeSet<_>>().len(), parents.len());
        }
    }

    #[test]
    fn numbered_keys_stay_in_order() {
        let naming = Naming::Renamed { seed: 7 };
        let names: Vec<_> = (0..500).map(|i| named(naming, &format!("a/part-{i:04}.tfrecord"))).collect();
        assert!(names.is_sorted());
        assert_ne!(names[0], named(Naming::Renamed { seed: 8 }, "a/part-0000.tfrecord"));
        assert_eq!(named(Naming::Plain, "a/b.c"), "a/b.c");
    }
}
