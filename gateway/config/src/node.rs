//! Settings that contradict the membership of a node in a cluster. Pure.

use super::{ConfigError, ConfigFinding, Durability, LoadedConfig};

impl LoadedConfig {
    /// Checks that this configuration is one of a node of a cluster.
    ///
    /// # Errors
    /// Lists the settings that are not, with their places.
    pub fn check_node(&self) -> Result<(), ConfigError> {
        match self.config.durability {
            Durability::Full => Ok(()),
            Durability::Os => Err(self.contradiction(
                "durability",
                "durability is \"os\": a node of a cluster must not forget what it acknowledged; set \
                 durability = \"full\"",
            )),
        }
    }

    /// Returns the error of a setting that contradicts the rows of the cluster or of this server.
    #[must_use]
    pub fn contradiction(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        ConfigError(vec![ConfigFinding { origin: self.origin(key).clone(), reason: reason.into() }])
    }
}

#[cfg(test)]
mod tests {
    use crate::{ConfigSources, LoadedConfig};

    #[test]
    fn a_setting_that_a_node_must_not_have_is_refused_with_its_line() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("node.toml");
        let loaded = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let sources = ConfigSources { file: Some(file.clone()), ..ConfigSources::default() };
            LoadedConfig::load(&sources).unwrap()
        };
        assert_eq!(loaded("durability = \"full\"").check_node(), Ok(()));
        let refused = loaded("# A node.\ndurability = \"os\"\n").check_node().unwrap_err().to_string();
        let place = format!("{}:2: durability is \"os\"", file.display());
        assert!(refused.starts_with(&place), "{refused}");
    }
}
