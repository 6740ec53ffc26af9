//! JSON Schema of policy files, generated from the tables from which the reader works.
//!
//! The schema accepts a value if the reader does, and requires the same fields. It cannot express errors that
//! only several values show together (such as duplicate ids), errors that only the pattern compiler finds,
//! and ranges of values with units.

use super::actions::{ALIASES, ActionKind, range_sizes};
use super::file::{OVERRIDE_FIELDS, PROFILE_FIELDS};
use super::framework::Hint;
use super::limits::{
    ACTIONS_MAX, CONDITIONS_MAX, FIRST_BYTES, ITEMS_MAX, NAME_BYTES_MAX, NUMBER_MAX, PARAMETERS_MAX,
    PATTERN_BYTES_MAX, RULES_MAX,
};
use super::operators::{Operator, ValueForm};
use super::properties::{ConditionType, PropertyRow, properties_of};
use super::rule::{PRIORITY_MAX, operators_for};
use super::settings::SETTINGS;
use super::value::{ValueKind, json_number};
use super::words::{Environment, Stance, Word};
use serde_json::{Map, Value as Json, json};

/// Returns the schema of policy files, draft 2020-12.
#[must_use]
pub fn schema() -> Json {
    let overrides = |fields: &[&str], required: &[&str]| {
        let all = [
            ("conditions", json!({"$ref": "#/$defs/comparisons"})),
            ("settings", json!({"$ref": "#/$defs/settings"})),
            ("rules", json!({"$ref": "#/$defs/rules"})),
        ];
        closed_object(all.into_iter().filter(|(name, _)| fields.contains(name)), required)
    };
    let environments = Environment::ALL.iter().map(|one| (one.name(), overrides(OVERRIDE_FIELDS, &[])));
    let profile = overrides(PROFILE_FIELDS, &["conditions"]);
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
            "templates": list(template(), 0, RULES_MAX),
            "use": list(instance(), 0, RULES_MAX),
            "frameworks": {"type": "object", "additionalProperties": framework_section()},
            "environments": closed_object(environments, &[]),
            "hardware_profiles": {"type": "object", "propertyNames": name(), "additionalProperties": profile},
        },
        "required": ["version"],
        "additionalProperties": false,
        "$defs": definitions,
    })
}

/// Returns the schema of framework plugins.
#[must_use]
pub fn framework_schema() -> Json {
    let confidence = || ("confidence", json!({"type": "number", "minimum": 0, "maximum": 1}));
    let evidence = || closed_object([("pattern", pattern()), confidence()], &["pattern", "confidence"]);
    let magic = [
        ("offset", json!({"type": "integer", "minimum": 0, "maximum": FIRST_BYTES - 1})),
        ("hex", json!({"type": "string", "pattern": "^ *([0-9a-fA-F] *[0-9a-fA-F] *)+$"})),
        ("text", long_text(FIRST_BYTES)),
        confidence(),
    ];
    let mut magic = closed_object(magic, &["confidence"]);
    magic["oneOf"] = json!([{"required": ["hex"]}, {"required": ["text"]}]);
    let detect = [
        ("keys", list(evidence(), 0, ITEMS_MAX)),
        ("magic", list(magic, 0, ITEMS_MAX)),
        ("user_agents", list(evidence(), 0, ITEMS_MAX)),
    ];
    let mut detect = closed_object(detect, &[]);
    detect["minProperties"] = 1.into();
    let hint = |hint: &Hint| {
        let schema = json!({"oneOf": [pattern(), list(pattern(), 0, ITEMS_MAX)]});
        (hint.name(), described(schema, hint.doc()))
    };
    let fields = [
        ("version", json!({"const": super::VERSION})),
        ("framework", name()),
        ("description", text()),
        ("detect", detect),
        ("hints", closed_object(Hint::ALL.iter().map(hint), &[])),
        ("rules", json!({"$ref": "#/$defs/rules"})),
        ("templates", list(template(), 0, RULES_MAX)),
        ("use", list(instance(), 0, RULES_MAX)),
    ];
    let mut schema = closed_object(fields, &["version", "framework", "detect"]);
    schema["$schema"] = DRAFT.into();
    schema["title"] = "mlgw framework plugin".into();
    schema["$defs"] = rule_definitions();
    schema
}

/// Returns the definitions common to policy files and plugins.
fn rule_definitions() -> Json {
    json!({
        "rules": list(json!({"$ref": "#/$defs/rule"}), 0, RULES_MAX),
        "rule": rule(),
        "condition": {"oneOf": conditions()},
        "action": {"oneOf": actions()},
    })
}

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the schema of an object with these fields and no others.
fn closed_object<'a>(fields: impl IntoIterator<Item = (&'a str, Json)>, required: &[&str]) -> Json {
    let fields: Map<_, _> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false})
}

