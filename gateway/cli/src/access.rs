//! The command `mlgw access key …`.

use super::client::Client;
use super::output::{Out, columns, confirm, pairs};
use super::quota::describe;
use super::server_name::ServerName;
use super::word_arg::word_of;
use super::{CliError, Global, discover};
use clap::{Args, Subcommand};
use http::Method;
use mlgw_api::{AccessKeyRole, CreatedKey, KeyChange, KeyInfo, KeyList, NewKey, QuotaRequest, UsedInfo};
use mlgw_common::ByteSize;

#[derive(Debug, Subcommand)]
pub enum AccessCommand {
    /// Access keys: create, list, update, delete.
    #[command(subcommand)]
    Key(KeyCommand),
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List all keys.
    List,
    /// Show a key.
    Show {
        /// Access key id.
        #[arg(add = ServerName::AccessKey)]
        access_key: String,
    },
    /// Create a key. Its secret is shown once.
    Create(CreateArgs),
    /// Change a key. Omitted properties are kept.
    Update(UpdateArgs),
    /// Delete a key.
    Delete {
        /// Access key id.
        #[arg(add = ServerName::AccessKey)]
        access_key: String,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Permitted operations: `read` (read and list objects), `write` (also write and delete objects) or
    /// `admin` (also manage buckets and use the admin API).
    #[arg(long, default_value = "read", value_parser = word_of(AccessKeyRole::ALL, AccessKeyRole::name))]
    role: AccessKeyRole,
    /// Restrict it to buckets that match this glob; may be repeated.
    #[arg(long = "bucket", value_name = "GLOB", add = ServerName::Bucket)]
    buckets: Vec<String>,
    /// Restrict it to keys with a prefix that matches this glob; may be repeated.
    #[arg(long = "prefix", value_name = "GLOB")]
    prefixes: Vec<String>,
    /// Description of its purpose.
    #[arg(long, default_value = "")]
    description: String,
    #[command(flatten)]
    quota: QuotaArgs,
    /// Access key id. Default: generated.
    #[arg(long, value_name = "ID")]
    access_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// Access key id.
    #[arg(add = ServerName::AccessKey)]
    access_key: String,
    /// Permitted operations, as in `create`.
    #[arg(long, value_parser = word_of(AccessKeyRole::ALL, AccessKeyRole::name))]
    role: Option<AccessKeyRole>,
    /// Restrict it to buckets that match this glob; may be repeated.
    #[arg(
        long = "bucket", value_name = "GLOB", conflicts_with = "all_buckets", add = ServerName::Bucket
    )]
    buckets: Option<Vec<String>>,
    /// Remove the restriction to buckets.
    #[arg(long)]
    all_buckets: bool,
    /// Restrict it to keys with a prefix that matches this glob; may be repeated.
    #[arg(long = "prefix", value_name = "GLOB", conflicts_with = "all_prefixes")]
    prefixes: Option<Vec<String>>,
    /// Remove the restriction to prefixes.
    #[arg(long)]
    all_prefixes: bool,
    /// Description of its purpose.
    #[arg(long)]
    description: Option<String>,
    /// Disable it.
    #[arg(long, conflicts_with = "enable")]
    disable: bool,
    /// Enable it again.
    #[arg(long)]
    enable: bool,
    #[command(flatten)]
    quota: QuotaArgs,
}

#[derive(Debug, Args)]
struct QuotaArgs {
    /// Maximum bytes of its objects, such as 10GiB, or `none`.
    #[arg(long, value_name = "SIZE")]
    quota_bytes: Option<String>,
    /// Maximum number of its objects, or `none`.
    #[arg(long, value_name = "N")]
    quota_objects: Option<String>,
}

impl From<QuotaArgs> for QuotaRequest {
    fn from(args: QuotaArgs) -> Self {
        Self { bytes: args.quota_bytes, objects: args.quota_objects }
    }
}

