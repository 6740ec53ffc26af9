//! `mlgw bucket …`

use super::client::Client;
use super::output::{Out, columns, confirm, pairs};
use super::{CliError, Global, discover, path_segment};
use crate::admin::{BucketInfo, BucketPage, NewBucketRequest};
use crate::config::ByteSize;
use clap::Subcommand;
use http::Method;

#[derive(Debug, Subcommand)]
pub(super) enum BucketCommand {
    /// All buckets.
    List,
    /// One bucket and what it holds.
    Show {
        /// Its name.
        bucket: String,
    },
    /// A new bucket.
    Create {
        /// Its name.
        bucket: String,
        /// Its region; the server's when not given.
        #[arg(long)]
        region: Option<String>,
    },
    /// Delete an empty bucket.
    Delete {
        /// Its name.
        bucket: String,
    },
}

pub(super) async fn run(command: BucketCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    match command {
        BucketCommand::List => out.document(&all(&client).await?, list),
        BucketCommand::Show { bucket } => {
            out.document(&client.get::<BucketInfo>(&path(&bucket)).await?, show)
        }
        BucketCommand::Create { bucket, region } => {
            let new = NewBucketRequest { name: bucket.clone(), region };
            let created: BucketInfo = client.call(Method::POST, "/v1/buckets", Some(&new)).await?;
            out.done(&created, &format!("Created the bucket {bucket}."))
        }
        BucketCommand::Delete { bucket } => {
            confirm(&format!("Delete the bucket {bucket}?"), global.yes)?;
            let gone: BucketInfo = client.call(Method::DELETE, &path(&bucket), None::<&()>).await?;
            out.done(&gone, &format!("Deleted the bucket {bucket}."))
        }
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

fn show(bucket: &BucketInfo) -> String {
    pairs(&[
        ("bucket", bucket.name.clone()),
        ("region", bucket.region.clone()),
        ("created", bucket.created.clone()),
        ("objects", bucket.objects.to_string()),
        ("size", format!("{} ({} bytes)", ByteSize(bucket.bytes).human(), bucket.bytes)),
        ("uploads", format!("{} ({})", bucket.uploads, ByteSize(bucket.upload_bytes).human())),
        ("owner", bucket.owner.clone()),
    ])
}
