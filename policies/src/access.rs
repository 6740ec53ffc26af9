//! Accesses that the engine observes: client, object, byte range and time.

use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A read of a byte range of the object.
    Read,
    /// A write of the whole object.
    Write,
    /// A deletion of the object.
    Delete,
}

/// Client identity: one process of a training, inference or data workload, as far as its requests identify
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Hash of the access key, the address, the user agent and the workload name that the client sends.
    pub id: u64,
    /// Hash of the same parts without the address; processes of one workload share it.
    pub family: u64,
}

impl Caller {
    /// Returns the identity of the client with this access key and address. Clients that send the same
    /// workload name are one family; clients without a workload name form one family per user agent.
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

/// Returns the parts of a user agent before and after the `m/E,D` word, in which the AWS SDKs list the
/// features of the single request. Its value and the order of its letters vary from request to request.
fn without_features(agent: &[u8]) -> (&[u8], &[u8]) {
    let Some(begin) = agent.windows(FEATURES.len()).position(|word| word == FEATURES) else {
        return (agent, &[]);
    };
    let rest = &agent[begin + FEATURES.len()..];
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    (&agent[..begin], &rest[end..])
}

const FEATURES: &[u8] = b" m/";

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// Time in microseconds since an arbitrary epoch; never less than that of the previous access.
    pub at_us: u64,
    /// The client.
    pub caller: Caller,
    /// Bucket id.
    pub bucket: u64,
    /// Object key.
    pub key: &'a str,
    /// The operation.
    pub op: Op,
    /// Bytes of the whole object.
    pub size: u64,
    /// The byte range that is read; the whole object when it is written or deleted.
    pub range: Range<u64>,
}

#[cfg(test)]
mod tests {
    use super::Caller;

    #[test]
    fn callers_differ_by_each_part_and_families_by_all_but_the_address() {
        let caller = Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 1]);
        assert_eq!(caller, Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 1]));
        let neighbour = Caller::of("AK", b"boto3", Some("train"), &[127, 0, 0, 2]);
        assert!(neighbour.id != caller.id && neighbour.family == caller.family);
        assert_eq!(
            caller,
            Caller::of("AK", b"torch", Some("train"), &[127, 0, 0, 1]),
            "a named caller is one caller"
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
    fn request_features_in_the_user_agent_do_not_change_the_identity() {
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
