//! Whether the bytes of a new object are compressed: what rules say of it before its first byte is stored.
//!
//! Rules are asked only while one that compresses is in force. They are told what is known by then: the key and what it hints at, the size where the
//! request says it (of a part, the object's is not known), the bucket, tags and user metadata, and who writes. Nothing is kept between requests.

use super::Gateway;
use super::error::S3Error;
use super::lanes::workload;
use super::object_headers::Description;
use super::request::Request;
use crate::policies::SystemFacts;
use crate::policies::facts::{KnownObject, ObjectFacts};
use http::HeaderMap;
use http::header::USER_AGENT;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_metadata::schema::{Bucket, Pair, Upload};
use mlgw_policies::language::{ActionKind, Aspect, Aspects, Fact, Facts, Program, Property, Wish};

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Compression {
    /// The effort.
    pub(crate) level: u32,
    /// How many times smaller its first chunk has to become, or all of it is stored as it comes.
    pub(crate) min_ratio: f64,
}

/// An object that is about to be.
pub(crate) struct Coming<'a> {
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a ObjectKey,
    /// Its bytes, where they are known.
    pub(crate) size: Option<u64>,
    pub(crate) metadata: &'a [Pair],
    pub(crate) tags: &'a [Pair],
    /// The headers of the request that makes it; none where no client does.
    pub(crate) headers: Option<&'a HeaderMap>,
}

impl<'a> Coming<'a> {
    /// An object of this description.
    pub(crate) fn with(
        bucket: &'a str,
        key: &'a ObjectKey,
        size: Option<u64>,
        description: &'a Description,
        headers: Option<&'a HeaderMap>,
    ) -> Self {
        let Description { metadata, tags, .. } = description;
        Self { bucket, key, size, metadata, tags, headers }
    }

    /// The object that a request sends a part of. How large it will be nobody knows yet.
    ///
    /// # Errors
    /// When the request names no key.
    pub(crate) fn part_of(
        request: &'a Request<'_>,
        bucket: &'a Bucket,
        upload: &'a Upload,
    ) -> Result<Self, S3Error> {
        Ok(Self {
            bucket: &bucket.name,
            key: request.key()?,
            size: None,
            metadata: &upload.metadata,
            tags: &upload.tags,
            headers: Some(&request.head.headers),
        })
    }
}

impl Gateway {
    /// How the body of `new` is compressed, if a rule that acts says so.
    pub(crate) fn compression(&self, new: &Coming<'_>) -> Option<Compression> {
        let program = self.policies.acting(ActionKind::Compress)?;
        of(&program, new, &self.policies.system(), self.clock.now())
    }
}

/// What the strongest rule says of it that compresses and acts.
fn of(program: &Program, new: &Coming<'_>, system: &SystemFacts, now: Timestamp) -> Option<Compression> {
    let owned = |pairs: &[Pair]| pairs.iter().map(|one| (one.name.clone(), one.value.clone())).collect();
    let known = KnownObject {
        bucket: new.bucket.to_owned(),
        key: new.key.as_str().to_owned(),
        size: new.size.unwrap_or(0),
        modified: Some(now),
        tags: Some(owned(new.tags)),
        metadata: owned(new.metadata),
        tier: None,
    };
    let agent = new.headers.and_then(|headers| headers.get(USER_AGENT)?.to_str().ok());
    let facts = Told {
        at_rest: ObjectFacts::new(program, &known, system, now),
        size: new.size,
        agent,
        workload: new.headers.and_then(workload),
        frameworks: program.detect(new.key.as_str(), None, agent).map(|(name, _)| name).collect(),
    };
    let mut acting = program.acting(Aspects::of(&[Aspect::Compression]), &facts);
    acting.find_map(|due| match *due.wish {
        Wish::Compress { level, min_ratio } => Some(Compression { level, min_ratio }),
        _ => None,
    })
}

