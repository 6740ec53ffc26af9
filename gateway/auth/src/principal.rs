//! Permissions of an access key: a role, restricted by globs of buckets and of keys.
//!
//! A glob's `*` crosses `/`. A glob of keys covers all keys that begin with a match, so `data/` and `data/*`
//! both cover everything under `data/`. An empty list does not restrict. A request without a bucket (or key)
//! is not restricted by the globs for it, with one exception: administration of the server requires an
//! unrestricted key, because an administrator can create further keys.

use globset::{GlobBuilder, GlobMatcher};
use mlgw_api::AccessKeyRole;
use mlgw_wire::access::RequiredPermission;

/// A glob is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the glob {glob:?} is invalid: {reason}")]
pub struct BadGlob {
    glob: String,
    reason: String,
}

/// Signer of a request, with its permissions.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The access key that signed the request.
    pub access_key: String,
    /// Owner id, as shown in responses.
    pub owner: String,
    /// Role of the access key.
    pub role: AccessKeyRole,
    /// True if written data is charged to the access key.
    is_charged: bool,
    buckets: Globs,
    prefixes: Globs,
}

impl Principal {
    /// Returns a principal that is restricted to `buckets` and `prefixes`; an empty list does not restrict.
    ///
    /// # Errors
    /// Names the first invalid glob.
    pub fn new(
        access_key: &str,
        owner: &str,
        role: AccessKeyRole,
        buckets: &[String],
        prefixes: &[String],
    ) -> Result<Self, BadGlob> {
        let begins: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}*")).collect();
        Ok(Self {
            access_key: access_key.to_owned(),
            owner: owner.to_owned(),
            role,
            is_charged: true,
            buckets: Globs::new(buckets)?,
            prefixes: Globs::new(&begins)?,
        })
    }

    /// Returns an unrestricted principal that is not charged for written data: the root key.
    #[must_use]
    pub fn unrestricted(access_key: &str, owner: &str, role: AccessKeyRole) -> Self {
        Self {
            access_key: access_key.to_owned(),
            owner: owner.to_owned(),
            role,
            is_charged: false,
            buckets: Globs::default(),
            prefixes: Globs::default(),
        }
    }

    /// Returns the access key that written data is charged to; empty if none.
    #[must_use]
    pub fn payer(&self) -> &str {
        if self.is_charged { &self.access_key } else { "" }
    }

    /// True if the principal may perform `action` on the bucket and key.
    #[must_use]
    pub fn allows(&self, action: RequiredPermission, bucket: Option<&str>, key: Option<&str>) -> bool {
        let narrowed = !self.buckets.0.is_empty() || !self.prefixes.0.is_empty();
        if self.role < action.min_role()
            || (action == RequiredPermission::Admin && bucket.is_none() && narrowed)
        {
            return false;
        }
        bucket.is_none_or(|bucket| self.buckets.cover(bucket))
            && key.is_none_or(|key| self.prefixes.cover(key))
    }
}

/// Alternative globs; an empty list covers everything.
#[derive(Clone, Debug, Default)]
struct Globs(Vec<GlobMatcher>);

impl Globs {
    fn new(globs: &[String]) -> Result<Self, BadGlob> {
        let compile = |glob: &String| {
            let built = GlobBuilder::new(glob).literal_separator(false).backslash_escape(true).build();
            built
                .map(|glob| glob.compile_matcher())
                .map_err(|error| BadGlob { glob: glob.clone(), reason: error.kind().to_string() })
        };
        globs.iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    fn cover(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|glob| glob.is_match(name))
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessKeyRole, Principal, RequiredPermission};

    fn narrowed(role: AccessKeyRole, buckets: &[&str], prefixes: &[&str]) -> Principal {
        let owned = |globs: &[&str]| globs.iter().map(|&g| g.to_owned()).collect::<Vec<_>>();
        Principal::new("AK", "o", role, &owned(buckets), &owned(prefixes)).unwrap()
    }

    #[test]
    fn a_role_includes_the_lesser_roles() {
        for (role, allowed) in [
            (AccessKeyRole::Read, [true, true, false, false]),
            (AccessKeyRole::Write, [true, true, true, false]),
            (AccessKeyRole::Admin, [true, true, true, true]),
        ] {
            let principal = Principal::unrestricted("AK", "o", role);
            for (action, allowed) in [
                RequiredPermission::Read,
                RequiredPermission::List,
                RequiredPermission::Write,
                RequiredPermission::Admin,
            ]
            .into_iter()
            .zip(allowed)
            {
                assert_eq!(principal.allows(action, Some("b"), Some("k")), allowed, "{role:?} {action:?}");
            }
        }
    }

    #[test]
    fn globs_of_buckets_restrict_a_principal() {
        let principal = narrowed(AccessKeyRole::Admin, &["team-*", "shared"], &[]);
        for (bucket, allowed) in [("team-a", true), ("shared", true), ("shared2", false), ("other", false)] {
            assert_eq!(
                principal.allows(RequiredPermission::Write, Some(bucket), Some("k")),
                allowed,
                "{bucket}"
            );
            assert_eq!(principal.allows(RequiredPermission::Admin, Some(bucket), None), allowed, "{bucket}");
        }
    }

    #[test]
    fn globs_of_keys_cover_keys_that_begin_with_a_match() {
        let principal = narrowed(AccessKeyRole::Read, &[], &["data/", "runs/*/log"]);
        for (key, allowed) in [
            ("data/", true),
            ("data/a/b//c/", true),
            ("data/\n*[", true),
            ("data", false),
            ("runs/7/log", true),
            ("runs/7/x/logs/1", true),
            ("runs/7", false),
            ("", false),
        ] {
            assert_eq!(principal.allows(RequiredPermission::Read, Some("b"), Some(key)), allowed, "{key:?}");
        }
        assert!(principal.allows(RequiredPermission::List, Some("b"), None), "List without a key is allowed");
        assert!(
            !principal.allows(RequiredPermission::List, Some("b"), Some("da")),
            "List outside the globs is denied"
        );
    }

    #[test]
    fn only_an_unrestricted_key_may_administer_the_server() {
        assert!(Principal::unrestricted("AK", "o", AccessKeyRole::Admin).allows(
            RequiredPermission::Admin,
            None,
            None
        ));
        assert!(!narrowed(AccessKeyRole::Admin, &["*"], &[]).allows(RequiredPermission::Admin, None, None));
        assert!(!narrowed(AccessKeyRole::Admin, &[], &["*"]).allows(RequiredPermission::Admin, None, None));
        assert!(!Principal::unrestricted("AK", "o", AccessKeyRole::Write).allows(
            RequiredPermission::Admin,
            None,
            None
        ));
    }

    #[test]
    fn a_broken_glob_is_refused_by_name() {
        let refused = Principal::new("AK", "o", AccessKeyRole::Read, &["a[".to_owned()], &[]).unwrap_err();
        assert!(refused.to_string().contains("\"a[\""), "{refused}");
    }
}
