//! JSON Schema of policy files, made from the tables that also read them.

use super::actions::{ALIASES, ActionKind, sizes_of};
use super::file::{OVERRIDE_FIELDS, PROFILE_FIELDS};
use super::framework::Hint;
use super::limits::{FIRST_BYTES, ITEMS_MAX, NAME_BYTES_MAX};
use super::operators::{Operator, Shape};
use super::properties::{ConditionType, PropertyRow, properties_of};
use super::rule::{PRIORITY_MAX, operators_for};
use super::settings::SETTINGS;
use super::value::Kind;
use super::words::{Environment, Stance, Word};
use serde_json::{Map, Value as Json, json};

/// The schema of policy files, draft 2020-12.
#[must_use]
pub fn schema() -> Json {
    let overrides = |fields: &[&str]| {
        let all = [
            ("conditions", json!({"$ref": "#/$defs/comparisons"})),
            ("settings", json!({"$ref": "#/$defs/settings"})),
            ("rules", json!({"$ref": "#/$defs/rules"})),
        ];
        closed(all.into_iter().filter(|(name, _)| fields.contains(name)), &[])
    };
    let environments = Environment::ALL.iter().map(|one| (one.name(), overrides(OVERRIDE_FIELDS)));
    let mut definitions = rule_definitions();
    definitions["settings"] = settings();
    definitions["comparisons"] = comparisons();
    json!({
        "$schema": DRAFT,
        "title": "mlgw policy",
        "type": "object",
        "properties": {
            "version": {"const": super::VERSION},
            "name": text(),
            "description": text(),
            "settings": {"$ref": "#/$defs/settings"},
            "rules": {"$ref": "#/$defs/rules"},
            "templates": {"type": "array", "items": template()},
            "use": {"type": "array", "items": instance()},
            "frameworks": {"type": "object", "additionalProperties": framework_section()},
            "environments": closed(environments, &[]),
            "hardware_profiles": {"type": "object", "additionalProperties": overrides(PROFILE_FIELDS)},
        },
        "required": ["version"],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

/// The schema of framework plugins.
#[must_use]
pub fn framework_schema() -> Json {
    let confidence = || ("confidence", json!({"type": "number", "minimum": 0, "maximum": 1}));
    let pattern = || closed([("pattern", text()), confidence()], &["pattern", "confidence"]);
    let magic = [
        ("offset", json!({"type": "integer", "minimum": 0, "maximum": FIRST_BYTES - 1})),
        ("hex", json!({"type": "string", "pattern": "^([0-9a-fA-F]{2} *)+$"})),
        ("text", text()),
        confidence(),
    ];
    let list = |items: Json| json!({"type": "array", "items": items});
    let detect = [
        ("keys", list(pattern())),
        ("magic", list(closed(magic, &["confidence"]))),
        ("user_agents", list(pattern())),
    ];
    let hint = |hint: &Hint| {
        let schema = json!({"oneOf": [text(), {"type": "array", "items": text()}]});
        (hint.name(), described(schema, hint.doc()))
    };
    let fields = [
        ("version", json!({"const": super::VERSION})),
        ("framework", name()),
        ("description", text()),
        ("detect", closed(detect, &[])),
        ("hints", closed(Hint::ALL.iter().map(hint), &[])),
        ("rules", json!({"$ref": "#/$defs/rules"})),
        ("templates", list(template())),
        ("use", list(instance())),
    ];
    let mut schema = closed(fields, &["version", "framework", "detect"]);
    schema["$schema"] = DRAFT.into();
    schema["title"] = "mlgw framework plugin".into();
    schema["$defs"] = rule_definitions();
    schema
}

/// What policy files and plugins share.
fn rule_definitions() -> Json {
    json!({
        "rules": {"type": "array", "items": {"$ref": "#/$defs/rule"}},
        "rule": rule(),
        "condition": {"oneOf": conditions()},
        "action": {"oneOf": actions()},
    })
}

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// An object with these fields and no others.
fn closed<'a>(fields: impl IntoIterator<Item = (&'a str, Json)>, required: &[&str]) -> Json {
    let fields: Map<_, _> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false})
}

fn described(mut schema: Json, doc: &str) -> Json {
    schema["description"] = doc.into();
    schema
}

fn text() -> Json {
    json!({"type": ["string", "number", "boolean"]})
}

fn name() -> Json {
    json!({"type": "string", "pattern": format!("^[A-Za-z0-9._-]{{1,{NAME_BYTES_MAX}}}$")})
}

