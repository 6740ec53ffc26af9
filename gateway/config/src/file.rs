//! The TOML layer: values with their line numbers.

use super::error::unknown_setting;
use super::upstreams::UpstreamSections;
use super::{ConfigFinding, SECTIONS, SETTINGS, SettingOrigin, SettingValue};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Maximum size of a file in bytes, more than a hundred times the size of the example.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Adds the values in the file at `path` to `given`, and its errors to `findings`.
pub(super) fn read(
    path: &Path,
    given: &mut Vec<SettingValue>,
    upstreams: &mut UpstreamSections,
    findings: &mut Vec<ConfigFinding>,
) {
    match text_of(path) {
        Ok(text) => TomlConfigReader { path, text: &text, given, upstreams, findings }.read(),
        Err(reason) => {
            findings.push(ConfigFinding { origin: SettingOrigin::File(path.to_owned(), 1), reason })
        }
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let length = std::fs::metadata(path).map_err(|e| format!("cannot be read: {e}"))?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("has {length} bytes; a configuration has at most {FILE_BYTES_MAX}"));
    }
    std::fs::read_to_string(path).map_err(|e| format!("cannot be read: {e}"))
}

struct TomlConfigReader<'a> {
    path: &'a Path,
    text: &'a str,
    given: &'a mut Vec<SettingValue>,
    upstreams: &'a mut UpstreamSections,
    findings: &'a mut Vec<ConfigFinding>,
}

impl TomlConfigReader<'_> {
    fn read(&mut self) {
        match DeTable::parse(self.text) {
            Ok(table) => self.table(None, table.get_ref()),
            Err(error) => {
                let reason = format!("invalid TOML: {}", error.message().trim());
                self.finding(error.span().unwrap_or(0..0), reason);
            }
        }
    }

    fn table(&mut self, section: Option<&str>, table: &DeTable<'_>) {
        for (name, value) in table {
            if let (None, "upstream", DeValue::Table(inner)) =
                (section, name.get_ref().as_ref(), value.get_ref())
            {
                self.all_upstreams(inner);
                continue;
            }
            let key = match section {
                Some(section) => format!("{section}.{}", name.get_ref()),
                None => name.get_ref().to_string(),
            };
            let is_section = section.is_none() && SECTIONS.iter().any(|(section, _)| *section == key);
            let index = SETTINGS.iter().position(|setting| setting.key == key);
            match (value.get_ref(), index) {
                (DeValue::Table(inner), _) if is_section => self.table(Some(&key), inner),
                (_, None) if is_section => {
                    self.finding(name.span(), format!("'{key}' is a section: use [{key}]"));
                }
                (DeValue::Table(inner), None) => self.unknown_section(&key, name.span(), inner),
                (_, None) => self.finding(name.span(), unknown_setting(&key)),
                (_, Some(index)) => self.value(index, value),
            }
        }
    }

    /// Reads the sections `[upstream.NAME]`.
    fn all_upstreams(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            match value.get_ref() {
                DeValue::Table(inner) => self.upstream(name.get_ref(), inner),
                _ => {
                    let name = name.get_ref();
                    self.finding(
                        value.span(),
                        format!("'upstream.{name}' is a section: use [upstream.{name}]"),
                    );
                }
            }
        }
    }

    fn upstream(&mut self, upstream: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let origin = self.origin(value.span());
            let name = name.get_ref();
            let wrong = match plain_text(value.get_ref()) {
                Some(text) => self.upstreams.add(upstream, name, text, origin),
                None => {
                    let reason =
                        format!("wrong type for 'upstream.{upstream}.{name}': expected a plain value");
                    Some(ConfigFinding { origin, reason })
                }
            };
            self.findings.extend(wrong);
        }
    }

    /// Reports the settings of an unknown section: their names suggest the intended section best.
    fn unknown_section(&mut self, section: &str, at: Range<usize>, table: &DeTable<'_>) {
        if table.is_empty() {
            self.finding(at, unknown_setting(section));
        }
        for (name, _) in table {
            self.finding(name.span(), unknown_setting(&format!("{section}.{}", name.get_ref())));
        }
    }

    fn value(&mut self, index: usize, value: &Spanned<DeValue<'_>>) {
        let origin = self.origin(value.span());
        match plain_text(value.get_ref()) {
            Some(text) => self.given.push(SettingValue { index, text, origin }),
            None => {
                let setting = &SETTINGS[index];
                let reason = format!("wrong type for '{}': expected {}", setting.key, setting.expects);
                self.findings.push(ConfigFinding { origin, reason });
            }
        }
    }

    fn finding(&mut self, at: Range<usize>, reason: String) {
        let origin = self.origin(at);
        self.findings.push(ConfigFinding { origin, reason });
    }

    fn origin(&self, at: Range<usize>) -> SettingOrigin {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        SettingOrigin::File(self.path.to_owned(), 1 + before.matches('\n').count())
    }
}

/// Returns the text form of a TOML value; `None` for tables, dates, floats and nested lists.
fn plain_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Array(items) => {
            let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
                DeValue::String(text) if !text.contains(',') => Some(text.to_string()),
                _ => None,
            };
            Some(items.iter().map(text).collect::<Option<Vec<_>>>()?.join(","))
        }
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}
