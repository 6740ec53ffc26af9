//! The facts about one object, as a policy asks for them.
//!
//! Pure: what is known of the object at rest, what its key hints at, how the server is, and, where somebody
//! knows it, how the object is read. A fact that is not known here is asked of the next; one that nobody
//! knows is none.

use super::place::SystemFacts;
use mlgw_common::Timestamp;
use mlgw_policies::checkpoints::model_file_kind;
use mlgw_policies::file_type_by_key;
use mlgw_policies::language::{Fact, Facts, FileType, Program, Property, Tier, Word as _, fact_of_key};
use std::time::Duration;

/// What the catalogue or the index of copies knows of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownObject {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// When it was written, if that is known.
    pub modified: Option<Timestamp>,
    /// Its tags; none when they are not known, as those that only an origin keeps.
    pub tags: Option<Vec<(String, String)>>,
    /// Its user metadata.
    pub metadata: Vec<(String, String)>,
    /// The fastest tier that has it, as far as its first bytes tell.
    pub tier: Option<Tier>,
}

impl KnownObject {
    /// How long it was not read: by its copies, by whoever watches that, or else not since it was written.
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

/// The dataset that facts tell.
#[must_use]
pub fn dataset_of(facts: &dyn Facts) -> Option<String> {
    match facts.fact(Property::Dataset, "") {
        Some(Fact::Text(name)) => Some(name.to_owned()),
        _ => None,
    }
}

/// The facts about it, for one program.
#[derive(Clone)]
pub struct ObjectFacts<'a> {
    object: &'a KnownObject,
    system: &'a SystemFacts,
    now: Timestamp,
    frameworks: Vec<&'a str>,
    file_type: FileType,
    tags: Option<Vec<&'a str>>,
    metadata: Vec<&'a str>,
    /// How it is read and by whom, from whoever watches that; without it nothing of `access_pattern` and
    /// `workload_context` is known but the frameworks that the key speaks for. What it knows of the object
    /// itself is taken before what is known at rest.
    pub access: Option<&'a dyn Facts>,
}

impl<'a> ObjectFacts<'a> {
    /// What `program` makes of what is known.
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
    use crate::place::{Place, SystemFacts};
    use mlgw_common::Timestamp;
    use mlgw_policies::facts::OF_SERVER;
    use mlgw_policies::language::{
        ConditionType, Environment, Fact, FactList, Facts as _, PROPERTIES, Program, Property, Tier,
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
    fn an_object_at_rest_says_what_the_catalogue_knows_and_its_key_hints_at() {
        let (program, object, system) = (Program::built_in().unwrap(), object(), SystemFacts::default());
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
    fn all_is_told_that_only_a_server_knows() {
        let place = Place { environment: Some(Environment::Staging), gpu_count: Some(1), memory_bytes: 1 };
        let system = SystemFacts {
            place,
            hot_fill: Some(1.0),
            cold_fill: Some(1.0),
            copies_fill: Some(1.0),
            memory_fill: Some(1.0),
            bandwidth: Some(1),
            upstream_latency: Some(Duration::from_millis(1)),
        };
        let (program, object) = (Program::built_in().unwrap(), object());
        let facts = ObjectFacts::new(&program, &object, &system, Timestamp(61_000));
        let named = |property| match property {
            Property::Tag => "team",
            Property::MetadataEntry => "epoch",
            _ => "",
        };
        let of_system = PROPERTIES.iter().filter(|row| row.of == ConditionType::SystemContext);
        for property in of_system.map(|row| row.property).chain(OF_SERVER) {
            let told = facts.fact(property, named(property));
            assert!(told.is_some_and(|fact| fact != Fact::Unknown), "{property:?}");
        }
    }

    #[test]
    fn of_tags_that_only_an_origin_keeps_nothing_holds() {
        let program = Program::built_in().unwrap();
        let (object, system) = (KnownObject { tags: None, ..object() }, SystemFacts::default());
        let facts = ObjectFacts::new(&program, &object, &system, Timestamp(0));
        assert_eq!(facts.fact(Property::Tags, ""), Some(Fact::Unknown));
        assert_eq!(facts.fact(Property::Tag, "team"), Some(Fact::Unknown));
        assert_eq!(facts.fact(Property::MetadataEntry, "team"), None, "metadata comes along");
    }

    #[test]
    fn who_watches_accesses_is_asked_first() {
        let (program, object, system) = (Program::built_in().unwrap(), object(), SystemFacts::default());
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
