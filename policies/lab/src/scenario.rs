//! Input of a simulation: a recorded trace or a generated workload. Both can be replayed repeatedly, and
//! neither is held in memory.

use crate::caller_plans::{CallerPlan, build_caller_plans};
use crate::workload::{SimulationProfile, WorkloadSettings, whole_bytes, workload};
use mlgw_policies::Access;
use mlgw_policies::trace::TraceReader;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Reason why a simulation fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The request is invalid or exceeds a limit.
    #[error("{0}")]
    InvalidRequest(String),
    /// The trace cannot be read, or is not a trace.
    #[error("{0}")]
    Trace(String),
    /// The caller stopped the simulation.
    #[error("stopped because no caller waits for the result")]
    Stopped,
    /// Internal error.
    #[error("{0}")]
    Failed(String),
}

/// Error for a trace file that cannot be read.
fn unreadable(path: &Path, error: &io::Error) -> SimulationError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            SimulationError::InvalidRequest(format!("{}: there is no such file", path.display()))
        }
        _ => SimulationError::Trace(format!("{}: {error}", path.display())),
    }
}

/// Source of accesses.
#[derive(Clone, Debug)]
pub enum Scenario {
    /// Recorded accesses.
    Trace {
        /// Name in results.
        name: String,
        /// Files in order of time, each of them a complete trace.
        files: Vec<PathBuf>,
    },
    /// Generated workload of a profile.
    Profile(SimulationProfile, WorkloadSettings),
}

impl Scenario {
    /// Creates a trace scenario from one file, named after the file.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| path.display().to_string());
        Self::Trace { name, files: vec![path.to_owned()] }
    }

    /// Name in results.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Trace { name, .. } => name.clone(),
            Self::Profile(profile, _) => profile.name().to_owned(),
        }
    }

    /// True if the accesses were recorded.
    #[must_use]
    pub fn is_trace(&self) -> bool {
        matches!(self, Self::Trace { .. })
    }

    /// Seed of the generated workload; 0 for a trace.
    #[must_use]
    pub fn seed(&self) -> u64 {
        match self {
            Self::Trace { .. } => 0,
            Self::Profile(_, settings) => settings.seed,
        }
    }

    /// Access plans of all callers of a generated workload; empty for a trace.
    ///
    /// # Errors
    /// If the workload cannot be generated, or a caller reads more than a plan may contain.
    pub fn plans(&self) -> Result<Vec<CallerPlan>, SimulationError> {
        let Self::Profile(profile, settings) = self else { return Ok(Vec::new()) };
        let made =
            workload(*profile, settings).map_err(|e| SimulationError::InvalidRequest(e.to_string()))?;
        build_caller_plans(&made.scene, made.requests)
            .map_err(|error| SimulationError::InvalidRequest(format!("plans: {error}")))
    }

    /// Calls `take` for every access in order, with its epoch, from 0. Returns the base of relative cache
    /// sizes in bytes, if it is known in advance.
    ///
    /// # Errors
    /// If the trace cannot be read or the workload cannot be generated. An error of `take` ends the replay
    /// and is returned.
    pub fn for_each_access(
        &self,
        mut take: impl FnMut(&Access<'_>, u32) -> Result<(), SimulationError>,
    ) -> Result<Option<u64>, SimulationError> {
        match self {
            Self::Trace { files, .. } => {
                for_each_trace_access(files, |access| take(access, 0)).map(|()| None)
            }
            Self::Profile(profile, settings) => {
                let made = workload(*profile, settings)
                    .map_err(|e| SimulationError::InvalidRequest(e.to_string()))?;
                for request in made.requests {
                    take(&made.scene.access(&request), request.epoch)?;
                }
                Ok(Some(whole_bytes(*profile, settings, &made.scene)))
            }
        }
    }
}

/// Bytes of a trace that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Calls `take` for every access of a trace's files. A file that is torn at its end is valid up to that
/// point.
///
/// # Errors
/// If a file is not a trace or is damaged, or if there are no accesses. Errors of `take` are returned.
pub fn for_each_trace_access(
    files: &[PathBuf],
    mut take: impl FnMut(&Access<'_>) -> Result<(), SimulationError>,
) -> Result<(), SimulationError> {
    let mut accesses = 0;
    for path in files {
        accesses += for_each_file_access(path, &mut take)?;
    }
    match (accesses, files) {
        (0, [path]) => Err(SimulationError::Trace(format!("{}: the trace has no accesses", path.display()))),
        (0, _) => Err(SimulationError::Trace("the trace has no accesses".to_owned())),
        _ => Ok(()),
    }
}

/// Calls `take` for every access of one file. Returns the number of accesses, which is 0 for a file that is
/// empty because of a power loss.
fn for_each_file_access(
    path: &Path,
    take: &mut impl FnMut(&Access<'_>) -> Result<(), SimulationError>,
) -> Result<u64, SimulationError> {
    let failed = |error: String| SimulationError::Trace(format!("{}: {error}", path.display()));
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
            Err(failed(format!("the file is not a trace: it has {} bytes", end.torn_bytes)))
        }
        end => Ok(end.events),
    }
}