fn described(mut schema: Json, doc: &str) -> Json {
    schema["description"] = doc.into();
    schema
}

fn list(items: Json, least: usize, most: usize) -> Json {
    let mut schema = json!({"type": "array", "items": items, "maxItems": most});
    if least > 0 {
        schema["minItems"] = least.into();
    }
    schema
}

fn text() -> Json {
    json!({"type": ["string", "number", "boolean"]})
}

/// Returns the schema of a text with 1 to `most` characters.
fn long_text(most: usize) -> Json {
    json!({"type": ["string", "number", "boolean"], "minLength": 1, "maxLength": most})
}

fn pattern() -> Json {
    long_text(PATTERN_BYTES_MAX)
}

fn name() -> Json {
    bounded(json!({
        "type": ["string", "number", "boolean"],
        "pattern": format!("^[A-Za-z0-9._-]{{1,{NAME_BYTES_MAX}}}$"),
    }))
}

/// Bounds numbers to the range in which doubles are exact.
fn bounded(mut schema: Json) -> Json {
    schema["minimum"] = json_number(-NUMBER_MAX);
    schema["maximum"] = json_number(NUMBER_MAX);
    schema
}

/// Returns the schema of values of a kind.
fn kind(kind: ValueKind) -> Json {
    match kind {
        ValueKind::Text => text(),
        ValueKind::Word(words) => json!({"enum": words}),
        ValueKind::Number => bounded(json!({"type": "number"})),
        ValueKind::Count => json!({"type": "integer", "minimum": 0, "maximum": json_number(NUMBER_MAX)}),
        ValueKind::Flag => json!({"type": "boolean"}),
        ValueKind::List => list(text(), 1, ITEMS_MAX),
        ValueKind::Percent | ValueKind::Bytes | ValueKind::Rate | ValueKind::Duration => {
            json!({"type": "string", "pattern": format!("^{}$", text_form_regex(kind))})
        }
    }
}

/// Returns a regular expression, without anchors, of the text form of a kind.
fn text_form_regex(kind: ValueKind) -> String {
    const AMOUNT: &str = "[0-9]+(\\.[0-9]+)?";
    const BYTES: &str = "([kKmMgGtT][iI]?)?[bB]";
    match kind {
        ValueKind::Percent => "(0*100(\\.0+)?|0*[0-9]{1,2}(\\.[0-9]+)?) *%".to_owned(),
        ValueKind::Bytes => format!("{AMOUNT} *{BYTES}"),
        ValueKind::Rate => format!("{AMOUNT} *{BYTES}/s"),
        ValueKind::Duration => format!("{AMOUNT} *(d|h|m|s|ms|us)"),
        ValueKind::Number | ValueKind::Count => format!("-?{AMOUNT}([eE][+-]?[0-9]+)?"),
        ValueKind::Word(words) => format!("({})", words.join("|")),
        ValueKind::Flag => "(true|false)".to_owned(),
        ValueKind::Text | ValueKind::List => ".*".to_owned(),
    }
}

/// Returns the schema of a kind within the range of its row. Values with a unit are texts, whose range a
/// schema cannot bound.
fn kind_within(of: ValueKind, range: Option<(&str, &str)>) -> Json {
    let mut schema = kind(of);
    if let (ValueKind::Number | ValueKind::Count, Some((low, high))) = (of, range_sizes(of, range)) {
        schema["minimum"] = json_number(low);
        schema["maximum"] = json_number(high);
    }
    schema
}

fn settings() -> Json {
    let mut fields = Map::new();
    for row in SETTINGS {
        let schema = described(kind_within(row.kind, row.range), row.doc);
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
            json!({"oneOf": [
                {"enum": ["all", "any"]},
                closed_object([("threshold", threshold)], &["threshold"])
            ]}),
        ),
        ("conditions", list(json!({"$ref": "#/$defs/condition"}), 0, CONDITIONS_MAX)),
        ("actions", list(json!({"$ref": "#/$defs/action"}), 0, ACTIONS_MAX)),
    ];
    let mut rule = closed_object(fields, &["id"]);
    // A rule that is switched off needs no conditions and actions.
    rule["if"] = json!({"properties": {"enabled": {"const": false}}, "required": ["enabled"]});
    rule["else"] = json!({
        "properties": {"conditions": {"minItems": 1}, "actions": {"minItems": 1}},
        "required": ["conditions", "actions"],
    });
    rule
}

