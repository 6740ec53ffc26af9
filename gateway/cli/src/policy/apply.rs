//! The commands `mlgw policy apply`, `rollback`, `freeze` and `unfreeze`.

use super::text::read;
use crate::client::Client;
use crate::output::Out;
use crate::server_name::ServerName;
use crate::{CliError, Global, discover};
use clap::Args;
use http::Method;
use mlgw_api::{ApplyRequest, FreezeRequest, PolicyChange, PolicyText, RollbackRequest};
use mlgw_common::limits::POLICY_FILE_BYTES_MAX;
use mlgw_policies::language::is_framework;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Files of a policy to apply or plan.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Policies in YAML or JSON, highest priority first. They replace all running ones. Default: keep them.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Framework plugins. They replace the running ones. Default: keep them.
    #[arg(long, value_name = "FILE")]
    framework: Vec<PathBuf>,
    /// Remove the running framework plugins.
    #[arg(long, conflicts_with = "framework")]
    without_frameworks: bool,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    files: FilesArgs,
    #[command(flatten)]
    change: FreezeArgs,
}

#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// Version whose files to run, or 0 for the built-in policy. Default: the previous version.
    #[arg(value_name = "VERSION", add = ServerName::PolicyVersion)]
    version: Option<u64>,
    #[command(flatten)]
    change: FreezeArgs,
}

#[derive(Debug, Args)]
pub struct FreezeArgs {
    /// Require that this version runs, so that concurrent changes are not overwritten.
    #[arg(long, value_name = "VERSION", add = ServerName::PolicyVersion)]
    if_version: Option<u64>,
    /// Message for the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    message: String,
}

/// Files of a request. `None` keeps the running files of that kind.
pub(super) struct PolicyTexts {
    pub(super) files: Option<Vec<PolicyText>>,
    pub(super) frameworks: Option<Vec<PolicyText>>,
}

impl FilesArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// When no file is given, or one cannot be read or is of the other kind.
    pub(super) fn read(&self) -> Result<PolicyTexts, CliError> {
        if self.files.is_empty() && self.framework.is_empty() && !self.without_frameworks {
            let message = "nothing to apply: give a FILE, --framework FILE or --without-frameworks";
            return Err(CliError::Usage(message.to_owned()));
        }
        self.read_any()
    }

    /// Reads the files, if any.
    ///
    /// # Errors
    /// When a file cannot be read, or is of the other kind.
    pub(super) fn read_any(&self) -> Result<PolicyTexts, CliError> {
        let files = self.files.iter().map(|path| policy_text(path)).collect::<Result<Vec<_>, _>>()?;
        let plugins = self.framework.iter().map(|path| text(path)).collect::<Result<Vec<_>, _>>()?;
        let frameworks = (self.without_frameworks || !plugins.is_empty()).then_some(plugins);
        Ok(PolicyTexts { files: (!files.is_empty()).then_some(files), frameworks })
    }
}

/// Reads a policy file, which must be no framework plugin.
fn policy_text(path: &Path) -> Result<PolicyText, CliError> {
    let file = text(path)?;
    if is_framework(&file.text) {
        let message = format!("{0} is a framework plugin: give it as --framework {0}", file.name);
        return Err(CliError::Usage(message));
    }
    Ok(file)
}

/// Reads a policy file or a framework plugin.
fn text(path: &Path) -> Result<PolicyText, CliError> {
    let (name, text) = (path.display().to_string(), read(path)?);
    if text.len() > POLICY_FILE_BYTES_MAX {
        let bytes = text.len();
        return Err(CliError::Failed(format!(
            "{name}: the file has {bytes} bytes (at most {POLICY_FILE_BYTES_MAX})"
        )));
    }
    Ok(PolicyText { name, text })
}

pub(super) async fn run(args: ApplyArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let PolicyTexts { files, frameworks } = args.files.read()?;
    let FreezeArgs { if_version, message } = args.change;
    let request = ApplyRequest { files, frameworks, if_version, message };
    change("/v1/policy", &request, global, out).await
}

pub(super) async fn roll_back(args: RollbackArgs, global: &Global, out: Out) -> Result<(), CliError> {
    let FreezeArgs { if_version, message } = args.change;
    let request = RollbackRequest { version: args.version, if_version, message };
    change("/v1/policy/rollback", &request, global, out).await
}

pub(super) async fn freeze(
    args: FreezeArgs,
    verb: &'static str,
    global: &Global,
    out: Out,
) -> Result<(), CliError> {
    let request = FreezeRequest { if_version: args.if_version, message: args.message };
    change(&format!("/v1/policy/{verb}"), &request, global, out).await
}

async fn change(path: &str, request: &impl Serialize, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let changed: PolicyChange = client.call(Method::POST, path, Some(request)).await?;
    out.done(&changed, &change_summary(&changed))
}

fn change_summary(changed: &PolicyChange) -> String {
    match &changed.version {
        Some(version) if changed.changed => {
            format!("Applied version {} of the policy: {}.", version.version, version.changes)
        }
        Some(version) => format!("Nothing changed: version {} of the policy runs already.", version.version),
        None => "Nothing changed: the built-in policy runs already.".to_owned(),
    }
}
