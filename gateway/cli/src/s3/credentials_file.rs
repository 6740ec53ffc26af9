//! Access keys in the credentials file that AWS's tools share. Pure.
//!
//! ```text
//! [profile]
//! aws_access_key_id = ID
//! aws_secret_access_key = SECRET
//! aws_session_token = TOKEN
//! ```

use mlgw_common::Secret;

/// Keys of one profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProfileKeys {
    pub(super) access_key: Option<String>,
    pub(super) secret: Option<Secret>,
    pub(super) session_token: Option<Secret>,
}

/// Returns the keys of `profile` in the text of a credentials file; `None` if it has no such profile.
pub(super) fn keys_of_profile(text: &str, profile: &str) -> Option<ProfileKeys> {
    let (mut keys, mut is_in_profile) = (None, false);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            is_in_profile = name.0.trim() == profile;
            if is_in_profile {
                keys.get_or_insert_with(ProfileKeys::default);
            }
            continue;
        }
        let Some(keys) = keys.as_mut().filter(|_| is_in_profile) else { continue };
        let Some((name, value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
        else {
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "aws_access_key_id" => keys.access_key = Some(value.to_owned()),
            "aws_secret_access_key" => keys.secret = Some(Secret::new(value)),
            "aws_session_token" => keys.session_token = Some(Secret::new(value)),
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::{ProfileKeys, keys_of_profile};
    use mlgw_common::Secret;

    #[test]
    fn a_profile_has_its_own_keys_alone() {
        let text = "# [team]\naws_access_key_id = NONE\n[default]\naws_access_key_id=AK1\n\
                    aws_secret_access_key = a=b\nregion = x\n\n[ team ]\nAWS_ACCESS_KEY_ID = AK2\n\
                    aws_session_token = T\n";
        let default = ProfileKeys {
            access_key: Some("AK1".into()),
            secret: Some(Secret::new("a=b")),
            session_token: None,
        };
        assert_eq!(keys_of_profile(text, "default"), Some(default));
        let team = keys_of_profile(text, "team").unwrap();
        assert_eq!((team.access_key.as_deref(), team.secret), (Some("AK2"), None));
        assert_eq!(team.session_token, Some(Secret::new("T")));
        assert_eq!(keys_of_profile(text, "other"), None);
    }
}
