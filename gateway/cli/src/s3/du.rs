//! `mlgw du`: sums the sizes of the objects below a prefix, and on request below each longer prefix that ends
//! with `/`.
//!
//! Keys are listed in byte order, so all keys with a prefix follow one another. A prefix is printed as soon
//! as the listing leaves it, and only the prefixes of the current key are kept.
//!
//! A page that cannot be listed ends the command with its error. Rows of prefixes that were printed before
//! are complete; the row of the whole prefix, the last one, is missing.

use super::client::S3Client;
use super::listing::KeyListing;
use super::path::{RemotePath, parse_prefix};
use super::size::SizeForm;
use super::target::{S3Options, target};
use crate::output::json_line;
use crate::progress::CommandProgress;
use crate::stdout::StdoutStream;
use crate::terminal_text::printable;
use crate::{CliError, Global, Out, OutputForm};
use clap::Args;
use serde::Serialize;

#[derive(Debug, Args)]
pub struct DuArgs {
    /// Prefix of keys: s3://BUCKET/PREFIX or BUCKET/PREFIX.
    #[arg(value_name = "PATH", value_parser = parse_prefix)]
    path: RemotePath,
    /// Also print the prefixes that end with `/` below it, up to this depth.
    #[arg(long, short, alias = "max-depth", default_value_t = 0, value_name = "N")]
    depth: usize,
    #[command(flatten)]
    size: SizeForm,
    #[command(flatten)]
    s3: S3Options,
}

/// Usage of one prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PrefixUsage {
    path: String,
    objects: u64,
    bytes: u64,
}

pub(crate) async fn run(args: DuArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let client = S3Client::new(target(&args.s3, global)?)?;
    let mut stdout = StdoutStream::open()?;
    let progress = CommandProgress::new(out.quiet);
    let mut usage = UsageByPrefix::new(&args.path, args.depth);
    let mut listing = KeyListing::recursive(&client, &args.path);
    let mut text = match out.form {
        OutputForm::Table => line(&args, "SIZE", "OBJECTS", "PATH"),
        OutputForm::Json => String::new(),
    };
    while let Some(page) = listing.next_page().await? {
        for object in &page.objects {
            for left in usage.add(&object.key, object.size) {
                text += &row(&args, out.form, &left)?;
            }
        }
        progress.step("listing keys", usage.objects(), 0);
        // Rows share the terminal with the progress.
        if !text.is_empty() && args.depth > 0 {
            progress.done();
            if stdout.write(std::mem::take(&mut text).as_bytes())?.is_break() {
                return Ok(());
            }
        }
    }
    progress.done();
    for left in usage.finish() {
        text += &row(&args, out.form, &left)?;
    }
    stdout.write(text.as_bytes()).map(|_| ())
}

fn line(args: &DuArgs, size: &str, objects: &str, path: &str) -> String {
    let width = args.size.width();
    format!("{size:>width$}  {objects:>10}  {}\n", printable(path))
}

fn row(args: &DuArgs, form: OutputForm, usage: &PrefixUsage) -> Result<String, CliError> {
    match form {
        OutputForm::Table => {
            Ok(line(args, &args.size.text(usage.bytes), &usage.objects.to_string(), &usage.path))
        }
        OutputForm::Json => json_line(usage),
    }
}

/// Sums of the whole prefix, and of the longer prefixes of the current key.
struct UsageByPrefix {
    /// Length of the part of each key up to the last `/` of the prefix.
    base_bytes: usize,
    depth: usize,
    bucket: RemotePath,
    /// Sums with the length of each prefix, the shortest first. The first is that of the whole prefix.
    open: Vec<(usize, PrefixUsage)>,
    /// Previous key.
    last: String,
}

impl UsageByPrefix {
    fn new(prefix: &RemotePath, depth: usize) -> Self {
        let whole = PrefixUsage { path: prefix.to_string(), objects: 0, bytes: 0 };
        Self {
            base_bytes: prefix.key.rfind('/').map_or(0, |slash| slash + 1),
            depth,
            bucket: prefix.with_key(""),
            open: vec![(0, whole)],
            last: String::new(),
        }
    }

