//! What is rehearsed on: a trace, or a generated workload. Both can be gone through again and again, and neither is in memory.

use super::text::unreadable;
use crate::cli::CliError;
use mlgw_policies::Access;
use mlgw_policies::rehearse::telling::{Told, told};
use mlgw_policies::rehearse::workload::{Profile, Settings, whole_bytes, workload};
use mlgw_policies::trace::TraceReader;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// See the module.
pub(super) enum Scenario {
    /// A file of recorded accesses.
    Trace(PathBuf),
    /// What a profile generates.
    Profile(Profile, Settings),
}

impl Scenario {
    /// What results call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Trace(path) => {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                name.unwrap_or_else(|| path.display().to_string())
            }
            Self::Profile(profile, _) => profile.name().to_owned(),
        }
    }

    /// The seed that it is generated with; 0 for a trace.
    pub(super) fn seed(&self) -> u64 {
        match self {
            Self::Trace(_) => 0,
            Self::Profile(_, settings) => settings.seed,
        }
    }

    /// What each caller would tell beforehand of its reads; nothing of a trace.
    ///
    /// # Errors
    /// When the workload cannot be made, or somebody reads more than a plan may say.
    pub(super) fn told(&self) -> Result<Vec<Told>, CliError> {
        let Self::Profile(profile, settings) = self else { return Ok(Vec::new()) };
        let made = workload(*profile, settings).map_err(|e| CliError::Usage(e.to_string()))?;
        told(&made.scene, made.requests).map_err(|error| CliError::Usage(format!("--plans: {error}")))
    }

    /// Tells `take` of every access, in order, and of which epoch it is, from 0. The bytes that shares of a cache are shares of are
    /// answered, if they are known beforehand.
    ///
    /// # Errors
    /// When the trace cannot be read or the workload not be made.
    pub(super) fn each(&self, mut take: impl FnMut(&Access<'_>, u32)) -> Result<Option<u64>, CliError> {
        match self {
            Self::Trace(path) => each_of_trace(path, |access| take(access, 0)).map(|()| None),
            Self::Profile(profile, settings) => {
                let made = workload(*profile, settings).map_err(|e| CliError::Usage(e.to_string()))?;
                for request in made.requests {
                    take(&made.scene.access(&request), request.epoch);
                }
                Ok(Some(whole_bytes(*profile, settings, &made.scene)))
            }
        }
    }
}

/// Bytes of a trace that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Tells `take` of every access of a trace. One that is torn at its end holds up to there.
///
/// # Errors
/// When it is none, or damaged.
pub(super) fn each_of_trace(path: &Path, mut take: impl FnMut(&Access<'_>)) -> Result<(), CliError> {
    let failed = |error: String| CliError::Failed(format!("{}: {error}", path.display()));
    let mut file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut reader = TraceReader::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let bytes = file.read(&mut piece).map_err(|error| unreadable(path, &error))?;
        if bytes == 0 {
            break;
        }
        reader.push(&piece[..bytes]);
        while let Some(access) = reader.read().map_err(|error| failed(error.to_string()))? {
            take(&access);
        }
    }
    let is_begun = reader.began_ms().is_some();
    match reader.finish() {
        end if !is_begun => Err(failed(format!("{} bytes are no trace", end.torn_bytes))),
        end if end.events == 0 => Err(failed("the trace has no accesses".to_owned())),
        _ => Ok(()),
    }
}
