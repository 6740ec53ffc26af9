//! Printed programs: as a policy file that compiles to the same program, with the source of each line, and as
//! JSON.

use super::program::{LayerSource, Program};
use super::rule::{Action, Condition, Match, Rule};
use super::value::{Value, json_number, parse_decimal};
use super::words::{Stance, Word};
use serde_json::{Map, Value as Json};
use std::fmt::Write;

/// Fields in the usual order of a policy file.
type JsonFields = Vec<(&'static str, Json)>;

impl Program {
    /// Returns the effective policy as YAML. The output of equal programs differs in comments at most.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut text = String::from("version: 1\nsettings:\n");
        for one in self.settings().all() {
            let from = one.source.as_ref().map_or("# default".to_owned(), comment);
            line(
                &mut text,
                2,
                &format!("{}: {}  {from}", self.setting_word(one), flow(&one.value.to_json())),
            );
        }
        for (index, name) in self.disabled_frameworks().iter().enumerate() {
            text.push_str(if index == 0 { "frameworks:\n" } else { "" });
            line(&mut text, 2, &format!("{}: {{enabled: false}}", scalar(name)));
        }
        text.push_str("rules:\n");
        for one in self.rules() {
            rule_text(&mut text, &one.rule, &one.source);
        }
        for (rule, source) in self.switched_off() {
            if rule.is_switch() {
                line(
                    &mut text,
                    2,
                    &format!("- {}  {}", flow(&object(switched_off_fields(rule))), comment(source)),
                );
            } else {
                rule_text(&mut text, rule, source);
            }
        }
        if self.rules().is_empty() && self.switched_off().is_empty() {
            text.truncate(text.len() - "rules:\n".len());
        }
        text
    }

    /// Returns the effective policy as JSON: `policy` is a policy file, `from` has the source of each setting
    /// and rule.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut settings = Map::new();
        let mut setting_sources = Map::new();
        for one in self.settings().all() {
            let word = self.setting_word(one);
            let from = one.source.as_ref().map_or(Json::Null, source_json);
            settings.insert(word.clone(), one.value.to_json());
            setting_sources.insert(word, from);
        }
        let rules = self.rules().iter().map(|one| rule_json(&one.rule));
        let rules: Vec<_> =
            rules.chain(self.switched_off().iter().map(|(rule, _)| switched_off_json(rule))).collect();
        let sources = self.rules().iter().map(|one| (one.rule.id.to_string(), source_json(&one.source)));
        let off = self.switched_off().iter().map(|(rule, source)| (rule.id.to_string(), source_json(source)));
        let ignored = self.disabled_frameworks().iter();
        let frameworks: Map<_, _> =
            ignored.map(|name| (name.to_string(), serde_json::json!({"enabled": false}))).collect();
        serde_json::json!({
            "policy": {"version": 1, "settings": settings, "frameworks": frameworks, "rules": rules},
            "from": {"settings": setting_sources, "rules": sources.chain(off).collect::<Map<_, _>>()},
        })
    }

    fn setting_word(&self, one: &super::program::EffectiveSetting) -> String {
        let word = one.setting.row().word;
        one.member.map_or_else(|| word.to_owned(), |member| format!("{word}.{member}"))
    }
}

fn comment(source: &LayerSource) -> String {
    format!("# from {source}")
}

fn source_json(source: &LayerSource) -> Json {
    serde_json::json!({"layer": source.layer.name(), "file": &*source.file, "line": source.line})
}

fn line(text: &mut String, indent: usize, what: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:indent$}{what}", "");
}

fn rule_text(text: &mut String, rule: &Rule, source: &LayerSource) {
    line(text, 2, &comment(source));
    for (index, (name, value)) in rule_fields(rule).into_iter().enumerate() {
        let dash = if index == 0 { "- " } else { "  " };
        line(text, 2, &format!("{dash}{name}: {}", flow(&value)));
    }
    line(text, 4, "conditions:");
    for condition in &rule.conditions {
        line(text, 6, &format!("- {}", flow_fields(&condition_fields(condition))));
    }
    line(text, 4, "actions:");
    for action in &rule.actions {
        line(text, 6, &format!("- {}", flow_fields(&action_fields(action, common_stance(rule)))));
    }
}

