//! `mlgw ls`: lists keys or buckets. Keys are printed page by page, as the pages arrive.
//!
//! A page that cannot be read ends the command with its error, after the rows of the pages before it. A
//! prefix without keys is an error. If the reader of standard output closes the pipe, the command ends
//! without an error.

use super::client::S3Client;
use super::listing::{KeyListing, buckets, no_key};
use super::path::{RemotePath, SCHEME, parse_listed};
use super::size::SizeForm;
use super::target::{S3Options, target};
use super::xml::{BucketLine, KeyLine, KeyPage};
use crate::output::{columns, json_line};
use crate::stdout::StdoutStream;
use crate::terminal_text::printable;
use crate::{CliError, Global, Out, OutputForm};
use clap::Args;
use serde::Serialize;

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Prefix of keys: s3://BUCKET/PREFIX or BUCKET/PREFIX. Without it the buckets are listed.
    #[arg(value_name = "PATH", value_parser = parse_listed, default_value = SCHEME)]
    #[arg(hide_default_value = true)]
    path: RemotePath,
    /// List all keys with the prefix, instead of grouping them at the next `/`.
    #[arg(long, short)]
    recursive: bool,
    #[command(flatten)]
    size: SizeForm,
    #[command(flatten)]
    s3: S3Options,
}

/// A line of JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum LsLine<'a> {
    Bucket { bucket: &'a str, created: &'a str },
    Prefix { bucket: &'a str, prefix: &'a str },
    Object { bucket: &'a str, key: &'a str, size: u64, modified: &'a str, etag: &'a str },
}

pub(crate) async fn run(args: LsArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let client = S3Client::new(target(&args.s3, global)?)?;
    let mut stdout = StdoutStream::open()?;
    if args.path.bucket.is_empty() {
        let text = list_buckets(&client, out.form).await?;
        return stdout.write(text.as_bytes()).map(|_| ());
    }
    let table = LsTable { path: &args.path, args: &args };
    let mut listing = match args.recursive {
        true => KeyListing::recursive(&client, &args.path),
        false => KeyListing::grouped(&client, &args.path),
    };
    let mut is_empty = true;
    while let Some(page) = listing.next_page().await? {
        if page.prefixes.is_empty() && page.objects.is_empty() {
            continue;
        }
        let text = match out.form {
            OutputForm::Json => json_lines(&args.path.bucket, &page)?,
            OutputForm::Table if is_empty => table.header() + &table.rows(&page),
            OutputForm::Table => table.rows(&page),
        };
        is_empty = false;
        if stdout.write(text.as_bytes())?.is_break() {
            return Ok(());
        }
    }
    match is_empty && !args.path.key.is_empty() {
        true => Err(no_key(&args.path)),
        false => Ok(()),
    }
}

async fn list_buckets(client: &S3Client, form: OutputForm) -> Result<String, CliError> {
    let buckets = buckets(client).await?;
    match form {
        OutputForm::Table => {
            let row = |bucket: BucketLine| vec![short_time(&bucket.creation_date), bucket.name];
            let rows: Vec<_> = buckets.into_iter().map(row).collect();
            Ok(columns(&["CREATED", "BUCKET"], &rows))
        }
        OutputForm::Json => buckets
            .iter()
            .map(|bucket| json_line(&LsLine::Bucket { bucket: &bucket.name, created: &bucket.creation_date }))
            .collect(),
    }
}

/// The table of a listing. Its columns have a fixed width, because it is printed page by page.
struct LsTable<'a> {
    path: &'a RemotePath,
    args: &'a LsArgs,
}

