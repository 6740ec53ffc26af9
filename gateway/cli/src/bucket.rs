//! The command `mlgw bucket …`.

use super::client::Client;
use super::output::{Out, columns, confirm, pairs};
use super::quota::describe;
use super::server_name::ServerName;
use super::word_arg::word_of;
use super::{CliError, Global, discover, job, path_segment};
use clap::Subcommand;
use http::Method;
use mlgw_api::{
    BindRequest, BindingMode, BucketInfo, BucketPage, DirtyInfo, DiscardResult, JobInfo, KeyRangeInfo,
    MigrationTarget, NewBucketRequest, QuotaRequest, RefreshRequest, RefreshResult,
};
use mlgw_common::ByteSize;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// List all buckets.
    List,
    /// Show a bucket and its usage.
    Show {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
    },
    /// Create a bucket.
    Create {
        /// Name of the bucket.
        bucket: String,
        /// Region of the bucket. Default: the server's.
        #[arg(long)]
        region: Option<String>,
        /// Key at which the bucket is split into ranges, which are spread over the object groups; repeatable,
        /// in ascending order.
        #[arg(long = "split-key", value_name = "KEY")]
        split_keys: Vec<String>,
    },
    /// Delete an empty bucket.
    Delete {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
    },
    /// Show the quota of a bucket, or change it if a limit is given.
    Quota {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
        /// Bytes of objects and of parts of uploads in progress, such as 10GiB, or `none`.
        #[arg(long, value_name = "SIZE")]
        bytes: Option<String>,
        /// Number of objects, or `none`.
        #[arg(long, value_name = "N")]
        objects: Option<String>,
    },
    /// Create a bucket backed by a bucket of an upstream. Its objects are available immediately, without an
    /// import.
    Bind {
        /// Name of the bucket on this server.
        bucket: String,
        /// Name of the upstream in the configuration.
        #[arg(long, add = ServerName::Upstream)]
        upstream: String,
        /// Prefix of the keys at the upstream. It is removed from keys on this server.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Treatment of writes: `read-through` refuses them, `write-through` acknowledges them when the
        /// upstream has them, `write-back` when they are durable on this server.
        #[arg(
            long, default_value = "read-through", value_parser = word_of(BindingMode::ALL, BindingMode::name)
        )]
        mode: BindingMode,
        /// Validity of answers of the origin, such as 30s or 1h. Default: `bound.ttl`.
        #[arg(long)]
        ttl: Option<String>,
    },
    /// End a binding: remove the bucket from this server. All its objects are at the origin.
    Unbind {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
    },
    /// Wait until all writes to a bucket are at its upstream.
    Flush {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
        /// Discard local writes to keys that another client has since written at the upstream.
        #[arg(long)]
        discard: bool,
    },
    /// Move a remote-backed bucket to another upstream while it is served: copy all objects, then switch to
    /// the copy.
    Migrate {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
        /// Name of the upstream in the configuration.
        #[arg(long, add = ServerName::Upstream)]
        upstream: String,
        /// Prefix of the keys at the new upstream. It must not contain objects yet.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Wait for the end of the job.
        #[arg(long)]
        wait: bool,
    },
    /// Expire cached answers of the origin of a remote-backed bucket.
    Refresh {
        /// Name of the bucket.
        #[arg(add = ServerName::Bucket)]
        bucket: String,
        /// Only keys with this prefix.
        #[arg(long, default_value = "")]
        prefix: String,
    },
}

