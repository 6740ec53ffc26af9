//! Facts about one object, as policies request them.
//!
//! The types are pure data. Facts come from the access statistics of the object, if available, then from
//! the stored object and its key, then from the server. A fact that no source has is `None`.

use super::server_facts::SystemFacts;
use mlgw_common::Tier;
use mlgw_common::Timestamp;
use mlgw_policies::checkpoints::model_file_kind;
use mlgw_policies::file_type_by_key;
use mlgw_policies::language::{Fact, Facts, FileType, Program, Property, Word as _, fact_of_key};
use std::time::Duration;

/// Attributes of an object in the catalogue or in the index of copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownObject {
    /// Name of its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// Time of its last write, if known.
    pub modified: Option<Timestamp>,
    /// Its tags; `None` if they are unknown because only the origin has them.
    pub tags: Option<Vec<(String, String)>>,
    /// Its user metadata.
    pub metadata: Vec<(String, String)>,
    /// The fastest tier that holds its first bytes.
    pub tier: Option<Tier>,
}

impl KnownObject {
    /// Time since the last read: from its copies, else from the access statistics, else since its last
    /// write.
    #[must_use]
    pub fn idle(&self, read: Option<Timestamp>, access: &dyn Facts, now: Timestamp) -> Duration {
        let since = |then: Option<Timestamp>| {
            let ms = now.as_millis().saturating_sub(then.map_or(0, Timestamp::as_millis));
            Duration::from_millis(u64::try_from(ms).unwrap_or(0))
        };
        match (read, access.fact(Property::Recency, "")) {
            (Some(read), _) => since(Some(read)),
            (None, Some(Fact::Duration(idle))) => idle,
            _ => since(self.modified),
        }
    }
}

/// The dataset in the facts.
#[must_use]
pub fn dataset_of(facts: &dyn Facts) -> Option<String> {
    match facts.fact(Property::Dataset, "") {
        Some(Fact::Text(name)) => Some(name.to_owned()),
        _ => None,
    }
}

/// Facts about an object under one program.
#[derive(Clone)]
pub struct ObjectFacts<'a> {
    object: &'a KnownObject,
    system: &'a SystemFacts,
    now: Timestamp,
    frameworks: Vec<&'a str>,
    file_type: FileType,
    tags: Option<Vec<&'a str>>,
    metadata: Vec<&'a str>,
    /// Access statistics. Without them, no fact of `access_pattern` and `workload_context` is known except
    /// the frameworks that the key indicates. Their facts about the object take precedence over those of
    /// the stored object.
    pub access: Option<&'a dyn Facts>,
}

impl<'a> ObjectFacts<'a> {
    /// Creates the facts of `object` under `program`.
    #[must_use]
    pub fn new(
        program: &'a Program,
        object: &'a KnownObject,
        system: &'a SystemFacts,
        now: Timestamp,
    ) -> Self {
        let names = |pairs: &'a [(String, String)]| -> Vec<&'a str> {
            pairs.iter().map(|(name, _)| name.as_str()).collect()
        };
        Self {
            object,
            system,
            now,
            frameworks: program.detect(&object.key, None, None).map(|(name, _)| name).collect(),
            file_type: file_type_by_key(program, &object.key),
            tags: object.tags.as_deref().map(names),
            metadata: names(&object.metadata),
            access: None,
        }
    }

    fn at_rest(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        let object = self.object;
        match property {
            Property::Bucket => Some(Fact::Text(&object.bucket)),
            Property::Size => Some(Fact::Bytes(object.size)),
            Property::ModelFileKind => model_file_kind(&object.key).map(|kind| Fact::Text(kind.name())),
            Property::Type => Some(Fact::Text(self.file_type.name())),
            Property::Tags => Some(self.tags.as_ref().map_or(Fact::Unknown, |tags| Fact::List(tags))),
            Property::Tag => match &object.tags {
                Some(tags) => value_of(tags, name),
                None => Some(Fact::Unknown),
            },
            Property::Metadata => Some(Fact::List(&self.metadata)),
            Property::MetadataEntry => value_of(&object.metadata, name),
            Property::Age => {
                let age = self.now.as_millis().saturating_sub(object.modified?.as_millis());
                Some(Fact::Duration(Duration::from_millis(u64::try_from(age).unwrap_or(0))))
            }
            Property::Tier => object.tier.map(|tier| Fact::Text(tier.name())),
            Property::Framework => Some(Fact::List(&self.frameworks)),
            _ => fact_of_key(&object.key, property),
        }
    }
}

fn value_of<'a>(pairs: &'a [(String, String)], name: &str) -> Option<Fact<'a>> {
    pairs.iter().find(|(of, _)| of == name).map(|(_, value)| Fact::Text(value))
}