/// What values of a kind look like.
fn kind(kind: Kind) -> Json {
    const AMOUNT: &str = "[0-9]+(\\.[0-9]+)?";
    const BYTES: &str = "([kKmMgGtT][iI]?)?[bB]";
    match kind {
        Kind::Text => text(),
        Kind::Word(words) => json!({"enum": words}),
        Kind::Number => json!({"type": "number"}),
        Kind::Count => json!({"type": "integer", "minimum": 0}),
        Kind::Percent => json!({"type": "string", "pattern": format!("^{AMOUNT} ?%$")}),
        Kind::Bytes => json!({"type": "string", "pattern": format!("^{AMOUNT} *{BYTES}$")}),
        Kind::Rate => json!({"type": "string", "pattern": format!("^{AMOUNT} *{BYTES}/s$")}),
        Kind::Duration => json!({"type": "string", "pattern": format!("^{AMOUNT} *(d|h|m|s|ms|us)$")}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::List => json!({"type": "array", "items": text(), "minItems": 1, "maxItems": ITEMS_MAX}),
    }
}

/// A kind within the range of its row; what has a unit is a text, whose size a schema cannot bound.
fn within(of: Kind, range: Option<(&str, &str)>) -> Json {
    let mut schema = kind(of);
    if let (Kind::Number | Kind::Count, Some((low, high))) = (of, sizes_of(of, range)) {
        schema["minimum"] = super::value::json_number(low);
        schema["maximum"] = super::value::json_number(high);
    }
    schema
}

fn settings() -> Json {
    let mut fields = Map::new();
    for row in SETTINGS {
        let schema = described(within(row.kind, row.range), row.doc);
        for member in row.members {
            fields.insert(format!("{}.{member}", row.word), schema.clone());
        }
        let mut schema = schema;
        schema["default"] = row.setting.default_value().to_json();
        fields.insert(row.word.to_owned(), schema);
    }
    json!({"type": "object", "properties": fields, "additionalProperties": false})
}

fn rule() -> Json {
    let threshold = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1});
    let fields = [
        ("id", name()),
        ("name", text()),
        ("description", text()),
        ("priority", json!({"type": "integer", "minimum": -PRIORITY_MAX, "maximum": PRIORITY_MAX})),
        ("enabled", json!({"type": "boolean"})),
        ("stance", json!({"enum": Stance::WORDS})),
        ("framework", name()),
        (
            "match",
            json!({"oneOf": [{"enum": ["all", "any"]}, closed([("threshold", threshold)], &["threshold"])]}),
        ),
        ("conditions", json!({"type": "array", "items": {"$ref": "#/$defs/condition"}})),
        ("actions", json!({"type": "array", "items": {"$ref": "#/$defs/action"}})),
    ];
    closed(fields, &["id"])
}

/// One schema for each property and each shape that values of it can have.
fn conditions() -> Vec<Json> {
    let mut schemas = Vec::new();
    for of in ConditionType::ALL {
        for row in properties_of(*of) {
            let mut operators: Vec<_> = operators_for(*of, row.kind).collect();
            while let Some(first) = operators.first().copied() {
                let shape = first.shape(row.kind);
                let same: Vec<_> =
                    operators.iter().copied().filter(|one| one.shape(row.kind) == shape).collect();
                operators.retain(|one| !same.contains(one));
                schemas.extend(shape.map(|shape| condition(*of, row, &same, shape)));
            }
        }
    }
    schemas
}

fn condition(of: ConditionType, row: &PropertyRow, operators: &[Operator], shape: Shape) -> Json {
    let property = if row.is_named() {
        json!({"type": "string", "pattern": format!("^{}.+$", row.word.replace('.', "\\."))})
    } else {
        json!({"const": row.word})
    };
    let (value, required): (_, &[&str]) = match shape {
        Shape::One(of) => (kind(of), &["type", "property", "operator", "value"]),
        Shape::Pattern => (kind(Kind::Text), &["type", "property", "operator", "value"]),
        Shape::Some(of) => (
            json!({"type": "array", "items": kind(of), "minItems": 1, "maxItems": ITEMS_MAX}),
            &["type", "property", "operator", "value"],
        ),
        Shape::Pair(of) => (
            json!({"type": "array", "items": kind(of), "minItems": 2, "maxItems": 2}),
            &["type", "property", "operator", "value"],
        ),
        Shape::Flag => (kind(Kind::Flag), &["type", "property", "operator"]),
    };
    let words: Vec<_> = operators.iter().map(|one| one.name()).collect();
    let fields = [
        ("type", json!({"const": of.name()})),
        ("property", described(property, row.doc)),
        ("operator", json!({"enum": words})),
        ("value", value),
        ("weight", json!({"type": "number", "minimum": 0, "maximum": 1})),
    ];
    closed(fields, required)
}

fn actions() -> Vec<Json> {
    let action = |action: &ActionKind| {
        let aliases = ALIASES.iter().filter(|(_, kind)| kind == action).map(|(alias, _)| *alias);
        let words: Vec<_> = std::iter::once(action.name()).chain(aliases).collect();
        let parameters = action.rows().iter().map(|row| {
            let mut schema = described(within(row.kind, row.range), row.doc);
            if let Some(default) = row.default_value() {
                schema["default"] = default.to_json();
            }
            (row.parameter.name(), schema)
        });
        let target = json!({"type": "string", "pattern": "^(object|dataset|checkpoint_group|prefix:.+)$"});
        let fields = [
            ("type", described(json!({"enum": words}), action.doc())),
            ("target", target),
            ("stance", json!({"enum": Stance::WORDS})),
            ("parameters", closed(parameters, &[])),
        ];
        closed(fields, &["type"])
    };
    ActionKind::ALL.iter().map(action).collect()
}

/// In a template any value may be a placeholder; instances are checked when they are read.
fn template() -> Json {
    let kinds: Vec<_> = Kind::PARAMETERS.iter().map(|kind| kind.name()).collect();
    let parameter = [
        ("name", name()),
        ("kind", json!({"enum": kinds})),
        ("default", json!({})),
        ("description", text()),
        ("required", json!({"type": "boolean"})),
    ];
    let fields = [
        ("id", name()),
        ("name", text()),
        ("description", text()),
        ("category", text()),
        ("parameters", json!({"type": "array", "items": closed(parameter, &["name", "kind"])})),
        ("rules", json!({"type": "array", "items": {"type": "object"}})),
    ];
    closed(fields, &["id", "rules"])
}

fn instance() -> Json {
    let fields = [("id", name()), ("template", name()), ("parameters", json!({"type": "object"}))];
    closed(fields, &["id", "template"])
}

fn framework_section() -> Json {
    closed([("enabled", json!({"type": "boolean"})), ("rules", json!({"$ref": "#/$defs/rules"}))], &[])
}

fn comparisons() -> Json {
    let rows = properties_of(ConditionType::SystemContext);
    let fields = rows.map(|row| (row.word, described(text(), row.doc)));
    closed(fields, &[])
}
