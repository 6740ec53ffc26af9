//! Whether files are right, each for itself, above what comes with the server and the plugins that are given with them.

use mlgw_metadata::schema::PolicyFile as Text;
use mlgw_policies::language::{
    BuiltIn, Diagnostic, Diagnostics, Framework, Layers, NoFacts, Overrides, PolicyFile, Program,
    is_framework,
};
use serde::Serialize;

/// What is said of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Validated {
    /// Its name, as it was given.
    pub file: String,
    /// `policy` or `framework`.
    pub kind: &'static str,
    /// Whether nothing is wrong with it.
    pub valid: bool,
    /// Its rules, wherever they hold; an instance of a template counts as one.
    pub rules: usize,
    /// Its templates.
    pub templates: usize,
    /// Its settings.
    pub settings: usize,
    /// What is wrong with it, in the order of the text.
    pub diagnostics: Vec<DiagnosticInfo>,
}

/// A diagnostic, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiagnosticInfo {
    /// The file that it is about.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The character within the line, from 1.
    pub column: u32,
    /// Where it stands in the document, as `rules[2].actions[0].type`.
    pub path: String,
    /// What is wrong with what stands there.
    pub found: String,
    /// What may stand there.
    pub expected: String,
    /// The right word that is nearest to it.
    pub nearest: Option<String>,
    /// All of it as a sentence.
    pub message: String,
}

/// What a file holds.
enum Held {
    Policy(Box<PolicyFile>),
    Framework(Box<Framework>),
}

/// What is said of files, policies or plugins, which may use what `plugins` give; and of those behind them.
///
/// # Errors
/// Never, a test of the built-in layers says.
pub fn validate(files: &[Text], plugins: &[Text]) -> Result<Vec<Validated>, Diagnostics> {
    let built_in = BuiltIn::load()?;
    let parsed: Vec<_> = plugins.iter().map(|text| Framework::parse(&text.name, &text.text)).collect();
    let right: Vec<_> = parsed.iter().flatten().cloned().collect();
    let of_plugins = plugins.iter().zip(parsed).map(|(text, parsed)| {
        let held = parsed.map(|one| Held::Framework(Box::new(one)));
        told(text, held, Some(&right), &built_in)
    });
    let of_plugins: Vec<_> = of_plugins.collect();
    // What a wrong plugin would give is not missed.
    let beneath = of_plugins.iter().all(|one| one.valid).then_some(&*right);
    let of_files = files.iter().map(|text| told(text, Held::parse(text), beneath, &built_in));
    Ok(of_files.chain(of_plugins).collect())
}

fn told(
    text: &Text,
    held: Result<Held, Diagnostics>,
    beneath: Option<&[Framework]>,
    built_in: &BuiltIn,
) -> Validated {
    let wrong = match (&held, beneath) {
        (Ok(held), Some(beneath)) => {
            held.compile(beneath, built_in).err().map_or_else(Vec::new, |wrong| wrong.0)
        }
        (Ok(_), None) => Vec::new(),
        (Err(wrong), _) => wrong.0.clone(),
    };
    let counted = match &held {
        Ok(Held::Policy(policy)) => counted(policy),
        Ok(Held::Framework(framework)) => Validated {
            kind: "framework",
            rules: framework.rules.len() + framework.uses.len(),
            templates: framework.templates.len(),
            ..Validated::default()
        },
        Err(_) => Validated {
            kind: if is_framework(&text.text) { "framework" } else { "policy" },
            ..Validated::default()
        },
    };
    Validated {
        file: text.name.clone(),
        valid: wrong.is_empty(),
        diagnostics: wrong.iter().map(DiagnosticInfo::of).collect(),
        ..counted
    }
}

impl Held {
    fn parse(Text { name, text }: &Text) -> Result<Self, Diagnostics> {
        if is_framework(text) {
            return Framework::parse(name, text).map(|one| Self::Framework(Box::new(one)));
        }
        PolicyFile::parse(name, text).map(|one| Self::Policy(Box::new(one)))
    }

    /// What is wrong with it where it is used.
    fn compile(&self, beneath: &[Framework], built_in: &BuiltIn) -> Result<Program, Diagnostics> {
        let (custom, own) = match self {
            Self::Policy(policy) => (std::slice::from_ref(&**policy), None),
            Self::Framework(framework) => (&[][..], Some(&**framework)),
        };
        let frameworks: Vec<_> = own.into_iter().chain(beneath).cloned().collect();
        let frameworks = &frameworks[..];
        Program::compile(&Layers { custom, frameworks, environment: None, machine: &NoFacts, built_in })
    }
}

/// What a policy holds, wherever it holds; an instance of a template counts as a rule.
fn counted(policy: &PolicyFile) -> Validated {
    let environments = policy.environments.iter().map(|(_, overrides)| overrides);
    let profiles = policy.hardware_profiles.iter().map(|profile| &profile.overrides);
    let places: Vec<&Overrides> =
        std::iter::once(&policy.everywhere).chain(environments).chain(profiles).collect();
    let of_frameworks: usize = policy.frameworks.iter().map(|section| section.rules.len()).sum();
    Validated {
        kind: "policy",
        rules: places.iter().map(|one| one.rules.len()).sum::<usize>() + of_frameworks + policy.uses.len(),
        templates: policy.templates.len(),
        settings: places.iter().map(|one| one.settings.len()).sum(),
        ..Validated::default()
    }
}

impl DiagnosticInfo {
    fn of(one: &Diagnostic) -> Self {
        Self {
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
  rules: [{id: it, conditions: [{type: file_pattern, property: name, operator: matches, value: '*.mine'}], actions: [{type: pin}]}]
";
    const POLICY: &str = "version: 1\nuse:\n- {id: kept, template: keep}\n";

    #[test]
    fn templates_of_plugins_are_there_when_those_are_given() {
        let policy = [text("p.yaml", POLICY)];
        let alone = validate(&policy, &[]).unwrap();
        assert!(alone[0].diagnostics[0].message.contains("keep"), "{alone:?}");
        let both = validate(&policy, &[text("mine.yaml", PLUGIN)]).unwrap();
        let said: Vec<_> = both.iter().map(|one| (&*one.file, one.kind, one.valid, one.rules)).collect();
        assert_eq!(said, [("p.yaml", "policy", true, 1), ("mine.yaml", "framework", true, 0)]);
    }

    #[test]
    fn of_a_wrong_plugin_only_the_plugin_is_told() {
        let wrong = PLUGIN.replace("confidence", "confidense");
        let both = validate(&[text("p.yaml", POLICY)], &[text("mine.yaml", &wrong)]).unwrap();
        assert_eq!((both[0].valid, both[1].valid), (true, false), "{both:?}");
        assert_eq!(both[1].diagnostics[1].nearest.as_deref(), Some("confidence"));
    }

    #[test]
    fn a_policy_is_no_plugin() {
        let said = validate(&[], &[text("p.yaml", POLICY)]).unwrap();
        assert!(!said[0].valid, "{said:?}");
    }
}
