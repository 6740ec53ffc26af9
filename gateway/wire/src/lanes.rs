//! Assignment of reads to disk lanes: inference, or training for all others.
//!
//! A client names its workload in `x-mlgw-workload` or as `workload/NAME` in its user agent; an access key
//! can stand for a workload, too. `lanes.inference` contains globs of such names. A client's own claim only
//! moves it to another lane, which has its fixed share: no client gets more than that share by its claim.

use globset::{GlobBuilder, GlobMatcher};
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName};
use mlgw_policies::language::Lane;

/// The header in which a client names its workload.
static WORKLOAD_HEADER: HeaderName = HeaderName::from_static("x-mlgw-workload");
/// Prefix of a workload's name in a user agent.
const USER_AGENT_PREFIX: &str = "workload/";

/// Names of the workloads and access keys that use the inference lane.
#[derive(Clone, Debug, Default)]
pub struct WorkloadLanes {
    inference: Vec<GlobMatcher>,
}

impl WorkloadLanes {
    /// Compiles the globs `inference` of workloads and access keys that read in the inference lane.
    ///
    /// # Errors
    /// Names the first invalid glob and its defect.
    pub fn new(inference: &[String]) -> Result<Self, String> {
        let compile = |glob: &String| {
            let built = GlobBuilder::new(glob).literal_separator(false).backslash_escape(true).build();
            let compiled = built.map(|glob| glob.compile_matcher());
            compiled.map_err(|error| format!("the glob {glob:?} is invalid: {}", error.kind()))
        };
        Ok(Self { inference: inference.iter().map(compile).collect::<Result<_, _>>()? })
    }

    /// Returns the lane of a read with these headers and this access key.
    #[must_use]
    pub fn lane_of_read(&self, headers: &HeaderMap, access_key: &str) -> Lane {
        if self.inference.is_empty() {
            return Lane::Training;
        }
        let is_inference = |name: &str| self.inference.iter().any(|glob| glob.is_match(name));
        if is_inference(access_key) || workload(headers).is_some_and(is_inference) {
            Lane::Inference
        } else {
            Lane::Training
        }
    }
}

/// Returns the name of the workload in a request's headers, if there is one.
pub fn workload(headers: &HeaderMap) -> Option<&str> {
    if let Some(name) = headers.get(&WORKLOAD_HEADER) {
        return name.to_str().ok();
    }
    let agent = headers.get(USER_AGENT)?.to_str().ok()?;
    agent.split(' ').rev().find_map(|word| word.strip_prefix(USER_AGENT_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::WorkloadLanes;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use mlgw_policies::language::Lane;

    fn lane(globs: &[&str], headers: &[(&'static str, &str)], access_key: &str) -> Lane {
        let globs: Vec<String> = globs.iter().map(|&glob| glob.to_owned()).collect();
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        WorkloadLanes::new(&globs).unwrap().lane_of_read(&headers, access_key)
    }

    #[test]
    fn inference_is_recognised_by_header_user_agent_or_key() {
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
    fn all_other_reads_use_the_training_lane() {
        let headers = &[("x-mlgw-workload", "serve-llm")];
        assert_eq!(lane(&[], headers, "AK"), Lane::Training, "nothing is configured");
        let globs = &["serve-*"];
        assert_eq!(lane(globs, &[], "AK"), Lane::Training);
        assert_eq!(lane(globs, &[("user-agent", "x/workload/serve-llm")], "AK"), Lane::Training);
        // The header takes precedence over the user agent, which a library may set.
        let both = &[("x-mlgw-workload", "train"), ("user-agent", "workload/serve-llm")];
        assert_eq!(lane(globs, both, "AK"), Lane::Training);
        assert!(WorkloadLanes::new(&["[".to_owned()]).is_err());
    }
}
