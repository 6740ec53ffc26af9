//! Text output of the table: the current values, an example file, the documentation.

use super::upstreams::setting_name;
use super::{LoadedConfig, MachineSizes, SECTIONS, SETTINGS, Setting, UPSTREAM_SETTINGS};
use mlgw_api::{SettingInfo, SettingList};
use mlgw_common::ByteSize;
use std::fmt::Write as _;

/// Documentation of the sections of upstreams.
const UPSTREAM_DOC: &str =
    "An upstream object store: buckets can be bound to it, and segments spilled to it. One section for each.";

/// Width of a line of prose.
const COLUMNS: usize = 110;

/// Wraps `text` to lines of at most [`COLUMNS`], each with `start` before it. A longer word has its own line.
fn wrap(start: &str, text: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width <= COLUMNS {
            out.push(' ');
            column += 1;
        } else {
            out.push_str(if column > 0 { "\n" } else { "" });
            out.push_str(start);
            column = start.chars().count();
        }
        out.push_str(word);
        column += width;
    }
    out
}

/// Returns all values with their origins, aligned; `auto` values with their derived values on `machine`.
#[must_use]
pub fn show(loaded: &LoadedConfig, machine: &MachineSizes) -> String {
    let rows: Vec<_> = loaded
        .values()
        .map(|(setting, value, origin)| (format!("{} = {value}", setting.key), setting.key, origin))
        .collect();
    let width = rows.iter().map(|(text, ..)| text.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (text, key, origin) in rows {
        let derived = loaded.derived(key, machine);
        let derived = derived.map(|bytes| format!(" ({} here)", ByteSize(bytes))).unwrap_or_default();
        let _ = writeln!(out, "{text:width$}  # {origin}{derived}");
    }
    for (key, value, origin) in loaded.upstream_values() {
        let text = format!("{key} = {value}");
        let _ = writeln!(out, "{text:width$}  # {origin}");
    }
    out
}

/// Returns all settings of `loaded` on `machine`, for the admin API.
#[must_use]
pub fn list_settings(loaded: &LoadedConfig, machine: &MachineSizes) -> SettingList {
    let settings = loaded.values().map(|(setting, value, origin)| SettingInfo {
        key: setting.key.to_owned(),
        value,
        derived: loaded.derived(setting.key, machine),
        origin: origin.to_string(),
        live: setting.live,
    });
    SettingList { settings: settings.collect() }
}

/// Returns a commented TOML file with every setting at its default.
#[must_use]
pub fn example() -> String {
    let mut out = String::from(
        "# Configuration of mlgw. Every setting is listed with its default; remove the `#` before one to\n\
         # change it. Precedence, lowest first: built-in, this file, MLGW_SECTION__KEY variables, flags.\n\
         # `mlgw config check FILE` checks it, `mlgw config show` prints the effective values.\n",
    );
    let settings_of =
        |section: Option<&'static str>| SETTINGS.iter().filter(move |setting| setting.section() == section);
    for setting in settings_of(None) {
        example_setting(&mut out, setting);
    }
    for (section, doc) in SECTIONS {
        let _ = write!(out, "\n{}\n[{section}]\n", wrap("# ", doc));
        for setting in settings_of(Some(section)) {
            example_setting(&mut out, setting);
        }
    }
    let _ = write!(out, "\n{}\n#[upstream.NAME]\n", wrap("# ", UPSTREAM_DOC));
    for setting in UPSTREAM_SETTINGS {
        let doc = wrap("# ", setting.doc);
        let _ = write!(out, "\n{doc}\n#{} = {}\n", setting_name(setting), default_of(setting));
    }
    out
}

fn example_setting(out: &mut String, setting: &Setting) {
    let note = if setting.live { " Applied on SIGHUP." } else { "" };
    let doc = wrap("# ", &format!("{}{note}", setting.doc));
    let _ = write!(out, "\n{doc}\n# {} = {}\n", setting.name(), default_of(setting));
}

fn default_of(setting: &Setting) -> String {
    (setting.check)(setting.default).unwrap_or_else(|_| setting.default.to_owned())
}

/// Returns the text of docs/CONFIGURATION.md.
#[must_use]
pub fn documentation() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         Generated from the table of settings in `gateway/config/src/table.rs`; a test compares both.\n\n\
         Settings come from four layers. A later layer overrides the earlier ones:\n\n\
         1. built-in defaults,\n\
         2. the TOML file of `--config` (or `MLGW_CONFIG`),\n\
         3. `MLGW_SECTION__KEY` environment variables,\n\
         4. command line flags.\n\n\
         Unknown keys, unknown variables and invalid values are errors. The error names the place,\n\
         the reason and the nearest valid name. Three commands work with the configuration:\n\n\
         - `mlgw config check FILE` validates a file without starting a server.\n\
         - `mlgw config show` prints every value with its origin.\n\
         - `mlgw config example` prints a commented file.\n\n\
         Sizes are written as `64MiB`, `10GB` or `65536`, durations as `500ms`, `30s` or `5m`. An empty\n\
         text unsets a setting. `auto` values are derived from the machine at start. SIGHUP applies\n\
         changes of settings marked *live*; the others need a restart.\n\n\
         Some environment variables are not settings. `MLGW_ROOT_ACCESS_KEY_ID` and\n\
         `MLGW_ROOT_SECRET_ACCESS_KEY` are the root credentials; without them the first start generates\n\
         credentials. `MLGW_ADMIN_ENDPOINT` is the address of the admin API for commands.\n\
         `MLGW_CLUSTER_TOKEN` is the token of `mlgw cluster join`.\n",
    );
    out.push_str("\n## Top-level settings\n\n");
    documentation_table(&mut out, None);
    for (section, doc) in SECTIONS {
        let _ = write!(out, "\n## [{section}]\n\n{}\n\n", wrap("", doc));
        documentation_table(&mut out, Some(section));
    }
    let names = "`NAME` is 1 to 63 lower-case letters, digits and `-`. Environment variables have it in \
                 capitals with `_` for `-`: `MLGW_UPSTREAM__MY_LAKE__BUCKET`.";
    let doc = wrap("", &format!("{UPSTREAM_DOC} {names}"));
    let _ = write!(out, "\n## [upstream.NAME]\n\n{doc}\n\n");
    documentation_rows(&mut out, UPSTREAM_SETTINGS.iter());
    out
}

