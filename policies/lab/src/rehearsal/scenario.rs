//! What is rehearsed on: a trace, or a generated workload. Both can be gone through again and again, and
//! neither is in memory.

use super::{RehearsalError, unreadable};
use mlgw_policies::Access;
use mlgw_policies::rehearse::telling::{Told, told};
use mlgw_policies::rehearse::workload::{Profile, Settings, whole_bytes, workload};
use mlgw_policies::trace::TraceReader;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Debug)]
pub enum Scenario {
    /// Recorded accesses.
    Trace {
        /// What results call it.
        name: String,
        /// Its files, in the order of time, each a trace by itself.
        files: Vec<PathBuf>,
    },
    /// What a profile generates.
    Profile(Profile, Settings),
}

impl Scenario {
    /// A trace of one file, which gives it its name.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        Self::Trace { name, files: vec![path.to_owned()] }
    }

    /// What results call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Trace { name, .. } => name.clone(),
            Self::Profile(profile, _) => profile.name().to_owned(),
        }
    }

    /// Whether it was recorded.
    #[must_use]
    pub fn is_trace(&self) -> bool {
        matches!(self, Self::Trace { .. })
    }

    /// The seed that it is generated with; 0 for a trace.
    #[must_use]
    pub fn seed(&self) -> u64 {
        match self {
            Self::Trace { .. } => 0,
            Self::Profile(_, settings) => settings.seed,
        }
    }

    /// What each caller would tell beforehand of its reads; nothing of a trace.
    ///
    /// # Errors
    /// When the workload cannot be made, or somebody reads more than a plan may say.
    pub fn told(&self) -> Result<Vec<Told>, RehearsalError> {
        let Self::Profile(profile, settings) = self else { return Ok(Vec::new()) };
        let made = workload(*profile, settings).map_err(|e| RehearsalError::Asked(e.to_string()))?;
        told(&made.scene, made.requests).map_err(|error| RehearsalError::Asked(format!("plans: {error}")))
    }

    /// Tells `take` of every access, in order, and of which epoch it is, from 0. The bytes that shares of a
    /// cache are shares of are answered, if they are known beforehand.
    ///
    /// # Errors
    /// When the trace cannot be read or the workload not be made; those of `take`, which end it.
    pub fn each(
        &self,
        mut take: impl FnMut(&Access<'_>, u32) -> Result<(), RehearsalError>,
    ) -> Result<Option<u64>, RehearsalError> {
        match self {
            Self::Trace { files, .. } => each_of_trace(files, |access| take(access, 0)).map(|()| None),
            Self::Profile(profile, settings) => {
                let made = workload(*profile, settings).map_err(|e| RehearsalError::Asked(e.to_string()))?;
                for request in made.requests {
                    take(&made.scene.access(&request), request.epoch)?;
                }
                Ok(Some(whole_bytes(*profile, settings, &made.scene)))
            }
        }
    }
}

/// Bytes of a trace that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Tells `take` of every access of a trace's files. One that is torn at its end holds up to there.
///
/// # Errors
/// When one is no trace, or damaged, or all of them have nothing; those of `take`.
pub fn each_of_trace(
    files: &[PathBuf],
    mut take: impl FnMut(&Access<'_>) -> Result<(), RehearsalError>,
) -> Result<(), RehearsalError> {
    let mut accesses = 0;
    for path in files {
        accesses += each_of_file(path, &mut take)?;
    }
    match (accesses, files) {
        (0, [path]) => Err(RehearsalError::Trace(format!("{}: the trace has no accesses", path.display()))),
        (0, _) => Err(RehearsalError::Trace("the trace has no accesses".to_owned())),
        _ => Ok(()),
    }
}

/// The same for a file. Returns how many accesses it has: none of one that power failed upon before anything
/// was written.
fn each_of_file(
    path: &Path,
    take: &mut impl FnMut(&Access<'_>) -> Result<(), RehearsalError>,
) -> Result<u64, RehearsalError> {
    let failed = |error: String| RehearsalError::Trace(format!("{}: {error}", path.display()));
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
            take(&access)?;
        }
    }
    let is_begun = reader.began_ms().is_some();
    match reader.finish() {
        end if !is_begun && end.torn_bytes > 0 => {
            Err(failed(format!("{} bytes are no trace", end.torn_bytes)))
        }
        end => Ok(end.events),
    }
}