/// What rules are told.
struct Told<'a> {
    at_rest: ObjectFacts<'a>,
    size: Option<u64>,
    agent: Option<&'a str>,
    workload: Option<&'a str>,
    frameworks: Vec<&'a str>,
}

impl Facts for Told<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        match property {
            Property::Size => self.size.map(Fact::Bytes),
            Property::UserAgent => self.agent.map(Fact::Text),
            Property::WorkloadName => self.workload.map(Fact::Text),
            Property::Framework => Some(Fact::List(&self.frameworks)),
            _ => self.at_rest.fact(property, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Coming, Compression, of};
    use crate::policies::SystemFacts;
    use http::{HeaderMap, HeaderValue};
    use mlgw_common::{ObjectKey, Timestamp};
    use mlgw_metadata::schema::Pair;
    use mlgw_policies::language::{ActionKind, BuiltIn, Layers, NoFacts, PolicyFile, Program};

    const RULES: &str = "
version: 1
rules:
  - id: logs
    conditions:
      - {type: file_context, property: extension, operator: in, value: [log, csv]}
      - {type: file_context, property: size, operator: greater_than, value: 4KiB}
    actions: [{type: compress, parameters: {level: 9, min_ratio: 2}}]
  - id: exporter
    priority: 5
    conditions: [{type: workload_context, property: name, operator: equals, value: exporter}]
    actions: [{type: compress, parameters: {level: 1}}]
  - id: tagged
    conditions: [{type: file_context, property: tags.kind, operator: equals, value: text}]
    actions: [{type: compress, stance: observe}]
  - id: described
    conditions: [{type: file_context, property: metadata.kind, operator: equals, value: text}]
    actions: [{type: compress}]
";

    fn program(custom: &str) -> Program {
        let custom = [PolicyFile::parse("test.yaml", custom).unwrap()];
        let built_in = BuiltIn::load().unwrap();
        let (machine, built_in) = (&NoFacts, &built_in);
        Program::compile(&Layers { custom: &custom, frameworks: &[], environment: None, machine, built_in })
            .unwrap()
    }

    #[test]
    fn the_strongest_rule_that_acts_is_heard() {
        let program = program(RULES);
        let kind = [Pair::new("kind", "text")];
        let mut exporter = HeaderMap::new();
        exporter.insert("x-mlgw-workload", HeaderValue::from_static("exporter"));
        let asked = |key: &str, size, metadata: &[Pair], tags: &[Pair], headers| {
            let key = ObjectKey::new(key).unwrap();
            let new = Coming { bucket: "b", key: &key, size, metadata, tags, headers };
            of(&program, &new, &SystemFacts::default(), Timestamp(0))
        };
        let logs = Some(Compression { level: 9, min_ratio: 2.0 });
        assert_eq!(asked("a/x.log", Some(5000), &[], &[], None), logs);
        assert_eq!(
            asked("a/x.log", Some(5000), &[], &[], Some(&exporter)).unwrap().level,
            1,
            "more important"
        );
        assert_eq!(asked("a/x.log", Some(100), &[], &[], None), None);
        assert_eq!(asked("a/x.log", None, &[], &[], None), None, "the size is not known");
        assert_eq!(asked("a/x.tar", Some(5000), &[], &[], None), None);
        assert_eq!(asked("a/x.tar", Some(5000), &[], &kind, None), None, "it only says so");
        let default = Some(Compression { level: 3, min_ratio: 1.2 });
        assert_eq!(asked("a/x.tar", Some(5000), &kind, &[], None), default);
    }

    #[test]
    fn without_such_a_rule_nobody_is_asked() {
        assert!(program(RULES).acts(ActionKind::Compress));
        let observing = RULES
            .replace(", stance: observe", "")
            .replace("{type: compress", "{type: compress, stance: observe");
        assert!(!program(&observing).acts(ActionKind::Compress));
        assert!(!Program::built_in().unwrap().acts(ActionKind::Compress));
    }
}
