//! Validates policy files and plugins, each one on top of the built-in layers and the plugins given with
//! it.

use mlgw_api::{DiagnosticInfo, PolicyFileKind, ValidationResult};
use mlgw_formats::schema::PolicyFile as Text;
use mlgw_policies::language::{
    BuiltInLayers, Diagnostic, Diagnostics, NoFacts, ParsedPolicy, PolicyFileSet, SectionOverrides,
    is_framework,
};

/// Validates `files`, policies or plugins, which may use templates from `plugins`; then the plugins
/// themselves. Returns one result per file.
///
/// # Errors
/// If the built-in layers are invalid, which a test rules out.
pub fn validate(files: &[Text], plugins: &[Text]) -> Result<Vec<ValidationResult>, Diagnostics> {
    let built_in = BuiltInLayers::load()?;
    let read = |text: &Text| if is_framework(&text.text) { read_plugin(text) } else { read_policy(text) };
    let of_files: Vec<_> = files.iter().map(read).collect();
    let of_plugins: Vec<_> = plugins.iter().map(read_plugin).collect();
    let beneath = AvailablePlugins::of(&of_plugins, None, &built_in);
    let mut validated = Vec::new();
    for (index, text) in files.iter().enumerate() {
        let mut read = of_files[index].clone();
        let others = of_files.iter().enumerate().filter(|(other, _)| *other != index);
        others.for_each(|(_, other)| read.add_definitions_of(other));
        validated.push(validate_file(text, read, &beneath, &built_in));
    }
    for (index, text) in plugins.iter().enumerate() {
        let beneath = AvailablePlugins::of(&of_plugins, Some(index), &built_in);
        validated.push(validate_file(text, of_plugins[index].clone(), &beneath, &built_in));
    }
    Ok(validated)
}

fn read_policy(Text { name, text }: &Text) -> PolicyFileSet {
    let mut texts = PolicyFileSet::default();
    texts.submit_policy(name, text);
    texts
}

fn read_plugin(Text { name, text }: &Text) -> PolicyFileSet {
    let mut texts = PolicyFileSet::default();
    texts.submit_framework(name, text);
    texts
}

/// Plugins that a file may use, and the diagnostics of these plugins.
struct AvailablePlugins {
    plugins: PolicyFileSet,
    diagnostics: Vec<Diagnostic>,
}

impl AvailablePlugins {
    /// Collects all of `plugins` except the one at the index `but`.
    fn of(plugins: &[PolicyFileSet], but: Option<usize>, built_in: &BuiltInLayers) -> Self {
        let mut all = PolicyFileSet::default();
        for (_, one) in plugins.iter().enumerate().filter(|(index, _)| Some(*index) != but) {
            all.extend(one);
        }
        let diagnostics = all.errors(None, &NoFacts, built_in).0;
        Self { plugins: all, diagnostics }
    }
}

/// Validates a file that was `read` alone. Diagnostics of the plugins that it may use are excluded.
fn validate_file(
    text: &Text,
    mut read: PolicyFileSet,
    available: &AvailablePlugins,
    built_in: &BuiltInLayers,
) -> ValidationResult {
    let counted = match (read.policies(), read.frameworks()) {
        ([policy], _) => counted(policy),
        (_, [framework]) => ValidationResult {
            kind: PolicyFileKind::Framework,
            rules: framework.rules.len() + framework.instances.len(),
            templates: framework.templates.len(),
            ..ValidationResult::default()
        },
        _ => ValidationResult {
            kind: if is_framework(&text.text) { PolicyFileKind::Framework } else { PolicyFileKind::Policy },
            ..ValidationResult::default()
        },
    };
    read.extend(&available.plugins);
    let mut wrong = read.errors(None, &NoFacts, built_in).0;
    wrong.retain(|one| !available.diagnostics.contains(one));
    ValidationResult {
        file: text.name.clone(),
        valid: wrong.is_empty(),
        diagnostics: wrong.iter().map(diagnostic_info).collect(),
        ..counted
    }
}

/// Counts the parts of a policy in all environments and profiles; an instance of a template counts as a
/// rule.
fn counted(policy: &ParsedPolicy) -> ValidationResult {
    let environments = policy.environments.iter().map(|(_, overrides)| overrides);
    let profiles = policy.hardware_profiles.iter().map(|profile| &profile.overrides);
    let places: Vec<&SectionOverrides> =
        std::iter::once(&policy.base).chain(environments).chain(profiles).collect();
    let of_frameworks: usize = policy.frameworks.iter().map(|section| section.rules.len()).sum();
    ValidationResult {
        kind: PolicyFileKind::Policy,
        rules: places.iter().map(|one| one.rules.len()).sum::<usize>()
            + of_frameworks
            + policy.instances.len(),
        templates: policy.templates.len(),
        settings: places.iter().map(|one| one.settings.len()).sum(),
        ..ValidationResult::default()
    }
}