    /// Adds an object. Returns the prefixes that are complete, the longest first.
    fn add(&mut self, key: &str, bytes: u64) -> Vec<PrefixUsage> {
        let mut left = Vec::new();
        while let Some((length, _)) = self.open.last() {
            if key.as_bytes().get(..*length) == self.last.as_bytes().get(..*length) {
                break;
            }
            left.extend(self.open.pop().map(|(_, usage)| usage));
        }
        assert!(!self.open.is_empty(), "the prefix itself contains every key");
        let known = self.open.last().map_or(0, |(length, _)| *length).max(self.base_bytes);
        let slashes = key.match_indices('/').map(|(slash, _)| slash + 1).filter(|end| *end > known);
        for end in slashes.take(self.depth.saturating_sub(self.open.len() - 1)) {
            let path = self.bucket.with_key(&key[..end]).to_string();
            self.open.push((end, PrefixUsage { path, objects: 0, bytes: 0 }));
        }
        for (_, usage) in &mut self.open {
            usage.objects += 1;
            usage.bytes += bytes;
        }
        key.clone_into(&mut self.last);
        left
    }

    fn objects(&self) -> u64 {
        self.open.first().map_or(0, |(_, usage)| usage.objects)
    }

    /// Returns the prefixes that are still open, the longest first, and the whole prefix last.
    fn finish(self) -> impl Iterator<Item = PrefixUsage> {
        self.open.into_iter().rev().map(|(_, usage)| usage)
    }
}

#[cfg(test)]
mod tests {
    use super::{PrefixUsage, UsageByPrefix};
    use crate::s3::path::RemotePath;

    fn usage(prefix: &str, depth: usize, keys: &[&str]) -> Vec<String> {
        let mut usage = UsageByPrefix::new(&RemotePath::new("b", prefix), depth);
        let mut rows = Vec::new();
        for key in keys {
            rows.extend(usage.add(key, 10));
        }
        rows.extend(usage.finish());
        let row = |row: &PrefixUsage| format!("{} {} {}", row.path, row.objects, row.bytes);
        rows.iter().map(row).collect()
    }

    #[test]
    fn prefixes_are_complete_when_the_listing_leaves_them() {
        let keys = ["a/1", "a/b/1", "a/b/2", "a/c/1", "a0", "d/e/f/g", "d/e/f/h", "z"];
        assert_eq!(usage("", 0, &keys), ["s3://b 8 80"]);
        assert_eq!(usage("", 1, &keys), ["s3://b/a/ 4 40", "s3://b/d/ 2 20", "s3://b 8 80"]);
        let deep = [
            "s3://b/a/b/ 2 20",
            "s3://b/a/c/ 1 10",
            "s3://b/a/ 4 40",
            "s3://b/d/e/ 2 20",
            "s3://b/d/ 2 20",
            "s3://b 8 80",
        ];
        assert_eq!(usage("", 2, &keys), deep);
    }

    #[test]
    fn depth_counts_from_the_prefix() {
        let keys = ["p/q/a/1", "p/q/a/2/3", "p/qr/b/1", "p/qr/b/2"];
        assert_eq!(usage("p/q", 1, &keys), ["s3://b/p/q/ 2 20", "s3://b/p/qr/ 2 20", "s3://b/p/q 4 40"]);
        assert_eq!(usage("p/q/", 1, &keys[..2]), ["s3://b/p/q/a/ 2 20", "s3://b/p/q/ 2 20"]);
        assert_eq!(usage("p/q/", 0, &[]), ["s3://b/p/q/ 0 0"]);
        assert_eq!(
            usage("", 1, &["/x", "//y", "é/1", "é/2"]),
            ["s3://b// 2 20", "s3://b/é/ 2 20", "s3://b 4 40"]
        );
    }
}
