//! Generates the OpenAPI document from the table of routes and from the types of requests and responses.

use crate::routes::{api_operations, probe_operations};
use mlgw_api::{AdminErrorBody, DatasetJobKind};
use mlgw_common::Tier;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Function that adds the schema of a type to a document and returns a reference to it.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Description of a route.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) handler: &'static str,
    /// Lines of the summary and, after an empty line, of the description.
    pub(crate) doc: &'static [&'static str],
    /// Type of the query parameters.
    pub(crate) query: Option<SchemaOf>,
    /// Type of the body, if it is required.
    pub(crate) body: Option<SchemaOf>,
    /// Type of the body, if it may be absent.
    pub(crate) optional_body: Option<SchemaOf>,
    /// Status, type and description of the response to a successful request.
    pub(crate) status: u16,
    pub(crate) answer: SchemaOf,
    pub(crate) answer_doc: &'static str,
    /// Status and code of the errors that are specific to the route.
    pub(crate) errors: &'static [(u16, &'static str)],
}

/// Returns the function that describes a type.
pub(crate) fn schema_of<T: JsonSchema>() -> SchemaOf {
    |generator| generator.subschema_for::<T>()
}

/// Returns the parameter with a name in paths: its type and description.
fn path_parameter(name: &str) -> (SchemaOf, &'static str) {
    match name {
        "access_key" => (schema_of::<String>(), "Access key id"),
        "bucket" => (schema_of::<String>(), "Name of the bucket"),
        "dataset" => (schema_of::<String>(), "Name of the dataset"),
        "job" => (schema_of::<u64>(), "Number of the job"),
        "kind" => (schema_of::<DatasetJobKind>(), "Kind of the job"),
        "number" => (schema_of::<u64>(), "Number of the file"),
        "plan" => {
            let plan = "Id of the plan: 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit";
            (schema_of::<String>(), plan)
        }
        "node" => (schema_of::<u64>(), "Id of the node"),
        "tier" => (schema_of::<Tier>(), "Name of the tier"),
        "trace" => (schema_of::<String>(), "Name of the trace"),
        "upstream" => (schema_of::<String>(), "Name of the upstream in the configuration"),
        "workload" => {
            let workload =
                "Id of the workload, or the name that it sends; of several, the most recently active one";
            (schema_of::<String>(), workload)
        }
        unknown => panic!("the parameter {unknown} has no description"),
    }
}

/// Generators of schemas. Requests and responses of one type can differ: in a request, fields with defaults
/// may be absent.
struct SchemaGenerators {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl SchemaGenerators {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
        }
    }

    /// Returns all named schemas. If a type is both a request and a part of responses, it is described as a
    /// request, which responses satisfy as well.
    fn into_schemas(mut self) -> BTreeMap<String, Value> {
        let mut schemas: BTreeMap<String, Value> = self.answers.take_definitions(false).into_iter().collect();
        schemas.extend(self.requests.take_definitions(false));
        for schema in schemas.values_mut() {
            clean(schema);
        }
        schemas
    }
}

/// Rewrites a schema: the lines of a description become one, an enumeration is a list of words, and objects
/// have no other properties.
fn clean(schema: &mut Value) {
    let schema: &mut Schema = schema.try_into().unwrap();
    let mut transform = RecursiveTransform(|schema: &mut Schema| {
        if let Some(Value::String(text)) = schema.get_mut("description") {
            *text = joined_lines(text);
        }
        merge_words(schema);
        if schema.get("format").is_some_and(|format| format == "uint") {
            // The size of a pointer is no format of OpenAPI.
            schema.insert("format".to_owned(), json!("uint64"));
        }
        let is_closed = schema.get("properties").is_some() && schema.get("additionalProperties").is_none();
        if is_closed {
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
    });
    transform.transform(schema);
}

/// Joins the lines of each paragraph.
fn joined_lines(text: &str) -> String {
    let paragraphs: Vec<_> = text.split("\n\n").map(|lines| lines.replace('\n', " ")).collect();
    paragraphs.join("\n\n")
}

/// Replaces the alternatives of an enumeration, each a constant with a description, by a list of words. The
/// descriptions are appended to that of the enumeration.
fn merge_words(schema: &mut Schema) {
    let Some(alternatives) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let words: Option<Vec<_>> = alternatives.iter().map(|one| one.get("const").cloned()).collect();
    let Some(words) = words else { return };
    let mut text = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for one in alternatives {
        let (word, meaning) = (&one["const"], one["description"].as_str().unwrap_or_default());
        text += &format!("\n- `{}`: {}", word.as_str().unwrap_or_default(), meaning.replace('\n', " "));
    }
    let text = text.replacen("\n-", "\n\n-", 1);
    schema.remove("oneOf");
    schema.insert("type".to_owned(), json!("string"));
    schema.insert("enum".to_owned(), json!(words));
    schema.insert("description".to_owned(), json!(text));
}

/// Returns the schema of a query parameter: an absent parameter is never null.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(alternatives) = schema["anyOf"].as_array() {
        let is_value = |one: &&Value| one["type"] != "null";
        return alternatives.iter().find(is_value).unwrap().clone();
    }
    if let Some(types) = schema["type"].as_array() {
        schema["type"] = types.iter().find(|one| **one != "null").unwrap().clone();
    }
    schema
}