fn diagnostic_info(one: &Diagnostic) -> DiagnosticInfo {
    DiagnosticInfo {
        file: one.file.to_string(),
        line: one.line,
        column: one.column,
        path: one.path.clone(),
        found: one.found.clone(),
        expected: one.expected.clone(),
        nearest: one.nearest.clone(),
        message: one.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Text, validate};

    fn text(name: &str, text: &str) -> Text {
        Text { name: name.to_owned(), text: text.to_owned() }
    }

    const PLUGIN: &str = "
version: 1
framework: mine
detect: {keys: [{pattern: '*.mine', confidence: 0.9}]}
templates:
- id: keep
  rules: [{id: it, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.mine'}], \
        actions: [{type: pin}]}]
";
    const POLICY: &str = "version: 1\nuse:\n- {id: kept, template: keep}\n";

    #[test]
    fn templates_of_given_plugins_are_available() {
        let policy = [text("p.yaml", POLICY)];
        let alone = validate(&policy, &[]).unwrap();
        assert!(alone[0].diagnostics[0].message.contains("keep"), "{alone:?}");
        let both = validate(&policy, &[text("mine.yaml", PLUGIN)]).unwrap();
        let results: Vec<_> =
            both.iter().map(|one| (&*one.file, one.kind.name(), one.valid, one.rules)).collect();
        assert_eq!(results, [("p.yaml", "policy", true, 1), ("mine.yaml", "framework", true, 0)]);
    }

    #[test]
    fn a_faulty_plugin_is_reported_for_the_plugin_alone() {
        let wrong = PLUGIN.replace("confidence", "confidense");
        let both = validate(&[text("p.yaml", POLICY)], &[text("mine.yaml", &wrong)]).unwrap();
        assert_eq!((both[0].valid, both[1].valid), (true, false), "{both:?}");
        let nearest: Vec<_> = both[1].diagnostics.iter().map(|one| one.nearest.as_deref()).collect();
        assert_eq!(nearest, [Some("confidence")], "{both:?}");
    }

    #[test]
    fn a_faulty_plugin_does_not_hide_faults_of_the_policy() {
        let wrong = PLUGIN.replace("confidence", "confidense");
        let policy =
            format!("{POLICY}- {{id: other, template: kep}}\nrules: [{{id: no-such, enabled: false}}]\n");
        let results = validate(&[text("p.yaml", &policy)], &[text("mine.yaml", &wrong)]).unwrap();
        let of_policy: Vec<_> = results[0].diagnostics.iter().map(|one| (&*one.file, &*one.path)).collect();
        assert_eq!(of_policy, [("p.yaml", "use[1].template"), ("p.yaml", "rules[0].id")], "{results:?}");
        assert_eq!(results[1].diagnostics.len(), 1, "{results:?}");
        // A plugin that cannot be parsed may define anything, so that unknown ids are not reported.
        let results = validate(&[text("p.yaml", &policy)], &[text("mine.yaml", "version: [")]).unwrap();
        assert_eq!((results[0].valid, results[1].valid), (true, false), "{results:?}");
    }

    #[test]
    fn only_existing_rules_can_be_disabled() {
        let plugin = PLUGIN.replace("templates:", "use: [{id: own, template: keep}]\ntemplates:");
        let of = |id: &str| format!("version: 1\nrules: [{{id: {id}, enabled: false}}]\n");
        let valid =
            |text_of: &str, plugins: &[_]| validate(&[text("p.yaml", text_of)], plugins).unwrap()[0].valid;
        assert!(valid(&of("idle-copies-out"), &[]) && valid(&of("mosaicml-index"), &[]));
        assert!(!valid(&of("own.it"), &[]) && !valid(&of("own.itt"), &[text("mine.yaml", &plugin)]));
        assert!(valid(&of("own.it"), &[text("mine.yaml", &plugin)]));
        // A file may disable rules of another file that is given with it.
        let both = validate(&[text("a.yaml", &of("kept.it")), text("b.yaml", POLICY)], &[]).unwrap();
        assert!(both[0].valid && !both[1].valid, "{both:?}");
    }

    #[test]
    fn a_policy_is_not_accepted_as_a_plugin() {
        let results = validate(&[], &[text("p.yaml", POLICY)]).unwrap();
        assert!(!results[0].valid, "{results:?}");
    }
}