pub(super) async fn run(command: BucketCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        BucketCommand::List => out.document(&all(&client).await?, list),
        BucketCommand::Show { bucket } => {
            out.document(&client.get::<BucketInfo>(&path(&bucket)).await?, show)
        }
        BucketCommand::Create { bucket, region, split_keys } => {
            let new = NewBucketRequest { name: bucket.clone(), region, split_keys };
            let created: BucketInfo = client.call(Method::POST, "/v1/buckets", Some(&new)).await?;
            out.done(&created, &format!("Created the bucket {bucket}."))
        }
        BucketCommand::Delete { bucket } => {
            confirm(&format!("Delete the bucket {bucket}?"), global.yes)?;
            let gone: BucketInfo = client.call(Method::DELETE, &path(&bucket), None::<&()>).await?;
            out.done(&gone, &format!("Deleted the bucket {bucket}."))
        }
        BucketCommand::Quota { bucket, bytes: None, objects: None } => {
            out.document(&client.get::<BucketInfo>(&path(&bucket)).await?, quota)
        }
        BucketCommand::Quota { bucket, bytes, objects } => {
            let (request, path) = (QuotaRequest { bytes, objects }, format!("{}/quota", path(&bucket)));
            let info: BucketInfo = client.call(Method::PATCH, &path, Some(&request)).await?;
            if out.quiet { Ok(()) } else { out.document(&info, quota) }
        }
        BucketCommand::Bind { bucket, upstream, prefix, mode, ttl } => {
            let request = BindRequest { upstream: upstream.clone(), prefix, mode: Some(mode), ttl };
            let binding = format!("{}/binding", path(&bucket));
            let bound: BucketInfo = client.call(Method::POST, &binding, Some(&request)).await?;
            out.done(&bound, &format!("Bound the bucket {bucket} to the upstream {upstream}."))
        }
        BucketCommand::Unbind { bucket } => {
            confirm(&format!("Unbind the bucket {bucket}?"), global.yes)?;
            let binding = format!("{}/binding", path(&bucket));
            let gone: BucketInfo = client.call(Method::DELETE, &binding, None::<&()>).await?;
            out.done(&gone, &format!("Unbound the bucket {bucket}; all its objects are at the origin."))
        }
        BucketCommand::Flush { bucket, discard } => {
            let foreign = if discard { ForeignWrites::Discard } else { ForeignWrites::Report };
            flush(&client, &bucket, foreign, global, out).await
        }
        BucketCommand::Migrate { bucket, upstream, prefix, wait } => {
            let request = MigrationTarget { upstream: upstream.clone(), prefix };
            let migration = format!("{}/migration", path(&bucket));
            let made: JobInfo = client.call(Method::POST, &migration, Some(&request)).await?;
            if wait {
                return job::wait(&client, made, out).await;
            }
            out.done(
                &made,
                &format!(
                    "Started job {0}, which moves {bucket} to {upstream}; wait for it with `mlgw job wait \
                     {0}`.",
                    made.id
                ),
            )
        }
        BucketCommand::Refresh { bucket, prefix } => {
            let refresh = format!("{}/refresh", path(&bucket));
            let request = RefreshRequest { prefix };
            let done: RefreshResult = client.call(Method::POST, &refresh, Some(&request)).await?;
            out.done(&done, &format!("Expired the cached answers for {} objects.", done.objects))
        }
    }
}

/// Interval between checks whether a bucket is clean.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Polls in a row without a confirmation by the origin after which the wait ends: 10 s, in which the write
/// is tried three times.
const STUCK_POLLS_MAX: u32 = 50;

/// Returns the message about an origin that does not confirm writes.
fn unconfirmed(bucket: &str, left: &DirtyInfo) -> String {
    let trouble = left.trouble.as_deref().unwrap_or("its answers do not confirm the writes");
    format!(
        "The upstream accepted these keys but does not return them; {} writes to {bucket} are kept and \
         served locally: {:?}. {trouble}",
        left.writes, left.unconfirmed
    )
}

/// Treatment of local writes whose keys another client wrote at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForeignWrites {
    /// Report them as an error.
    Report,
    /// Discard them, after a confirmation.
    Discard,
}

/// Waits until a bucket is clean, until the remaining writes all need a decision of the operator, or until
/// the origin stops confirming.
async fn flush(
    client: &Client,
    bucket: &str,
    foreign: ForeignWrites,
    global: &Global,
    out: Out,
) -> Result<(), CliError> {
    let dirty = format!("{}/dirty", path(bucket));
    let mut printed = None;
    let mut discarded = 0;
    let mut stuck_polls = 0;
    loop {
        let left: DirtyInfo = client.get(&dirty).await?;
        if left.writes == 0 {
            let what = match discarded {
                0 => format!("All writes to {bucket} are at its upstream."),
                gone => format!("All writes to {bucket} are at its upstream, except {gone} discarded ones."),
            };
            return out.done(&left, &what);
        }
        if left.writes == left.foreign_writes {
            if foreign == ForeignWrites::Report {
                // JSON output only. The table output is the error message.
                out.document(&left, |_| String::new())?;
                return Err(CliError::Failed(format!(
                    "Another client wrote these keys at the upstream before the local writes were sent; the \
                     upstream objects are unchanged, and this server serves the local ones: {:?}. Write the \
                     keys again or delete them, or discard the local writes with `mlgw bucket flush \
                     --discard {bucket}`.",
                    left.foreign
                )));
            }
            confirm(&format!("Discard {} local writes to {bucket}?", left.foreign_writes), global.yes)?;
            let done: DiscardResult =
                client.call(Method::POST, &format!("{}/discard", path(bucket)), None::<&()>).await?;
            discarded += done.writes;
            continue;
        }
        // A single poll may fall between two tries of a write that is about to succeed.
        stuck_polls = if left.stuck { stuck_polls + 1 } else { 0 };
        if stuck_polls == STUCK_POLLS_MAX {
            out.document(&left, |_| String::new())?;
            return Err(CliError::Failed(unconfirmed(bucket, &left)));
        }
        let now = (left.writes, left.trouble.clone());
        if printed.as_ref() != Some(&now) && !global.quiet {
            let trouble = left.trouble.map(|trouble| format!("; {trouble}"));
            let (trouble, bytes) = (trouble.unwrap_or_default(), ByteSize(left.bytes).human());
            crate::print_stderr(&format!("{} writes left, {bytes}{trouble}", left.writes));
            printed = Some(now);
        }
        mlgw_common::time::sleep(POLL_INTERVAL).await;
    }
}

