//! What comes with the server: the defaults, the plugins of frameworks, and recipes to begin with.

use super::diagnostic::Diagnostics;
use super::file::PolicyFile;
use super::framework::Framework;

/// The weakest layers.
#[derive(Clone, Debug)]
pub struct BuiltIn {
    /// The defaults.
    pub defaults: PolicyFile,
    /// The plugins.
    pub frameworks: Vec<Framework>,
}

/// The text of the defaults, and the name that messages give it.
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

/// Name, file and text of each recipe: whole policies, for people to begin with.
#[must_use]
pub fn recipes() -> &'static [(&'static str, &'static str, &'static str)] {
    RECIPES
}

impl BuiltIn {
    /// Reads all of it; do so once.
    ///
    /// # Errors
    /// Never, a test says: everything is there at compile time.
    pub fn load() -> Result<Self, Diagnostics> {
        let defaults = PolicyFile::parse(DEFAULTS.0, DEFAULTS.1)?;
        let frameworks = FRAMEWORKS.iter().map(|(_, file, text)| Framework::parse(file, text));
        Ok(Self { defaults, frameworks: frameworks.collect::<Result<_, _>>()? })
    }
}
