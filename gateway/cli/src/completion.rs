//! Candidates for shell completion: names that the running server lists.
//!
//! The server is the one that the command would use. There are no candidates and no message if no server
//! runs, it refuses, or it does not list all names in time: a shell would complete a part of the list to a
//! wrong name. A candidate is a name or an id, never a secret. Names that a shell would expand or split are
//! omitted, because clients choose some of them.

use super::client::Client;
use super::server_name::ServerName;
use super::{CliError, Global, OutputForm, discover, path_segment};
use clap::Command;
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use mlgw_api::{
    AccessPlanList, BucketInfo, BucketPage, DatasetList, JobInfo, JobList, KeyList, PolicyHistory, TierList,
    TraceList, UpstreamList, WorkloadList,
};
use serde::de::DeserializeOwned;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// Time limit of all requests, so that a shell does not hang.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of requests for one list. A page of buckets has a thousand.
const PAGES_MAX: usize = 20;

/// Path of the most recently active workloads.
const WORKLOADS: &str = "/v1/workloads?limit=100";

/// Maximum length of the description beside a candidate.
const DESCRIPTION_CHARS_MAX: usize = 60;

/// A name and its description.
type Candidate = (String, String);

/// Names of one answer.
struct CandidatePage {
    /// Names, in byte order if further pages follow.
    names: Vec<Candidate>,
    /// Path of the next page.
    next: Option<String>,
}

/// Returns the command with completers of all arguments that take a name of a server.
#[must_use]
pub fn with_names(command: Command) -> Command {
    let command = command.mut_subcommands(with_names);
    command.mut_args(|argument| match argument.get::<ServerName>().copied() {
        Some(kind) => argument.add(completer_of(kind)),
        None => argument,
    })
}

/// Returns the completer of a kind of names, with a description beside each name. Jobs and versions of the
/// policy are listed from the newest to the oldest.
fn completer_of(kind: ServerName) -> ArgValueCompleter {
    match kind {
        ServerName::Bucket => completer(first_buckets_path, |page: BucketPage| {
            let bound = |bucket: &BucketInfo| bucket.binding.as_ref().map(|to| to.upstream.clone());
            let names = page.buckets.iter().map(|b| (b.name.clone(), bound(b).unwrap_or_default()));
            CandidatePage { names: names.collect(), next: page.next.as_deref().map(buckets_path) }
        }),
        ServerName::Dataset => of_list("/v1/datasets", |list: DatasetList| {
            list.datasets.into_iter().map(|dataset| (dataset.name, dataset.bucket)).collect()
        }),
        ServerName::Job => of_list("/v1/jobs", |list: JobList| {
            let text = |job: &JobInfo| format!("{} {}, {}", job.kind, job.dataset, job.state);
            list.jobs.iter().map(|job| (job.id.to_string(), text(job))).collect()
        }),
        ServerName::AccessKey => of_list("/v1/access/keys", |list: KeyList| {
            list.keys.into_iter().map(|key| (key.access_key, key.description)).collect()
        }),
        ServerName::Upstream => of_list("/v1/upstreams", |list: UpstreamList| {
            list.upstreams.into_iter().map(|upstream| (upstream.name, upstream.kind.to_string())).collect()
        }),
        ServerName::Tier => of_list("/v1/tiers", |list: TierList| {
            list.tiers.into_iter().map(|tier| (tier.tier.to_string(), String::new())).collect()
        }),
        ServerName::PolicyVersion => of_list("/v1/policy/history?limit=100", |history: PolicyHistory| {
            history.versions.into_iter().map(|v| (v.version.to_string(), v.message)).collect()
        }),
        ServerName::WorkloadId => of_list(WORKLOADS, |list: WorkloadList| {
            list.workloads.into_iter().map(|w| (w.id, w.name.unwrap_or_default())).collect()
        }),
        ServerName::WorkloadName => of_list(WORKLOADS, |list: WorkloadList| {
            list.workloads.into_iter().filter_map(|w| Some((w.name?, w.id))).collect()
        }),
        ServerName::AccessPlan => of_list("/v1/workload-plans", |list: AccessPlanList| {
            list.plans.into_iter().map(|plan| (plan.id, plan.workload)).collect()
        }),
        ServerName::Trace => of_list("/v1/traces", |list: TraceList| {
            list.traces.into_iter().map(|trace| (trace.name, String::new())).collect()
        }),
    }
}