async fn all(client: &Client) -> Result<BucketPage, CliError> {
    let mut whole = BucketPage { buckets: Vec::new(), next: None };
    loop {
        let path = match &whole.next {
            Some(after) => format!("/v1/buckets?after={}", path_segment(after)),
            None => "/v1/buckets".to_owned(),
        };
        let page: BucketPage = client.get(&path).await?;
        whole.buckets.extend(page.buckets);
        whole.next = page.next;
        if whole.next.is_none() {
            return Ok(whole);
        }
    }
}

fn path(bucket: &str) -> String {
    format!("/v1/buckets/{}", path_segment(bucket))
}

fn list(page: &BucketPage) -> String {
    let row = |bucket: &BucketInfo| {
        vec![
            bucket.name.clone(),
            bucket.objects.to_string(),
            ByteSize(bucket.bytes).human(),
            bucket.uploads.to_string(),
            bucket.region.clone(),
            bucket.created.clone(),
        ]
    };
    let rows: Vec<_> = page.buckets.iter().map(row).collect();
    columns(&["BUCKET", "OBJECTS", "SIZE", "UPLOADS", "REGION", "CREATED"], &rows)
}

fn quota(bucket: &BucketInfo) -> String {
    pairs(&[("bucket", bucket.name.clone()), ("quota", describe(bucket.quota, bucket.used))])
}

fn show(bucket: &BucketInfo) -> String {
    let bound = bucket.binding.as_ref().map_or_else(String::new, |binding| {
        let ttl = binding.ttl.as_ref().map(|ttl| format!(", ttl {ttl}")).unwrap_or_default();
        format!("{} to {}/{}{ttl}\n", binding.mode, binding.upstream, binding.prefix)
    });
    let bound = if bound.is_empty() { "no".to_owned() } else { bound.trim_end().to_owned() };
    pairs(&[
        ("bound", bound),
        ("bucket", bucket.name.clone()),
        ("region", bucket.region.clone()),
        ("created", bucket.created.clone()),
        ("objects", bucket.objects.to_string()),
        ("size", format!("{} ({} bytes)", ByteSize(bucket.bytes).human(), bucket.bytes)),
        ("uploads", format!("{} ({})", bucket.uploads, ByteSize(bucket.upload_bytes).human())),
        ("quota", describe(bucket.quota, bucket.used)),
        ("owner", bucket.owner.clone()),
        ("groups", groups(&bucket.ranges)),
    ])
}

/// The object groups of the ranges, each but the first with its first key.
fn groups(ranges: &[KeyRangeInfo]) -> String {
    let range = |KeyRangeInfo { from, group }: &KeyRangeInfo| {
        if from.is_empty() { group.to_string() } else { format!("{group} from {from:?}") }
    };
    if ranges.is_empty() { "-".to_owned() } else { ranges.iter().map(range).collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::groups;
    use mlgw_api::KeyRangeInfo;

    #[test]
    fn groups_are_shown_with_the_first_keys_of_their_ranges() {
        let range = |from: &str, group| KeyRangeInfo { from: from.to_owned(), group };
        assert_eq!(groups(&[range("", 2)]), "2");
        assert_eq!(groups(&[range("", 2), range("m", 3), range("t\n", 1)]), r#"2, 3 from "m", 1 from "t\n""#);
        assert_eq!(groups(&[]), "-", "an earlier version sends none");
    }
}