impl LsTable<'_> {
    fn line(&self, modified: &str, size: &str, name: &str) -> String {
        let (modified, name) = (printable(modified), printable(name));
        let width = self.args.size.width();
        format!("{modified:20}  {size:>width$}  {name}\n")
    }

    fn header(&self) -> String {
        self.line("MODIFIED", "SIZE", "KEY")
    }

    fn rows(&self, page: &KeyPage) -> String {
        let mut rows: Vec<(&str, String)> = Vec::with_capacity(page.prefixes.len() + page.objects.len());
        rows.extend(page.prefixes.iter().map(|prefix| (&**prefix, self.line("", "PRE", self.name(prefix)))));
        rows.extend(page.objects.iter().map(|object| (&*object.key, self.object(object))));
        rows.sort_by_key(|(key, _)| *key);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn object(&self, object: &KeyLine) -> String {
        let size = self.args.size.text(object.size);
        self.line(&short_time(&object.modified), &size, self.name(&object.key))
    }

    /// Returns the part of a key that is shown: after the last `/` of the listed prefix, unless all keys are
    /// listed.
    fn name<'k>(&self, key: &'k str) -> &'k str {
        let start = self.path.key.rfind('/').map_or(0, |slash| slash + 1);
        let start = if self.args.recursive { 0 } else { start };
        key.get(start..).unwrap_or(key)
    }
}

/// Returns a time without fractions of a second.
fn short_time(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => time.to_owned(),
    }
}

fn json_lines(bucket: &str, page: &KeyPage) -> Result<String, CliError> {
    let prefixes = page.prefixes.iter().map(|prefix| (prefix, LsLine::Prefix { bucket, prefix }));
    let objects = page.objects.iter().map(|object| {
        let KeyLine { key, size, modified, etag } = object;
        (key, LsLine::Object { bucket, key, size: *size, modified, etag })
    });
    let mut lines: Vec<_> = prefixes.chain(objects).collect();
    lines.sort_by_key(|(key, _)| *key);
    lines.iter().map(|(_, line)| json_line(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::{LsArgs, LsTable, json_lines};
    use crate::s3::path::RemotePath;
    use crate::s3::size::SizeForm;
    use crate::s3::target::S3Options;
    use crate::s3::xml::{KeyLine, KeyPage};

    fn page() -> KeyPage {
        let object = |key: &str, size| KeyLine {
            key: key.into(),
            size,
            modified: "2026-11-20T10:00:00.000Z".into(),
            etag: "e".into(),
        };
        KeyPage {
            prefixes: vec!["a/m/".into()],
            objects: vec![object("a/b", 5), object("a/z\n", 3 << 20)],
            next: None,
        }
    }

    fn args(path: &RemotePath) -> LsArgs {
        let (recursive, size) = (false, SizeForm::default());
        LsArgs { path: path.clone(), recursive, size, s3: S3Options::default() }
    }

    #[test]
    fn rows_are_in_the_order_of_keys_and_relative_to_the_prefix() {
        let path = RemotePath::new("bucket", "a/");
        let short = args(&path);
        let table = LsTable { path: &path, args: &short };
        assert_eq!(
            table.header() + &table.rows(&page()),
            "MODIFIED                    SIZE  KEY\n\
             2026-11-20T10:00:00Z         5 B  b\n\
             \x20                            PRE  m/\n\
             2026-11-20T10:00:00Z     3.0 MiB  z\\n\n"
        );
        let odd = table.line("\x1b[2J", "1 B", "k\u{9b}");
        assert_eq!(odd, format!("{:20}  {:>10}  k\\u{{9b}}\n", "\\u{1b}[2J", "1 B"));
        let long = LsArgs { recursive: true, size: SizeForm::BYTES, ..args(&path) };
        let table = LsTable { path: &path, args: &long };
        assert!(table.rows(&page()).contains("3145728  a/z\\n\n"), "{}", table.rows(&page()));
    }

    #[test]
    fn json_has_a_line_for_each_entry() {
        let lines = json_lines("bucket", &page()).unwrap();
        let time = r#""modified":"2026-11-20T10:00:00.000Z","etag":"e""#;
        let expected = [
            &format!(r#"{{"bucket":"bucket","key":"a/b","size":5,{time}}}"#),
            r#"{"bucket":"bucket","prefix":"a/m/"}"#,
            &format!(r#"{{"bucket":"bucket","key":"a/z\n","size":3145728,{time}}}"#),
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    }
}
