//! Whose turn a read is at the disks: that of those who serve models, or that of all others.
//!
//! Who serves a model says so by the name of its workload, in `x-mlgw-workload` or as `workload/NAME` in its
//! user agent, or is known by its access key; `lanes.inference` has globs of such names. What a client says
//! of itself only ever moves it to another lane, of the same share: nobody gets more than that by saying it.

use globset::{GlobBuilder, GlobMatcher};
use http::HeaderMap;
use http::header::USER_AGENT;
use mlgw_policies::language::Lane;

/// The header in which a client names its workload.
const WORKLOAD: &str = "x-mlgw-workload";
/// What the name of a workload follows in a user agent.
const SUFFIX: &str = "workload/";

/// Who reads in which lane.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    inference: Vec<GlobMatcher>,
}

impl Lanes {
    /// Workloads and access keys whose names match one of the globs `inference` read in that lane.
    ///
    /// # Errors
    /// The first glob that is none, and why.
    pub fn new(inference: &[String]) -> Result<Self, String> {
        let compile = |glob: &String| {
            let built = GlobBuilder::new(glob).literal_separator(false).backslash_escape(true).build();
            let compiled = built.map(|glob| glob.compile_matcher());
            compiled.map_err(|error| format!("the glob {glob:?} cannot be read: {}", error.kind()))
        };
        Ok(Self { inference: inference.iter().map(compile).collect::<Result<_, _>>()? })
    }

    /// The lane of a read with these headers by the holder of this key.
    #[must_use]
    pub fn of_read(&self, headers: &HeaderMap, access_key: &str) -> Lane {
        if self.inference.is_empty() {
            return Lane::Training;
        }
        let serves = |name: &str| self.inference.iter().any(|glob| glob.is_match(name));
        if serves(access_key) || workload(headers).is_some_and(serves) {
            Lane::Inference
        } else {
            Lane::Training
        }
    }
}

/// The name of the workload that a request is of, if it says so.
pub fn workload(headers: &HeaderMap) -> Option<&str> {
    if let Some(name) = headers.get(WORKLOAD) {
        return name.to_str().ok();
    }
    let agent = headers.get(USER_AGENT)?.to_str().ok()?;
    agent.split(' ').rev().find_map(|word| word.strip_prefix(SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::Lanes;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use mlgw_policies::language::Lane;

    fn lane(globs: &[&str], headers: &[(&'static str, &str)], access_key: &str) -> Lane {
        let globs: Vec<String> = globs.iter().map(|&glob| glob.to_owned()).collect();
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        Lanes::new(&globs).unwrap().of_read(&headers, access_key)
    }

    #[test]
    fn who_serves_is_known_by_header_user_agent_or_key() {
        let globs = &["serve-*", "AKSERVE"];
        for headers in [
            &[("x-mlgw-workload", "serve-llm")][..],
            &[("user-agent", "Boto3/1.44 ua/2.1 workload/serve-llm")],
            &[("user-agent", "workload/serve-llm")],
            &[("user-agent", "workload/serve-llm md/later")],
        ] {
            assert_eq!(lane(globs, headers, "AK"), Lane::Inference, "{headers:?}");
        }
        assert_eq!(lane(globs, &[], "AKSERVE"), Lane::Inference);
    }

    #[test]
    fn everybody_else_trains() {
        let said = &[("x-mlgw-workload", "serve-llm")];
        assert_eq!(lane(&[], said, "AK"), Lane::Training, "nothing is configured");
        let globs = &["serve-*"];
        assert_eq!(lane(globs, &[], "AK"), Lane::Training);
        assert_eq!(lane(globs, &[("user-agent", "x/workload/serve-llm")], "AK"), Lane::Training);
        // The header says more than the user agent, which a library may set.
        let both = &[("x-mlgw-workload", "train"), ("user-agent", "workload/serve-llm")];
        assert_eq!(lane(globs, both, "AK"), Lane::Training);
        assert!(Lanes::new(&["[".to_owned()]).is_err());
    }
}
