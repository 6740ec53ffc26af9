//! Files embedded in the server: the defaults, the framework plugins, and recipes as starting points.

use super::diagnostic::Diagnostics;
use super::file::ParsedPolicy;
use super::framework::Framework;

/// The built-in layers, which are the weakest.
#[derive(Clone, Debug)]
pub struct BuiltInLayers {
    /// The default policy.
    pub defaults: ParsedPolicy,
    /// The built-in plugins.
    pub frameworks: Vec<Framework>,
}

/// Name for messages and text of the defaults.
pub const DEFAULTS: (&str, &str) = ("built-in/defaults.yaml", include_str!("../../defaults.yaml"));

macro_rules! texts {
    ($folder:literal: $($name:literal),+) => {
        &[$((
            $name,
            concat!("built-in/", $folder, "/", $name, ".yaml"),
            include_str!(concat!("../../", $folder, "/", $name, ".yaml")),
        )),+]
    };
}

/// Name, file and text of each plugin.
pub const FRAMEWORKS: &[(&str, &str, &str)] =
    texts!("frameworks": "pytorch", "tensorflow", "huggingface", "webdataset", "mosaicml", "lightning");

const RECIPES: &[(&str, &str, &str)] = texts!(
    "recipes": "pytorch", "tensorflow", "huggingface", "webdataset", "mosaicml", "checkpoints", "inference",
    "research", "production", "general"
);

/// Returns name, file and text of each recipe. Recipes are whole policies, as starting points for new
/// policies.
#[must_use]
pub fn recipes() -> &'static [(&'static str, &'static str, &'static str)] {
    RECIPES
}

impl BuiltInLayers {
    /// Parses all built-in layers. Should run once.
    ///
    /// # Errors
    /// Never, as a test checks: all files are embedded at compile time.
    pub fn load() -> Result<Self, Diagnostics> {
        let defaults = ParsedPolicy::parse(DEFAULTS.0, DEFAULTS.1)?;
        let frameworks = FRAMEWORKS.iter().map(|(_, file, text)| Framework::parse(file, text));
        Ok(Self { defaults, frameworks: frameworks.collect::<Result<_, _>>()? })
    }
}
