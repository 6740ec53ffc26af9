//! Decides on the compression of a new object, before its first byte is stored.
//!
//! Rules are evaluated only if the policy has a `compress` rule with stance `act`. They receive the facts
//! that are available by then: key, size, bucket, tags, user metadata and client. No state is kept between
//! requests.

use super::Policies;
use super::facts::{KnownObject, ObjectFacts};
use super::server_facts::SystemFacts;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::schema::Pair;
use mlgw_objects::compressor::Compression;
use mlgw_policies::language::{ActionKind, ActionRequest, Aspect, Aspects, Fact, Facts, Program, Property};

/// An object that is about to be stored.
pub struct NewObject<'a> {
    /// Its bucket.
    pub bucket: &'a str,
    /// Its key.
    pub key: &'a ObjectKey,
    /// Its length in bytes, if known. The length of a multipart upload is unknown.
    pub size: Option<u64>,
    /// Its user metadata.
    pub metadata: &'a [Pair],
    /// Its tags.
    pub tags: &'a [Pair],
    /// The user agent of the client that sends it.
    pub agent: Option<&'a str>,
    /// The workload of that client.
    pub workload: Option<&'a str>,
}

impl Policies {
    /// Returns how the body of a new object is compressed, if an acting rule compresses it. Calls `new` only
    /// if the policy has a `compress` rule with stance `act`.
    pub fn compression<'a>(&self, new: impl FnOnce() -> NewObject<'a>) -> Option<Compression> {
        let program = self.program_with_action(ActionKind::Compress)?;
        compression_of(&program, &new(), &self.system(), self.clock.now())
    }
}

/// Returns the compression of the strongest acting rule that compresses the object.
fn compression_of(
    program: &Program,
    new: &NewObject<'_>,
    system: &SystemFacts,
    now: Timestamp,
) -> Option<Compression> {
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
    let facts = NewObjectFacts {
        at_rest: ObjectFacts::new(program, &known, system, now),
        size: new.size,
        agent: new.agent,
        workload: new.workload,
        frameworks: program.detect(new.key.as_str(), None, new.agent).map(|(name, _)| name).collect(),
    };
    let mut acting = program.acting(Aspects::new(&[Aspect::Compression]), &facts);
    acting.find_map(|due| match *due.request {
        ActionRequest::Compress { level, min_ratio } => Some(Compression { level, min_ratio }),
        _ => None,
    })
}

/// Facts about a new object for rules.
struct NewObjectFacts<'a> {
    at_rest: ObjectFacts<'a>,
    size: Option<u64>,
    agent: Option<&'a str>,
    workload: Option<&'a str>,
    frameworks: Vec<&'a str>,
}

impl Facts for NewObjectFacts<'_> {
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
    use super::{Compression, NewObject, compression_of};
    use crate::SystemFacts;
    use mlgw_common::{ObjectKey, Timestamp};
    use mlgw_formats::schema::Pair;
    use mlgw_policies::language::{ActionKind, BuiltInLayers, Layers, NoFacts, ParsedPolicy, Program};

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
        let custom = [ParsedPolicy::parse("test.yaml", custom).unwrap()];
        let built_in = BuiltInLayers::load().unwrap();
        let (machine, built_in) = (&NoFacts, &built_in);
        Program::compile(&Layers { custom: &custom, frameworks: &[], environment: None, machine, built_in })
            .unwrap()
    }

    #[test]
    fn the_strongest_acting_rule_decides() {
        let program = program(RULES);
        let kind = [Pair::new("kind", "text")];
        let compression = |key: &str, size, metadata: &[Pair], tags: &[Pair], workload| {
            let key = ObjectKey::new(key).unwrap();
            let new = NewObject { bucket: "b", key: &key, size, metadata, tags, agent: None, workload };
            compression_of(&program, &new, &SystemFacts::default(), Timestamp(0))
        };
        let logs = Some(Compression { level: 9, min_ratio: 2.0 });
        assert_eq!(compression("a/x.log", Some(5000), &[], &[], None), logs);
        assert_eq!(
            compression("a/x.log", Some(5000), &[], &[], Some("exporter")).unwrap().level,
            1,
            "the rule with the higher priority wins"
        );
        assert_eq!(compression("a/x.log", Some(100), &[], &[], None), None);
        assert_eq!(compression("a/x.log", None, &[], &[], None), None, "the size is not known");
        assert_eq!(compression("a/x.tar", Some(5000), &[], &[], None), None);
        assert_eq!(compression("a/x.tar", Some(5000), &[], &kind, None), None, "the rule only observes");
        let default = Some(Compression { level: 3, min_ratio: 1.2 });
        assert_eq!(compression("a/x.tar", Some(5000), &kind, &[], None), default);
    }

    #[test]
    fn rules_are_not_evaluated_unless_an_acting_one_compresses() {
        assert!(program(RULES).has_acting(ActionKind::Compress));
        let observing = RULES
            .replace(", stance: observe", "")
            .replace("{type: compress", "{type: compress, stance: observe");
        assert!(!program(&observing).has_acting(ActionKind::Compress));
        assert!(!Program::compile_built_in().unwrap().has_acting(ActionKind::Compress));
    }
}
