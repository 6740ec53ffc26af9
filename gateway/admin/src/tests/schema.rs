//! Validation of requests and responses against the OpenAPI document, with the keywords that it uses.

use crate::openapi::generate;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Keywords that constrain no value.
const NOTES: &[&str] = &["description", "format", "default"];

/// Statuses of errors that any request can get.
const COMMON_ERRORS: &[u16] = &[400, 403, 413, 500, 503];

/// Returns the document.
pub(super) fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(generate);
    &DOCUMENT
}

/// Returns the violations of a schema of the document, each with its position.
pub(super) fn violations(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.strip_prefix('#').unwrap()).unwrap();
        return violations(document, schema, value, at);
    }
    let keywords =
        schema.as_object().unwrap().iter().filter(|(keyword, _)| !NOTES.contains(&keyword.as_str()));
    keywords.flat_map(|(keyword, wanted)| broken(document, (keyword, wanted), value, at)).collect()
}

/// Returns the violations of one keyword.
fn broken(document: &Value, (keyword, wanted): (&str, &Value), value: &Value, at: &str) -> Vec<String> {
    let holds = match keyword {
        "anyOf" => {
            let fits = |schema| violations(document, schema, value, at).is_empty();
            wanted.as_array().unwrap().iter().any(fits)
        }
        "type" => {
            let types = wanted.as_array().cloned().unwrap_or_else(|| vec![wanted.clone()]);
            types.iter().any(|one| has_type(value, one.as_str().unwrap()))
        }
        "enum" => value.is_null() || wanted.as_array().unwrap().contains(value),
        "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap()),
        "maxLength" => value.as_str().is_none_or(|text| text.len() as u64 <= wanted.as_u64().unwrap()),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap()),
        "uniqueItems" => value
            .as_array()
            .is_none_or(|items| items.iter().enumerate().all(|(at, item)| !items[..at].contains(item))),
        "items" => {
            let items = value.as_array().into_iter().flatten();
            return items.flat_map(|item| violations(document, wanted, item, at)).collect();
        }
        "required" => {
            let names = wanted.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
            let missing =
                names.filter(|name| value.as_object().is_some_and(|fields| !fields.contains_key(*name)));
            return missing.map(|name| format!("{at}.{name} is missing")).collect();
        }
        "properties" => {
            let fields = value.as_object().into_iter().flatten();
            let check = |(name, field): (&String, &Value)| match wanted.get(name) {
                Some(schema) => violations(document, schema, field, &format!("{at}.{name}")),
                None => vec![format!("{at}.{name} is not described")],
            };
            return fields.flat_map(check).collect();
        }
        // Objects with properties are closed; a document without described properties is open.
        "additionalProperties" => true,
        unknown => panic!("the keyword {unknown} is not implemented"),
    };
    if holds { Vec::new() } else { vec![format!("{at}: {value} violates {keyword} {wanted}")] }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        unknown => panic!("unknown type {unknown}"),
    }
}

/// Returns the operation that describes a request.
fn operation<'d>(document: &'d Value, method: &Method, path: &str) -> Option<&'d Value> {
    let is_match = |template: &str| {
        let (parts, given): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        let fits = |(part, given): (&&str, &&str)| part.starts_with('{') || part == given;
        parts.len() == given.len() && parts.iter().zip(&given).all(fits)
    };
    // A path without variable segments precedes one with them.
    let mut found: Vec<_> =
        document["paths"].as_object().unwrap().iter().filter(|(template, _)| is_match(template)).collect();
    found.sort_by_key(|(template, _)| template.matches('{').count());
    found.iter().find_map(|(_, methods)| methods.get(method.as_str().to_lowercase()))
}

/// Asserts that a request and its response are as the document describes them. A refused request need not be.
pub(super) fn assert_described(
    method: &Method,
    target: &str,
    body: &Value,
    (status, answer): (StatusCode, &Value),
) {
    let document = document();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(operation) = operation(document, method, path) else {
        let code = answer["code"].as_str();
        return assert!(
            matches!(code, Some("NoSuchRoute" | "MethodNotAllowed")),
            "{method} {path}: {answer}"
        );
    };
    let at = format!("{method} {path}");
    let responses = &operation["responses"];
    let described = match &responses[status.as_str()] {
        Value::Null if COMMON_ERRORS.contains(&status.as_u16()) => &responses["default"],
        described => described,
    };
    let content =
        described["content"].as_object().unwrap_or_else(|| panic!("{at}: {status} is not described"));
    if let Some(json) = content.get("application/json") {
        assert_eq!(violations(document, &json["schema"], answer, &at), [""; 0]);
    }
    if !status.is_success() {
        let codes = described["description"].as_str().unwrap();
        let is_named = codes.contains(&format!("`{}`", answer["code"].as_str().unwrap_or_default()));
        let is_common = COMMON_ERRORS.contains(&status.as_u16());
        return assert!(is_named || is_common, "{at}: {answer} is not described");
    }
    let names = |place: &str| {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let of_place = parameters.filter(move |one| one["in"] == place).map(|one| one["name"].clone());
        of_place.collect::<Vec<_>>()
    };
    for parameter in query.split('&').filter(|one| !one.is_empty()) {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
        assert!(names("query").contains(&json!(name)), "{at}: the parameter {name} is not described");
    }
    match (&operation["requestBody"], body) {
        (Value::Null, Value::Null) => {}
        (Value::Null, _) => panic!("{at}: a body is not described"),
        (described, Value::Null) => assert_eq!(described["required"], false, "{at}: the body is required"),
        (described, _) => {
            let schema = &described["content"]["application/json"]["schema"];
            assert_eq!(violations(document, schema, body, &at), [""; 0]);
        }
    }
}