fn documentation_table(out: &mut String, section: Option<&str>) {
    documentation_rows(out, SETTINGS.iter().filter(|setting| setting.section() == section));
}

fn documentation_rows(out: &mut String, settings: impl Iterator<Item = &'static Setting>) {
    out.push_str("| setting | default | value | purpose |\n| --- | --- | --- | --- |\n");
    for setting in settings {
        let live = if setting.live { " *live*" } else { "" };
        let _ = writeln!(
            out,
            "| `{}`<br>`{}` | `{}` | {} | {}{live} |",
            setting.key,
            setting.variable(),
            default_of(setting),
            setting.expects,
            setting.doc.trim(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, wrap};

    #[test]
    fn prose_is_wrapped_at_words() {
        let long = "x".repeat(COLUMNS);
        assert_eq!(wrap("# ", " One  two."), "# One two.");
        assert_eq!(wrap("# ", &format!("a {long} b")), format!("# a\n# {long}\n# b"));
        let words = "word ".repeat(100);
        let text = wrap("# ", &words);
        assert_eq!(text.replace("# ", "").replace('\n', " "), words.trim_end());
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(widths, [106, 106, 106, 106, 81]);
        assert_eq!(
            wrap("", &format!("{} x", "y".repeat(COLUMNS - 2))),
            format!("{} x", "y".repeat(COLUMNS - 2))
        );
    }
}
