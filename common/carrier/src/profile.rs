//! Access keys in the credentials file that AWS's tools share. Pure.
//!
//! ```text
//! [PROFILE]
//! aws_access_key_id = ID
//! aws_secret_access_key = SECRET
//! aws_session_token = TOKEN
//! ```
//!
//! A profile may also be headed `[profile PROFILE]`, as in the configuration file of these tools. The case of
//! the names does not matter. If a profile occurs several times, the last value of each name counts. A name
//! without a value counts as absent.

use mlgw_common::Secret;

/// Keys of one profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileKeys {
    /// Access key id.
    pub access_key: Option<String>,
    /// Secret of the access key.
    pub secret: Option<Secret>,
    /// Token of temporary keys.
    pub session_token: Option<Secret>,
}

impl ProfileKeys {
    /// Returns the keys of `profile` in the text of a credentials file; `None` if it has no such profile.
    #[must_use]
    pub fn parse(text: &str, profile: &str) -> Option<Self> {
        let (mut keys, mut is_in_profile) = (None, false);
        for line in text.lines().map(str::trim) {
            if let Some((head, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                is_in_profile = is_head_of(head.trim(), profile);
                if is_in_profile {
                    keys.get_or_insert_with(Self::default);
                }
            } else if let (true, Some(keys), Some((name, value))) =
                (is_in_profile, keys.as_mut(), line.split_once('='))
            {
                keys.set(name.trim(), value.trim());
            }
        }
        keys
    }

    fn set(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        match name.to_ascii_lowercase().as_str() {
            "aws_access_key_id" => self.access_key = Some(value.to_owned()),
            "aws_secret_access_key" => self.secret = Some(Secret::new(value)),
            "aws_session_token" => self.session_token = Some(Secret::new(value)),
            _ => {}
        }
    }
}

/// True if `[head]` begins the keys of `profile`.
fn is_head_of(head: &str, profile: &str) -> bool {
    head == profile || head.strip_prefix("profile ").is_some_and(|name| name.trim() == profile)
}

#[cfg(test)]
mod tests {
    use super::ProfileKeys;
    use mlgw_common::Secret;

    #[test]
    fn a_profile_has_its_own_keys_alone() {
        let text = "# [team]\naws_access_key_id = NONE\n[default]\naws_access_key_id=AK1\n\
                    aws_secret_access_key = a=b\nregion = x\n\n[ team ] # ours\nAWS_ACCESS_KEY_ID = AK2\n\
                    aws_session_token = T\n[team]\naws_access_key_id = AK3\n";
        let default = ProfileKeys {
            access_key: Some("AK1".into()),
            secret: Some(Secret::new("a=b")),
            session_token: None,
        };
        assert_eq!(ProfileKeys::parse(text, "default"), Some(default));
        let team = ProfileKeys::parse(text, "team").unwrap();
        assert_eq!((team.access_key.as_deref(), team.secret), (Some("AK3"), None));
        assert_eq!(team.session_token, Some(Secret::new("T")));
        assert_eq!(ProfileKeys::parse(text, "other"), None);
    }

    #[test]
    fn the_head_may_have_the_word_of_the_configuration_file() {
        let text = "[profile  lake ]\naws_access_key_id=B\n[profiles]\naws_access_key_id=C\n";
        let key = |profile| ProfileKeys::parse(text, profile).and_then(|keys| keys.access_key);
        assert_eq!(key("lake"), Some("B".to_owned()));
        assert_eq!(key("profile  lake"), Some("B".to_owned()));
        assert_eq!(key("profiles"), Some("C".to_owned()));
        assert_eq!((key("s"), key("profile")), (None, None));
        let twice = "[profile profile lake]\naws_access_key_id=D\n";
        assert_eq!(ProfileKeys::parse(twice, "lake"), None, "the name of this profile has two words");
        assert!(ProfileKeys::parse(twice, "profile lake").is_some());
    }

    #[test]
    fn a_name_without_a_value_is_absent() {
        let text = "[team]\naws_access_key_id = AK\naws_session_token =\n[team]\naws_access_key_id=\n";
        let keys = ProfileKeys { access_key: Some("AK".into()), ..ProfileKeys::default() };
        assert_eq!(ProfileKeys::parse(text, "team"), Some(keys));
    }
}
