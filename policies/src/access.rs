//! An access, as the engine is told of it: who asked for what, and when.

use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Bytes of an object are read.
    Read,
    /// An object was written whole.
    Write,
    /// An object was deleted.
    Delete,
}

/// Who asks: one process of a training, inference or data workload, as far as requests tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Its own: a hash of access key, address, user agent and of the workload that it says it belongs to.
    pub id: u64,
    /// What it shares with its like: a hash of the same without the address.
    pub family: u64,
}

impl Caller {
    /// Who asks with this key from this address. A family are those who give themselves one name; of those
    /// who give none, those of one user agent.
    #[must_use]
    pub fn of(access_key: &str, agent: &[u8], workload: Option<&str>, address: &[u8]) -> Self {
        let key = xxh3_64_with_seed(access_key.as_bytes(), u64::from(workload.is_some()));
        let family = match workload {
            Some(name) => xxh3_64_with_seed(name.as_bytes(), key),
            None => {
                let (before, after) = without_features(agent);
                let seed = xxh3_64_with_seed(before, key);
                if after.is_empty() { seed } else { xxh3_64_with_seed(after, seed) }
            }
        };
        Self { id: xxh3_64_with_seed(address, family), family }
    }
}

/// What comes before and after the word of a user agent in which SDKs of AWS say what they do in a single
/// request: `m/E,D`. It is another one for another request, and not even in one order.
fn without_features(agent: &[u8]) -> (&[u8], &[u8]) {
    let Some(begin) = agent.windows(FEATURES.len()).position(|word| word == FEATURES) else {
        return (agent, &[]);
    };
    let rest = &agent[begin + FEATURES.len()..];
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    (&agent[..begin], &rest[end..])
}

const FEATURES: &[u8] = b" m/";

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// When, in microseconds since any moment; never less than in the access before.
    pub at_us: u64,
    /// Who.
    pub caller: Caller,
    /// The bucket's id.
    pub bucket: u64,
    /// The key.
    pub key: &'a str,
    /// What is done.
    pub op: Op,
    /// Bytes of the whole object.
    pub size: u64,
    /// The bytes of it that are read; all of them when it is written or deleted.
    pub range: Range<u64>,
}

#[cfg(test)]
mod tests {
    use super::Caller;

    #[test]
    fn each_part_tells_callers_apart_and_only_the_address_tells_not_families() {
        let caller = Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 1]);
        assert_eq!(caller, Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 1]));
        let neighbour = Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 2]);
        assert!(neighbour.id != caller.id && neighbour.family == caller.family);
        assert_eq!(
            caller,
            Caller::of("AK", b"torch", Some("train"), &[127, 0, 0, 1]),
            "who has a name is one"
        );
        for other in [
            Caller::of("AL", b"boto3", Some("train"), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto3", Some("serve"), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto3", Some(""), &[127, 0, 0, 1]),
            Caller::of("AK", b"boto3", None, &[127, 0, 0, 1]),
        ] {
            assert!(other.id != caller.id && other.family != caller.family);
        }
    }

    #[test]
    fn what_an_agent_says_of_a_single_request_makes_nobody_another() {
        let of = |agent: &str| Caller::of("AK", agent.as_bytes(), None, &[127, 0, 0, 1]);
        let get =
            "Boto3/1.44.2 md/Botocore#1.44.2 ua/2.1 os/linux m/Z,b,D,E cfg/retry-mode#legacy Botocore/1.44.2";
        assert_eq!(of(get), of(&get.replace("m/Z,b,D,E", "m/D,U,Z,E,b")));
        assert_eq!(of("a m/Z"), of("a m/U"));
        let others = [
            get.replace("1.44.2", "1.45.0"),
            get.replace("legacy", "standard"),
            "a m/Z b".into(),
            "a b".into(),
            "a".into(),
        ];
        let mut families: Vec<u64> =
            others.iter().map(|agent| of(agent).family).chain([of(get).family]).collect();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), 6);
    }
}