impl Facts for ObjectFacts<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        self.access
            .and_then(|access| access.fact(property, name))
            .or_else(|| self.at_rest(property, name))
            .or_else(|| self.system.fact(property, name))
    }
}

#[cfg(test)]
mod tests {
    use super::{KnownObject, ObjectFacts};
    use crate::server_facts::{ServerProfile, SystemFacts};
    use mlgw_common::{Tier, Timestamp};
    use mlgw_policies::facts::SERVER_PROPERTIES;
    use mlgw_policies::language::{
        ConditionType, Environment, Fact, FactList, Facts as _, PROPERTIES, Program, Property,
    };
    use std::time::Duration;

    fn object() -> KnownObject {
        KnownObject {
            bucket: "lake".into(),
            key: "train/imagenet-000001.tar".into(),
            size: 7,
            modified: Some(Timestamp(1000)),
            tags: Some(vec![("team".into(), "vision".into())]),
            metadata: vec![("epoch".into(), "3".into())],
            tier: Some(Tier::Cold),
        }
    }

    #[test]
    fn facts_of_an_object_come_from_the_catalogue_and_from_its_key() {
        let (program, object, system) =
            (Program::compile_built_in().unwrap(), object(), SystemFacts::default());
        let facts = ObjectFacts::new(&program, &object, &system, Timestamp(61_000));
        let fact =
            |property, name| facts.fact(property, name).and_then(|fact| Some(fact.to_value()?.to_string()));
        let is = |property, name, expected: &str| {
            assert_eq!(fact(property, name).as_deref(), Some(expected), "{property:?}");
        };
        is(Property::Bucket, "", "lake");
        is(Property::Name, "", "imagenet-000001.tar");
        is(Property::Type, "", "shard");
        is(Property::Tag, "team", "vision");
        is(Property::MetadataEntry, "epoch", "3");
        is(Property::Tier, "", "cold");
        assert_eq!(facts.fact(Property::Age, ""), Some(Fact::Duration(Duration::from_secs(60))));
        assert_eq!(facts.fact(Property::Tags, ""), Some(Fact::List(&["team"])));
        assert_eq!((fact(Property::Tag, "other"), fact(Property::Frequency, "")), (None, None));
        let Some(Fact::List(frameworks)) = facts.fact(Property::Framework, "") else { panic!() };
        assert!(frameworks.contains(&"webdataset"), "{frameworks:?}");
    }

    #[test]
    fn all_facts_of_the_server_are_known() {
        let place =
            ServerProfile { environment: Some(Environment::Staging), gpu_count: Some(1), memory_bytes: 1 };
        let system = SystemFacts {
            server: place,
            hot_fill: Some(1.0),
            cold_fill: Some(1.0),
            copies_fill: Some(1.0),
            memory_fill: Some(1.0),
            bandwidth: Some(1),
            upstream_latency: Some(Duration::from_millis(1)),
        };
        let (program, object) = (Program::compile_built_in().unwrap(), object());
        let facts = ObjectFacts::new(&program, &object, &system, Timestamp(61_000));
        let named = |property| match property {
            Property::Tag => "team",
            Property::MetadataEntry => "epoch",
            _ => "",
        };
        let of_system = PROPERTIES.iter().filter(|row| row.condition_type == ConditionType::SystemContext);
        for property in of_system.map(|row| row.property).chain(SERVER_PROPERTIES) {
            let value = facts.fact(property, named(property));
            assert!(value.is_some_and(|fact| fact != Fact::Unknown), "{property:?}");
        }
    }

    #[test]
    fn tags_that_only_an_origin_has_are_unknown() {
        let program = Program::compile_built_in().unwrap();
        let (object, system) = (KnownObject { tags: None, ..object() }, SystemFacts::default());
        let facts = ObjectFacts::new(&program, &object, &system, Timestamp(0));
        assert_eq!(facts.fact(Property::Tags, ""), Some(Fact::Unknown));
        assert_eq!(facts.fact(Property::Tag, "team"), Some(Fact::Unknown));
        assert_eq!(facts.fact(Property::MetadataEntry, "team"), None, "metadata is known without tags");
    }

    #[test]
    fn access_statistics_take_precedence() {
        let (program, object, system) =
            (Program::compile_built_in().unwrap(), object(), SystemFacts::default());
        let mut facts = ObjectFacts::new(&program, &object, &system, Timestamp(0));
        let read = FactList(vec![
            (Property::Frequency, "", Fact::Number(4.0)),
            (Property::Type, "", Fact::Text("sample")),
        ]);
        facts.access = Some(&read);
        assert_eq!(facts.fact(Property::Frequency, ""), Some(Fact::Number(4.0)));
        assert_eq!(facts.fact(Property::Type, ""), Some(Fact::Text("sample")));
        assert_eq!(facts.fact(Property::Size, ""), Some(Fact::Bytes(7)));
    }
}
