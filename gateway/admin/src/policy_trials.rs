//! `/v1/policy/schema`, `validate`, `test` and `simulate`: trials of policies before they run. All are
//! read-only.

use super::change::parse;
use super::extract::AdminQuery;
use super::policy::{checked_files, policy_refusal};
use super::words::environment;
use super::{Admin, ApiError};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use http::StatusCode;
use mlgw_api::{
    PolicyTestResult, SimulateRequest, SimulationRow, TestRequest, ValidateRequest, ValidationResult,
};
use mlgw_common::limits::{
    SIMULATED_BLOCKS_MAX, SIMULATED_CACHES_MAX, SIMULATED_READS_MAX, TRIED_KEYS_MAX, TRIED_KEYS_SHOWN_MAX,
};
use mlgw_lab::examine::{empty_answer, key_of_line, try_key};
use mlgw_lab::scenario::{Scenario, SimulationError};
use mlgw_lab::simulate::{Simulation, algorithms, parse_order};
use mlgw_lab::sizes::{DEFAULT_CACHES, block_bytes};
use mlgw_lab::validate::validate as validated;
use mlgw_lab::workload::{WorkloadSettings, objects_times_epochs};
use mlgw_policies::language::{
    Environment, OfflineObject, Program, framework_schema, schema as policy_schema,
};
use mlgw_policy_runtime::{PolicyError, PolicyFilesUpdate};
use mlgw_wire::error::S3Error;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of keys reported by default.
const KEYS_SHOWN: usize = 100;
/// Default bytes of a simulated block.
const BLOCK: &str = "8MiB";

/// Query parameters: kind of the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SchemaQuery {
    /// Return the schema of framework plugins.
    #[serde(default)]
    framework: bool,
}

impl From<SimulationError> for ApiError {
    fn from(error: SimulationError) -> Self {
        let message = format!("{error}.");
        match error {
            SimulationError::InvalidRequest(_) => Self::invalid(message),
            SimulationError::Trace(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "TraceUnreadable", message)
            }
            SimulationError::Stopped | SimulationError::Failed(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
            }
        }
    }
}

pub(super) async fn schema(AdminQuery(query): AdminQuery<SchemaQuery>) -> Json<Value> {
    Json(if query.framework { framework_schema() } else { policy_schema() })
}

pub(super) async fn validate(
    State(admin): State<Arc<Admin>>,
    body: Bytes,
) -> Result<Json<Vec<ValidationResult>>, ApiError> {
    let request: ValidateRequest = parse(&body)?;
    run_blocking(move || admin.validate(request)).await
}

pub(super) async fn test(
    State(admin): State<Arc<Admin>>,
    body: Bytes,
) -> Result<Json<PolicyTestResult>, ApiError> {
    let request: TestRequest = parse(&body)?;
    run_blocking(move || admin.test(request)).await
}

pub(super) async fn simulate(
    State(admin): State<Arc<Admin>>,
    body: Bytes,
) -> Result<Json<Vec<SimulationRow>>, ApiError> {
    let request: SimulateRequest = parse(&body)?;
    let cancel_guard = CancelOnDrop::default();
    let is_cancelled = Arc::clone(&cancel_guard.0);
    run_blocking(move || admin.simulate(request, &is_cancelled)).await
}

/// Sets a flag when dropped, so that the simulation stops once its client has disconnected.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs blocking work on another thread and returns its result as JSON.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<Json<T>, ApiError> {
    Ok(Json(tokio::task::spawn_blocking(work).await.map_err(S3Error::internal)??))
}

/// Returns the error for an invalid value of a field.
fn invalid_field(field: &str, value: &str, why: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(format!("{field} is {value:?}: {why}."))
}

impl Admin {
    fn validate(&self, request: ValidateRequest) -> Result<Vec<ValidationResult>, ApiError> {
        let PolicyFilesUpdate { custom, frameworks } =
            checked_files(Some(request.files), request.frameworks)?;
        let (texts, given) = (custom.unwrap_or_default(), frameworks.is_some());
        let plugins = frameworks.unwrap_or_else(|| self.policies.running().files.frameworks.clone());
        if texts.is_empty() && !given {
            return Err(ApiError::invalid("Nothing to validate: give files or frameworks."));
        }
        let mut results = validated(&texts, &plugins).map_err(S3Error::internal)?;
        if !given {
            results.truncate(texts.len());
        }
        Ok(results)
    }

    /// Compiles files for `environment`, or else for the server's own environment.
    fn program(
        &self,
        files: PolicyFilesUpdate,
        environment: Option<Environment>,
    ) -> Result<Program, ApiError> {
        let environment = environment.or(self.policies.server().environment);
        let compiled = self.policies.compile_in(environment, files);
        compiled.map_err(|wrong| policy_refusal(PolicyError::Wrong(wrong)))
    }