/// Returns a schema and its media type.
fn content(schema: Schema) -> Value {
    let mut schema = Value::from(schema);
    let media_type = match schema["contentMediaType"].as_str() {
        None => "application/json".to_owned(),
        Some("application/octet-stream") => {
            schema = json!({"type": "string", "format": "binary"});
            "application/octet-stream".to_owned()
        }
        Some(text) => {
            let media_type = text.to_owned();
            schema = json!({"type": "string"});
            media_type
        }
    };
    clean(&mut schema);
    json!({media_type: {"schema": schema}})
}

fn path_parameters(path: &str, generators: &mut SchemaGenerators) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name| {
        let (schema, description) = path_parameter(name);
        let schema = schema(&mut generators.requests);
        json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
    };
    names.map(parameter).collect()
}

fn query_parameters(query: SchemaOf, generators: &mut SchemaGenerators) -> Vec<Value> {
    let reference = query(&mut generators.requests);
    let name = reference.get("$ref").and_then(Value::as_str).unwrap();
    let name = name.rsplit('/').next().unwrap();
    // The type of the parameters is no part of the document.
    let mut query = generators.requests.definitions_mut().remove(name).unwrap();
    clean(&mut query);
    let required: Vec<&str> =
        query["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let parameter = |(name, schema): (&String, &Value)| {
        let description = schema["description"].clone();
        let mut schema = without_null(schema);
        schema.as_object_mut().unwrap().remove("description");
        if schema["default"].is_null() {
            schema.as_object_mut().unwrap().remove("default");
        }
        let is_required = required.contains(&name.as_str());
        json!({
            "name": name, "in": "query", "required": is_required, "description": description,
            "schema": schema,
        })
    };
    query["properties"].as_object().unwrap().iter().map(parameter).collect()
}

fn responses(operation: &Operation, is_probe: bool, generators: &mut SchemaGenerators) -> Value {
    let answer = content((operation.answer)(&mut generators.answers));
    let error = match is_probe {
        true => answer.clone(),
        false => content(generators.answers.subschema_for::<AdminErrorBody>()),
    };
    let mut responses = Map::new();
    let described = json!({"description": operation.answer_doc, "content": answer});
    responses.insert(operation.status.to_string(), described);
    let mut codes: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for (status, code) in operation.errors {
        let code = if is_probe { (*code).to_owned() } else { format!("`{code}`") };
        codes.entry(*status).or_default().push(code);
    }
    for (status, codes) in codes {
        let description = codes.join(" or ");
        responses.insert(status.to_string(), json!({"description": description, "content": error}));
    }
    if !is_probe {
        let description = "Error, with a code and a message";
        responses.insert("default".to_owned(), json!({"description": description, "content": error}));
    }
    responses.into()
}

fn described(operation: &Operation, is_probe: bool, generators: &mut SchemaGenerators) -> Value {
    let doc: Vec<&str> = operation.doc.iter().map(|line| line.trim()).collect();
    let doc = joined_lines(&doc.join("\n"));
    let (summary, description) = doc.split_once("\n\n").unwrap_or((&doc, ""));
    let mut described = json!({
        "operationId": operation.handler.replace("::", "_"),
        "summary": summary.strip_suffix('.').unwrap_or(summary),
        "responses": responses(operation, is_probe, generators),
    });
    if !description.is_empty() {
        described["description"] = json!(description);
    }
    let mut parameters = path_parameters(operation.path, generators);
    parameters.extend(operation.query.into_iter().flat_map(|query| query_parameters(query, generators)));
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(schema) = operation.body.or(operation.optional_body) {
        let content = content(schema(&mut generators.requests));
        described["requestBody"] = json!({"required": operation.body.is_some(), "content": content});
    }
    if is_probe {
        described["security"] = json!([]);
    }
    described
}

/// Returns the OpenAPI document.
pub(crate) fn generate() -> Value {
    let mut generators = SchemaGenerators::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (operations, is_probe) in [(probe_operations(), true), (api_operations(), false)] {
        for operation in operations {
            let described = described(&operation, is_probe, &mut generators);
            paths.entry(operation.path).or_default().insert(operation.method.to_owned(), described);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "mlgw admin API",
            "version": "1",
            "description": "Requests under /v1 are signed with SigV4 for the service mlgw (any region), by a \
                            key with the role admin and without globs; x-amz-content-sha256 is the SHA-256 \
                            of the body. Probes and metrics need no signature. Nodes of a cluster other \
                            than the duty node have /v1/status, /v1/decisions, /v1/config, \
                            /v1/openapi.json, /v1/disks/replace, /v1/store/backup, /v1/tiers with their \
                            own tiers, and /v1/cluster with everything below it. They forward other \
                            requests under /v1 to the duty node, but refuse others under /v1/tiers and \
                            /v1/store, such as drains of tiers, with 421 `OtherNode`. So do gateways with \
                            /v1/tiers.",
        },
        "servers": [{"url": "http://127.0.0.1:9001"}],
        "security": [{"sigv4": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "AWS4-HMAC-SHA256, service mlgw",
                },
            },
            "schemas": generators.into_schemas(),
        },
    })
}
