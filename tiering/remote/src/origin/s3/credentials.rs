//! Credentials of an S3 origin.

use crate::origin::OriginError;
use crate::upstream::CredentialSource;
use mlgw_carrier::{Credentials, ProfileKeys};
use std::path::{Path, PathBuf};

/// Source of the credentials that sign requests.
#[derive(Debug)]
pub(super) enum OriginCredentials {
    /// Fixed credentials.
    Fixed(Credentials),
    /// Credentials in a file, which is read for each request, so that a changed file needs no restart.
    File { path: PathBuf, profile: String },
    /// Requests are not signed.
    Anonymous,
}

impl OriginCredentials {
    /// Loads the credentials of a source. The environment is read once, here.
    ///
    /// # Errors
    /// A description of the missing value.
    pub(super) fn load(source: &CredentialSource) -> Result<Self, String> {
        Ok(match source {
            CredentialSource::Static { access_key, secret, session_token } => {
                let token = session_token.as_ref().map(|token| token.expose().to_owned());
                Self::Fixed(Credentials::new(access_key, secret.expose(), token, None, "configuration"))
            }
            CredentialSource::Env => Self::Fixed(of_environment(&|name| std::env::var(name).ok())?),
            CredentialSource::File { path, profile } => {
                of_file(path, profile)?;
                Self::File { path: path.clone(), profile: profile.clone() }
            }
            CredentialSource::Chain => of_chain()?,
            CredentialSource::Anonymous => Self::Anonymous,
        })
    }

    /// Returns the credentials to sign with now; `None` if requests are not signed.
    pub(super) async fn get(&self) -> Result<Option<Credentials>, OriginError> {
        match self {
            Self::Fixed(keys) => Ok(Some(keys.clone())),
            Self::File { path, profile } => Ok(Some(of_file(path, profile).map_err(OriginError::Denied)?)),
            Self::Anonymous => Ok(None),
        }
    }
}

/// Loads credentials from the environment, or else from the file that the AWS tools read.
fn of_chain() -> Result<OriginCredentials, String> {
    if let Ok(keys) = of_environment(&|name| std::env::var(name).ok()) {
        return Ok(OriginCredentials::Fixed(keys));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let path = std::env::var_os("AWS_SHARED_CREDENTIALS_FILE");
    let path = path.map_or_else(|| home.join(".aws/credentials"), PathBuf::from);
    let profile = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
    of_file(&path, &profile).map(|_| OriginCredentials::File { path, profile })
}

fn of_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Credentials, String> {
    let needed = |name: &str| variable(name).ok_or_else(|| format!("the variable {name} is not set"));
    let (key, secret) = (needed("AWS_ACCESS_KEY_ID")?, needed("AWS_SECRET_ACCESS_KEY")?);
    Ok(Credentials::new(key, secret, variable("AWS_SESSION_TOKEN"), None, "environment"))
}

fn of_file(path: &Path, profile: &str) -> Result<Credentials, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    of_profile(&text, profile).ok_or_else(|| {
        let needs = "aws_access_key_id and aws_secret_access_key";
        format!("{} has no profile [{profile}] with {needs}", path.display())
    })
}

/// Returns the credentials of a profile in the text of a credentials file.
fn of_profile(text: &str, profile: &str) -> Option<Credentials> {
    let keys = ProfileKeys::parse(text, profile)?;
    let token = keys.session_token.map(|token| token.expose().to_owned());
    Some(Credentials::new(keys.access_key?, keys.secret?.expose(), token, None, "file"))
}

#[cfg(test)]
mod tests {
    use super::{of_environment, of_profile};

    const FILE: &str = "# ours\n[default]\naws_access_key_id = A\naws_secret_access_key=S\n\n\
                        [profile  lake ]\n\
                        aws_access_key_id=B\naws_secret_access_key = T=\naws_session_token=U\nregion = x\n\
                        [half]\n\
                        aws_access_key_id=C\n";

    #[test]
    fn a_profile_is_found_in_its_file() {
        let found = |profile| {
            let keys = of_profile(FILE, profile)?;
            let [key, secret] = [keys.access_key_id(), keys.secret_access_key()].map(str::to_owned);
            Some((key, secret, keys.session_token().map(str::to_owned)))
        };
        assert_eq!(found("default"), Some(("A".into(), "S".into(), None)));
        assert_eq!(found("lake"), Some(("B".into(), "T=".into(), Some("U".into()))));
        assert_eq!((found("half"), found("none")), (None, None));
    }

    #[test]
    fn a_missing_variable_is_named() {
        let of = |names: &'static [&str]| of_environment(&|name| names.contains(&name).then(|| "x".into()));
        assert!(of(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]).is_ok());
        assert!(of(&["AWS_ACCESS_KEY_ID"]).unwrap_err().contains("AWS_SECRET_ACCESS_KEY"));
    }
}
