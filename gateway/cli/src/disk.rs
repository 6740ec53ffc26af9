//! The command `mlgw disk …`.

use super::client::Client;
use super::output::{Out, counted};
use super::{CliError, Global, discover};
use clap::Subcommand;
use http::Method;
use mlgw_api::{ReplaceDiskRequest, ReplacedDiskInfo};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Take an empty directory in place of a lost segment directory of a running node of a cluster. Its
    /// segments are copied from other nodes.
    Replace {
        /// Path of the directory, as in the configuration of the node.
        directory: PathBuf,
    },
}

pub(super) async fn run(command: DiskCommand, global: &Global, out: Out) -> Result<(), CliError> {
    let DiskCommand::Replace { directory } = command;
    let directory = std::path::absolute(&directory)
        .map_err(|error| CliError::Usage(format!("{}: {error}", directory.display())))?;
    let client = Client::new(discover::target(global)?)?;
    let request = ReplaceDiskRequest { directory: directory.display().to_string(), accept_loss: global.yes };
    let replaced: ReplacedDiskInfo = client.call(Method::POST, "/v1/disks/replace", Some(&request)).await?;
    out.done(&replaced, &sentence(&replaced))
}

fn sentence(replaced: &ReplacedDiskInfo) -> String {
    let ReplacedDiskInfo { directory, copied_again, lost } = replaced;
    let lost = match lost.len() {
        0 => String::new(),
        count => format!(" The only copies of {} are lost.", counted(count as u64, "segment")),
    };
    let copied = counted(*copied_again, "segment");
    format!(
        "{directory} is used from now on. This node copies {copied} from other nodes; `mlgw cluster status` \
         shows how many are left.{lost}"
    )
}

#[cfg(test)]
mod tests {
    use super::{ReplacedDiskInfo, sentence};

    #[test]
    fn what_is_lost_is_stated() {
        let replaced = |lost| ReplacedDiskInfo { directory: "/d".to_owned(), copied_again: 12, lost };
        let whole = sentence(&replaced(vec![]));
        assert!(
            whole.starts_with("/d is used from now on. This node copies 12 segments ")
                && !whole.contains("lost")
        );
        assert!(sentence(&replaced(vec![7, 8])).ends_with(" The only copies of 2 segments are lost."));
    }
}