pub(super) async fn run(command: AccessCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let AccessCommand::Key(command) = command;
    let client = Client::new(discover::target(global)?)?;
    match command {
        KeyCommand::List => out.document(&client.get::<KeyList>("/v1/access/keys").await?, list),
        KeyCommand::Show { access_key } => {
            out.document(&client.get::<KeyInfo>(&path(&access_key)).await?, show)
        }
        KeyCommand::Create(args) => {
            let new = NewKey {
                access_key: args.access_key,
                secret_access_key: None,
                role: Some(args.role),
                buckets: args.buckets,
                prefixes: args.prefixes,
                description: args.description,
                quota: args.quota.into(),
            };
            let created: CreatedKey = client.call(Method::POST, "/v1/access/keys", Some(&new)).await?;
            out.document(&created, |created| {
                let note = if out.quiet { "" } else { "# The secret is not shown again.\n" };
                let CreatedKey { secret_access_key, key } = created;
                format!(
                    "export AWS_ACCESS_KEY_ID={}\nexport AWS_SECRET_ACCESS_KEY={secret_access_key}\n{note}",
                    key.access_key
                )
            })
        }
        KeyCommand::Update(args) => {
            let path = path(&args.access_key);
            let key: KeyInfo = client.call(Method::PATCH, &path, Some(&change(args)?)).await?;
            if out.quiet { Ok(()) } else { out.document(&key, show) }
        }
        KeyCommand::Delete { access_key } => {
            confirm(&format!("Delete the access key {access_key}?"), global.yes)?;
            let key: KeyInfo = client.call(Method::DELETE, &path(&access_key), None::<&()>).await?;
            out.done(&key, &format!("Deleted the access key {access_key}."))
        }
    }
}

fn change(args: UpdateArgs) -> Result<KeyChange, CliError> {
    let cleared = |all: bool, globs: Option<Vec<String>>| if all { Some(Vec::new()) } else { globs };
    let change = KeyChange {
        role: args.role,
        buckets: cleared(args.all_buckets, args.buckets),
        prefixes: cleared(args.all_prefixes, args.prefixes),
        description: args.description,
        disabled: (args.disable || args.enable).then_some(args.disable),
        quota: args.quota.into(),
    };
    let nothing = change.role.is_none()
        && change.buckets.is_none()
        && change.prefixes.is_none()
        && change.description.is_none()
        && change.disabled.is_none()
        && change.quota == QuotaRequest::default();
    if nothing {
        let message = "nothing to change: give --role, --bucket, --prefix, --description, --disable, \
        --enable, --quota-bytes or --quota-objects";
        return Err(CliError::Usage(message.to_owned()));
    }
    Ok(change)
}

fn path(access_key: &str) -> String {
    format!("/v1/access/keys/{}", super::path_segment(access_key))
}

fn globs(globs: &[String]) -> String {
    if globs.is_empty() { "*".to_owned() } else { globs.join(" ") }
}

fn state(key: &KeyInfo) -> &'static str {
    match (key.root, key.disabled) {
        (true, _) => "root",
        (false, true) => "disabled",
        (false, false) => "enabled",
    }
}

fn used(used: UsedInfo) -> String {
    format!("{}, {} objects", ByteSize(used.bytes).human(), used.objects)
}

fn list(list: &KeyList) -> String {
    let row = |key: &KeyInfo| {
        vec![
            key.access_key.clone(),
            key.role.to_string(),
            state(key).to_owned(),
            globs(&key.buckets),
            globs(&key.prefixes),
            key.description.clone(),
        ]
    };
    let rows: Vec<_> = list.keys.iter().map(row).collect();
    columns(&["ACCESS KEY", "ROLE", "STATE", "BUCKETS", "PREFIXES", "DESCRIPTION"], &rows)
}

fn show(key: &KeyInfo) -> String {
    pairs(&[
        ("access key", key.access_key.clone()),
        ("role", key.role.to_string()),
        ("state", state(key).to_owned()),
        ("buckets", globs(&key.buckets)),
        ("prefixes", globs(&key.prefixes)),
        ("description", key.description.clone()),
        ("created", key.created.clone().unwrap_or_default()),
        ("quota", describe(key.quota, key.used.unwrap_or_default())),
        ("used", key.used.map_or_else(|| "not counted".to_owned(), used)),
    ])
}