/// Returns a rule as in a policy file in JSON.
fn rule_json(rule: &Rule) -> Json {
    let conditions = rule.conditions.iter().map(|one| object(condition_fields(one)));
    let actions = rule.actions.iter().map(|one| object(action_fields(one, common_stance(rule))));
    let mut fields = rule_fields(rule);
    fields.push(("conditions", conditions.collect()));
    fields.push(("actions", actions.collect()));
    object(fields)
}

fn object(fields: JsonFields) -> Json {
    Json::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Returns a rule that is switched off: only the switch, or the whole rule if no other layer defines it.
fn switched_off_json(rule: &Rule) -> Json {
    if rule.is_switch() { object(switched_off_fields(rule)) } else { rule_json(rule) }
}

fn switched_off_fields(rule: &Rule) -> JsonFields {
    vec![("id", (&*rule.id).into()), ("enabled", false.into())]
}

/// Returns the stance of the actions if it is the same for all.
fn common_stance(rule: &Rule) -> Option<Stance> {
    let first = rule.actions.first()?.stance;
    rule.actions.iter().all(|one| one.stance == first).then_some(first).flatten()
}

/// Returns the fields of a rule other than its conditions and actions.
fn rule_fields(rule: &Rule) -> JsonFields {
    let mut fields: JsonFields = vec![("id", (&*rule.id).into())];
    let texts = [("name", &rule.name), ("description", &rule.description), ("framework", &rule.framework)];
    for (name, text) in texts {
        fields.extend(text.as_ref().map(|text| (name, (&**text).into())));
    }
    if !rule.enabled {
        fields.push(("enabled", false.into()));
    }
    fields.push(("priority", rule.priority.into()));
    fields.extend(common_stance(rule).map(|stance| ("stance", stance.name().into())));
    match rule.matching {
        Match::All => {}
        Match::Any => fields.push(("match", "any".into())),
        Match::Threshold(share) => {
            fields.push(("match", object(vec![("threshold", json_number(share))])));
        }
    }
    fields
}

fn condition_fields(condition: &Condition) -> JsonFields {
    let mut fields = vec![
        ("type", condition.condition_type.name().into()),
        ("property", condition.word().into()),
        ("operator", condition.operator.name().into()),
        ("value", condition.value.to_json()),
    ];
    if condition.weight < 1.0 {
        fields.push(("weight", json_number(condition.weight)));
    }
    fields
}

fn action_fields(action: &Action, common: Option<Stance>) -> JsonFields {
    let mut fields: JsonFields =
        vec![("type", action.kind.name().into()), ("target", action.target.to_string().into())];
    if common.is_none() {
        fields.extend(action.stance.map(|stance| ("stance", stance.name().into())));
    }
    if !action.parameters.is_empty() {
        let of = |(parameter, value): &(super::Parameter, Value)| (parameter.name(), value.to_json());
        fields.push(("parameters", object(action.parameters.iter().map(of).collect())));
    }
    fields
}

/// Formats JSON on one line, with quotes only where YAML needs them.
fn flow(json: &Json) -> String {
    match json {
        Json::String(text) => scalar(text),
        Json::Number(number) => number.as_f64().unwrap_or_default().to_string(),
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Json::Bool(_) | Json::Null => json.to_string(),
    }
}

fn flow_fields(fields: &JsonFields) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
    format!("{{{}}}", fields.join(", "))
}

/// Formats a text, without quotes if every YAML parser reads it as a text.
fn scalar(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./%+".contains(&b))
        && parse_decimal(text).is_none()
        && !["true", "false", "null"].iter().any(|word| text.eq_ignore_ascii_case(word));
    if plain { text.to_owned() } else { quoted(text) }
}

/// Formats a text in double quotes, on one line and with printable characters only.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            c if c.is_alphanumeric() => out.push(c),
            c => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}