    fn test(&self, request: TestRequest) -> Result<PolicyTestResult, ApiError> {
        let (count, limit) = (request.keys.len(), request.limit.unwrap_or(KEYS_SHOWN));
        if !(1..=TRIED_KEYS_MAX).contains(&count) {
            return Err(ApiError::invalid(format!(
                "{count} keys were given; expected 1 to {TRIED_KEYS_MAX}."
            )));
        }
        if !(1..=TRIED_KEYS_SHOWN_MAX).contains(&limit) {
            return Err(ApiError::invalid(format!(
                "limit is {limit}; expected 1 to {TRIED_KEYS_SHOWN_MAX}."
            )));
        }
        let environment = request.environment.map(environment).or(self.policies.server().environment);
        let program = self.program(checked_files(request.files, request.frameworks)?, environment)?;
        let mut examined = empty_answer(&program);
        for line in &request.keys {
            let known = key_of_line(line).ok_or_else(|| invalid_field("keys", line, "not a valid key"))?;
            try_key(&mut examined, &program, OfflineObject { environment, ..known }, limit);
        }
        Ok(examined)
    }

    fn simulate(
        &self,
        request: SimulateRequest,
        is_cancelled: &AtomicBool,
    ) -> Result<Vec<SimulationRow>, ApiError> {
        let busy = || {
            let message = "A simulation is running already; try again when it has ended.";
            ApiError::new(StatusCode::CONFLICT, "SimulationRunning", message)
        };
        let _turn = self.simulating.try_lock().map_err(|_| busy())?;
        let simulation = self.simulation(request)?;
        Ok(simulation
            .run(&|_| if is_cancelled.load(Relaxed) { Err(SimulationError::Stopped) } else { Ok(()) })?)
    }

    fn simulation(&self, request: SimulateRequest) -> Result<Simulation, ApiError> {
        let caches =
            request.cache.clone().unwrap_or_else(|| DEFAULT_CACHES.split(',').map(str::to_owned).collect());
        if !(1..=SIMULATED_CACHES_MAX).contains(&caches.len()) {
            let count = caches.len();
            return Err(ApiError::invalid(format!(
                "{count} caches were given; expected 1 to {SIMULATED_CACHES_MAX}."
            )));
        }
        let cache = |text: &String| text.parse().map_err(|why: String| invalid_field("cache", text, why));
        let block = request.block.as_deref().unwrap_or(BLOCK);
        let from_epoch = request.from_epoch.unwrap_or(1);
        if from_epoch == 0 {
            return Err(ApiError::invalid("from_epoch is 0; the first epoch is 1."));
        }
        Ok(Simulation {
            scenario: self.scenario(&request)?,
            caches: caches.iter().map(cache).collect::<Result<_, _>>()?,
            block_bytes: block_bytes(block).map_err(|why| invalid_field("block", block, why))?,
            algorithms: algorithms(request.policies.as_deref().unwrap_or_default()),
            from_epoch,
            plans: request.plans,
            blocks_max: SIMULATED_BLOCKS_MAX,
            program: self.simulated_program(request)?,
        })
    }

    /// Returns the rules for a simulation: those of the request's files, merged above the running ones; if
    /// the request has none, the running rules for a trace and no rules for a profile.
    fn simulated_program(&self, request: SimulateRequest) -> Result<Option<Arc<Program>>, ApiError> {
        let environment = request.environment.map(environment);
        if request.files.is_none() && request.frameworks.is_none() && environment.is_none() {
            return Ok(request.trace.map(|_| Arc::clone(&self.policies.running().program)));
        }
        let files = checked_files(request.files, request.frameworks)?;
        Ok(Some(Arc::new(self.program(files, environment)?)))
    }

    fn scenario(&self, request: &SimulateRequest) -> Result<Scenario, ApiError> {
        let SimulateRequest { workloads, epochs, objects, order, seed, .. } = *request;
        let is_plain = workloads.is_none() && epochs.is_none() && objects.is_none() && order.is_none();
        let is_plain = is_plain && seed.is_none() && request.from_epoch.is_none() && !request.plans;
        match (&request.trace, request.profile) {
            (Some(name), None) if is_plain => {
                Ok(Scenario::Trace { name: name.clone(), files: self.traces.paths(name)? })
            }
            (Some(_), None) => Err(ApiError::invalid(
                "workloads, seed, epochs, order, objects, from_epoch and plans are allowed only with a \
                 profile, not with a trace.",
            )),
            (None, Some(profile)) => {
                let (seed, order) = (seed.unwrap_or(1), order.map(parse_order));
                let settings = WorkloadSettings {
                    seed,
                    workloads,
                    epochs,
                    order,
                    objects,
                    ..WorkloadSettings::default()
                };
                let reads = objects_times_epochs(profile, &settings);
                if reads > SIMULATED_READS_MAX {
                    return Err(ApiError::invalid(format!(
                        "objects times epochs is {reads}; a server simulates at most {SIMULATED_READS_MAX}. \
                         `mlgw policy simulate` has no such limit."
                    )));
                }
                Ok(Scenario::Profile(profile, settings))
            }
            _ => Err(ApiError::invalid("Nothing to replay: give either trace or profile.")),
        }
    }
}