/// Returns one schema for each property and each form of its values.
fn conditions() -> Vec<Json> {
    let mut schemas = Vec::new();
    for of in ConditionType::ALL {
        for row in properties_of(*of) {
            let mut operators: Vec<_> = operators_for(*of, row.kind).collect();
            while let Some(first) = operators.first().copied() {
                let shape = first.value_form(row.kind);
                let same: Vec<_> =
                    operators.iter().copied().filter(|one| one.value_form(row.kind) == shape).collect();
                operators.retain(|one| !same.contains(one));
                schemas.extend(shape.map(|shape| condition(*of, row, &same, shape)));
            }
        }
    }
    schemas
}

fn condition(of: ConditionType, row: &PropertyRow, operators: &[Operator], shape: ValueForm) -> Json {
    let property = if row.is_named() {
        let most = 2 * NAME_BYTES_MAX;
        json!({"type": "string", "pattern": format!("^{}.{{1,{most}}}$", row.word.replace('.', "\\."))})
    } else {
        json!({"const": row.word})
    };
    let (value, required): (_, &[&str]) = match shape {
        ValueForm::One(of) => (kind(of), &["type", "property", "operator", "value"]),
        ValueForm::Pattern => (pattern(), &["type", "property", "operator", "value"]),
        ValueForm::Some(of) => (list(kind(of), 1, ITEMS_MAX), &["type", "property", "operator", "value"]),
        ValueForm::Pair(of) => (list(kind(of), 2, 2), &["type", "property", "operator", "value"]),
        ValueForm::Flag => (kind(ValueKind::Flag), &["type", "property", "operator"]),
    };
    let words: Vec<_> = operators.iter().map(|one| one.name()).collect();
    let fields = [
        ("type", json!({"const": of.name()})),
        ("property", described(property, row.doc)),
        ("operator", json!({"enum": words})),
        ("value", value),
        ("weight", json!({"type": "number", "minimum": 0, "maximum": 1})),
    ];
    closed_object(fields, required)
}

fn actions() -> Vec<Json> {
    let action = |action: &ActionKind| {
        let aliases = ALIASES.iter().filter(|(_, kind)| kind == action).map(|(alias, _)| *alias);
        let words: Vec<_> = std::iter::once(action.name()).chain(aliases).collect();
        let parameters = action.rows().iter().map(|row| {
            let mut schema = described(kind_within(row.kind, row.range), row.doc);
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
            ("parameters", closed_object(parameters, &[])),
        ];
        closed_object(fields, &["type"])
    };
    ActionKind::ALL.iter().map(action).collect()
}

/// Returns the schema of a template. Any value in its rules can be a placeholder; instances are checked when
/// they are read.
fn template() -> Json {
    let parameters: Vec<_> = ValueKind::PARAMETERS.iter().map(|kind| parameter(*kind)).collect();
    let fields = [
        ("id", name()),
        ("name", text()),
        ("description", text()),
        ("category", text()),
        ("parameters", list(json!({"oneOf": parameters}), 0, PARAMETERS_MAX)),
        ("rules", list(json!({"type": "object"}), 1, RULES_MAX)),
    ];
    closed_object(fields, &["id", "rules"])
}

fn parameter(of: ValueKind) -> Json {
    let fields = [
        ("name", name()),
        ("kind", json!({"const": of.name()})),
        ("default", kind(of)),
        ("description", text()),
        ("required", json!({"type": "boolean"})),
    ];
    let mut parameter = closed_object(fields, &["name", "kind"]);
    parameter["if"] = json!({"properties": {"required": {"const": false}}, "required": ["required"]});
    parameter["then"] = json!({"required": ["default"]});
    parameter
}

fn instance() -> Json {
    let fields = [("id", name()), ("template", name()), ("parameters", json!({"type": "object"}))];
    closed_object(fields, &["id", "template"])
}

fn framework_section() -> Json {
    closed_object([("enabled", json!({"type": "boolean"})), ("rules", json!({"$ref": "#/$defs/rules"}))], &[])
}

fn comparisons() -> Json {
    let rows = properties_of(ConditionType::SystemContext);
    let fields = rows.map(|row| {
        let signs = if row.kind.is_ordered() { "(>=|<=|!=|>|<|=)?" } else { "(!=|=)?" };
        let pattern = format!("^ *{signs} *{} *$", text_form_regex(row.kind));
        let types: &[&str] = if row.kind == ValueKind::Number { &["string", "number"] } else { &["string"] };
        (row.word, described(bounded(json!({"type": types, "pattern": pattern})), row.doc))
    });
    let mut comparisons = closed_object(fields, &[]);
    comparisons["minProperties"] = 1.into();
    comparisons
}