/// Returns the path of the page that begins with the first bucket with a prefix. A page begins after a text:
/// here one between the prefix and every smaller name, because no name contains `~` or a larger character.
fn first_buckets_path(prefix: &str) -> String {
    let mut before = prefix.to_owned();
    let last = before.pop().filter(char::is_ascii).and_then(|last| u8::checked_sub(last as u8, 1));
    before.extend(last.map(|smaller| [char::from(smaller), '~']).into_iter().flatten());
    buckets_path(&before)
}

fn buckets_path(after: &str) -> String {
    format!("/v1/buckets?after={}", path_segment(after))
}

/// Returns a completer of the names in the list at a fixed path.
fn of_list<T: DeserializeOwned + 'static>(
    path: &'static str,
    names: fn(T) -> Vec<Candidate>,
) -> ArgValueCompleter {
    completer(move |_| path.to_owned(), move |list| CandidatePage { names: names(list), next: None })
}

/// Returns a completer of the names in the list whose first path depends on the typed prefix.
fn completer<T: DeserializeOwned + 'static>(
    path: impl Fn(&str) -> String + Send + Sync + 'static,
    page: impl Fn(T) -> CandidatePage + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let Some(prefix) = typed.to_str() else { return Vec::new() };
        candidates(request(path(prefix), prefix, &page).unwrap_or_default(), prefix)
    })
}

fn candidates(names: Vec<Candidate>, prefix: &str) -> Vec<CompletionCandidate> {
    let matching = names.into_iter().filter(|(name, _)| name.starts_with(prefix) && is_plain(name));
    let candidate = |(name, description): Candidate| {
        let printable = description.chars().filter(|c| !c.is_control());
        let help: String = printable.take(DESCRIPTION_CHARS_MAX).collect();
        CompletionCandidate::new(name).help((!help.is_empty()).then(|| help.into()))
    };
    matching.map(candidate).collect()
}

/// True if no shell expands or splits the name.
fn is_plain(name: &str) -> bool {
    !name.starts_with('-') && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._/@+,%".contains(c))
}

/// Requests a list from the server, as far as it may contain names with the prefix, if it answers in time.
fn request<T: DeserializeOwned>(
    first: String,
    prefix: &str,
    page: &impl Fn(T) -> CandidatePage,
) -> Option<Vec<Candidate>> {
    let endpoint = typed_endpoint(std::env::args_os()).or_else(|| std::env::var("MLGW_ADMIN_ENDPOINT").ok());
    let global = Global { endpoint, output: OutputForm::Json, yes: false, quiet: true };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let names = runtime.block_on(async {
        let names = async {
            let client = Client::new(discover::target(&global)?)?;
            all_names(async |path: String| client.get(&path).await.map(page), first, prefix).await
        };
        mlgw_common::time::timeout(PATIENCE, names).await
    });
    // A lookup of a host name may still run.
    runtime.shutdown_background();
    names.ok().and_then(|names: Result<_, CliError>| names.ok())
}

/// Returns the names of all pages from `first` on, up to the page that ends after the names with the prefix.
///
/// # Errors
/// A request failed, or there are too many pages.
async fn all_names(
    get: impl AsyncFn(String) -> Result<CandidatePage, CliError>,
    first: String,
    prefix: &str,
) -> Result<Vec<Candidate>, CliError> {
    let (mut names, mut next) = (Vec::new(), Some(first));
    for _ in 0..PAGES_MAX {
        let Some(path) = next else { return Ok(names) };
        let page = get(path).await?;
        let is_past = |(name, _): &Candidate| name.as_str() > prefix && !name.starts_with(prefix);
        next = page.next.filter(|_| !page.names.last().is_some_and(is_past));
        names.extend(page.names);
    }
    match next {
        None => Ok(names),
        Some(_) => Err(CliError::Failed("too many names".to_owned())),
    }
}

/// Returns the endpoint in the command line that is completed. It follows the first `--` of this process's
/// arguments.
fn typed_endpoint(arguments: impl Iterator<Item = OsString>) -> Option<String> {
    let words = arguments.filter_map(|word| word.into_string().ok());
    let mut words = words.skip_while(|word| word != "--");
    let word = words.find(|word| word == "--endpoint" || word.starts_with("--endpoint="))?;
    word.strip_prefix("--endpoint=").map(str::to_owned).or_else(|| words.next())
}

#[cfg(test)]
mod tests {
    use super::{
        CandidatePage, PAGES_MAX, all_names, buckets_path, candidates, first_buckets_path, typed_endpoint,
    };
    use crate::CliError;
    use std::cell::RefCell;

    fn offered(names: &[(&str, &str)], prefix: &str) -> Vec<(String, Option<String>)> {
        let names = names.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let shown = |candidate: clap_complete::CompletionCandidate| {
            let help = candidate.get_help().map(ToString::to_string);
            (candidate.get_value().to_string_lossy().into_owned(), help)
        };
        candidates(names, prefix).into_iter().map(shown).collect()
    }

    #[test]
    fn names_with_the_typed_prefix_are_offered() {
        let names = [("train", "lake"), ("test", ""), ("val", "")];
        let expected = [("train".to_owned(), Some("lake".to_owned())), ("test".to_owned(), None)];
        assert_eq!(offered(&names, "t"), expected);
    }

    #[test]
    fn a_name_that_a_shell_would_expand_is_omitted_and_no_control_character_is_printed() {
        let names = ["$(reboot)", "a b", "a;b", "`a`", "a\nb", "--yes", "a'b", "*"].map(|name| (name, ""));
        assert_eq!(offered(&names, ""), []);
        assert_eq!(offered(&[("a", "x\u{1b}[2J\ny")], ""), [("a".to_owned(), Some("x[2Jy".to_owned()))]);
    }

    /// Requests pages of two names each. Returns the names, and the requested paths.
    async fn paged(all: &[&str], prefix: &str) -> (Result<Vec<String>, CliError>, Vec<String>) {
        let requested = RefCell::new(Vec::new());
        let get = async |path: String| {
            let at = requested.borrow().len() * 2;
            let page: Vec<_> =
                all[at..].iter().take(2).map(|name| ((*name).to_owned(), String::new())).collect();
            requested.borrow_mut().push(path);
            let next = (at + 2 < all.len()).then(|| buckets_path(&page[1].0));
            Ok(CandidatePage { names: page, next })
        };
        let found = all_names(get, first_buckets_path(prefix), prefix).await;
        let found = found.map(|names| names.into_iter().map(|(name, _)| name).collect());
        (found, requested.into_inner())
    }

    #[tokio::test]
    async fn pages_are_requested_up_to_the_end_of_the_prefix() {
        let all = ["a", "ta", "tb", "tc", "td", "u", "v", "w"];
        let (found, requested) = paged(&all, "t").await;
        assert_eq!(found.unwrap(), all[..6]);
        assert_eq!(requested, ["/v1/buckets?after=s~", "/v1/buckets?after=ta", "/v1/buckets?after=tc"]);
        let (found, requested) = paged(&all, "").await;
        assert_eq!((found.unwrap().len(), requested.len()), (8, 4));
        assert_eq!(requested[0], "/v1/buckets?after=");
        let (found, requested) = paged(&all[1..], "tc").await;
        assert_eq!((found.unwrap().len(), requested[0].as_str()), (4, "/v1/buckets?after=tb~"));
    }

    #[tokio::test]
    async fn a_list_that_is_too_long_has_no_candidates() {
        let all = vec!["t"; 2 * PAGES_MAX + 1];
        let (found, requested) = paged(&all, "t").await;
        assert_eq!((found.is_err(), requested.len()), (true, PAGES_MAX));
        assert_eq!(paged(&all[1..], "t").await.0.unwrap().len(), 2 * PAGES_MAX);
    }

    #[test]
    fn the_endpoint_of_the_completed_line_is_used() {
        let of = |line: &str| typed_endpoint(line.split(' ').map(Into::into));
        assert_eq!(of("mlgw -- mlgw --endpoint http://h:1 bucket show"), Some("http://h:1".to_owned()));
        assert_eq!(of("mlgw -- mlgw bucket show --endpoint=http://h:1 b"), Some("http://h:1".to_owned()));
        assert_eq!(of("mlgw --endpoint http://h:1 -- mlgw bucket show"), None);
    }
}
