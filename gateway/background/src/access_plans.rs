//! Access plans: reads that clients announce in advance, stored and passed to the policy engine.
//!
//! Each plan is a file `plans/ID.plan` in the data directory ([`mod@file`]). A plan applies to the present
//! and future workloads that identify themselves by its name, and is used only while they follow it. A plan
//! is durable before the client gets an answer, and is passed to the engine again after a restart. The
//! numbers of plans and keys are limited. Plans are changed one at a time. After a power loss during a
//! change, either the previous or the new plan is present. A damaged file is skipped and logged as an error;
//! its workload is then predicted without a plan.

mod file;

pub use file::AccessPlanOwner;

use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_common::limits::{ACCESS_PLAN_KEYS_MAX, ACCESS_PLAN_WORKLOAD_BYTES_MAX};
use mlgw_common::private_file;
use mlgw_common::regular;
use mlgw_common::{Clock, Lineage, Timestamp};
use mlgw_policies::BLOCK_ID_SEED;
use mlgw_policies::engine::{PLANS_MAX, PlanProgress, PlanReaders, ReadyPlan, TooManyPlans};
use mlgw_policies::plan::{Plan, PlanSchedule};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ID_BYTES_MAX: usize = 64;
const EXTENSION: &str = "plan";

/// Access plans of a server.
pub struct AccessPlans {
    dir: PathBuf,
    lineage: Lineage,
    policy_driver: PolicyDriver,
    clock: Arc<dyn Clock>,
    table: Mutex<AccessPlanTable>,
    /// Serializes requests that parse a document and list its keys: both may be large.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct AccessPlanTable {
    plans: BTreeMap<String, ActiveAccessPlan>,
    /// Number of the next plan.
    number: u64,
}

/// A plan that the engine has.
#[derive(Clone)]
struct ActiveAccessPlan {
    number: u64,
    about: AccessPlanOwner,
    reading: PlanSchedule,
    keys: u32,
}

/// A plan and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPlan {
    /// Id of the plan.
    pub id: String,
    /// Workload and bucket of the plan.
    pub about: AccessPlanOwner,
    /// Order in which the keys are read.
    pub reading: PlanSchedule,
    /// Number of keys.
    pub keys: u32,
    /// Progress of the workloads, if the engine follows the plan.
    pub followed: Option<PlanProgress>,
    /// Ids of the known workloads with the plan's name.
    pub workloads: Vec<String>,
}

/// Error of an operation on plans.
#[derive(Debug, thiserror::Error)]
pub enum AccessPlanError {
    /// The id is malformed.
    #[error("invalid plan id {0:?}: expected 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit")]
    BadId(String),
    /// The workload's name is empty or too long.
    #[error("the name of a workload has 1 to {ACCESS_PLAN_WORKLOAD_BYTES_MAX} bytes, not {0}")]
    BadWorkload(usize),
    /// The maximum number of plans is reached.
    #[error("{PLANS_MAX} plans exist already: delete one")]
    TooMany,
    /// The plans would have too many keys.
    #[error(
        "all plans together have at most {ACCESS_PLAN_KEYS_MAX} keys; with this one they have {0}: delete one"
    )]
    TooManyKeys(u64),
    /// The engine refused the plan.
    #[error(transparent)]
    Engine(#[from] TooManyPlans),
    /// No plan has this id.
    #[error("no such plan: {0:?}")]
    NoSuchPlan(String),
    /// The disk failed.
    #[error("the plans in {0}: {1}")]
    Io(String, io::Error),
}

impl AccessPlans {
    /// Opens the plans in the data directory and passes them to the engine. Blocks the calling thread, some
    /// tens of milliseconds for a million keys.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(
        data_dir: &Path,
        lineage: Lineage,
        policy_driver: PolicyDriver,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AccessPlanError> {
        let (dir, held, turn) = (data_dir.join("plans"), Mutex::default(), tokio::sync::Mutex::default());
        let plans = Self { dir, lineage, policy_driver, clock, table: held, turn };
        let ids = plans.ids().map_err(|error| plans.failed(error))?;
        let mut held = plans.table.lock();
        for id in ids {
            if let Err(why) = plans.load(&mut held, &id) {
                tracing::error!(plan = id, why, "access plan skipped; upload it again");
            }
        }
        drop(held);
        Ok(plans)
    }

    /// Waits until no other request stores a plan.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Stores a plan in place of the one with its id. Returns the previous and the new plan. Blocks the
    /// calling thread.
    ///
    /// # Errors
    /// See [`AccessPlanError`]; then nothing changes.
    pub fn put(
        &self,
        id: &str,
        about: AccessPlanOwner,
        plan: Plan,
    ) -> Result<(Option<AccessPlan>, AccessPlan), AccessPlanError> {
        check(id)?;
        if !(1..=ACCESS_PLAN_WORKLOAD_BYTES_MAX).contains(&about.workload.len()) {
            return Err(AccessPlanError::BadWorkload(about.workload.len()));
        }
        let about = AccessPlanOwner { put_ms: self.clock.now().as_millis(), ..about };
        let bytes = file::serialize(&self.lineage.own, &about, &plan);
        let mut held = self.table.lock();
        let before = held.plans.get(id).map(|given| self.describe(id, given));
        self.activate(&mut held, id, about, plan)?;
        if let Err(error) = self.write(id, &bytes) {
            // The previous plan remains in force, if it is on disk.
            self.deactivate(&mut held, id);
            let _ = self.load(&mut held, id);
            return Err(self.failed(error));
        }
        let given = held.plans.get(id).ok_or_else(|| AccessPlanError::NoSuchPlan(id.to_owned()))?;
        Ok((before, self.describe(id, given)))
    }

    /// Deletes a plan and returns it. Blocks the calling thread.
    ///
    /// # Errors
    /// If no plan has this id; I/O errors.
    pub fn delete(&self, id: &str) -> Result<AccessPlan, AccessPlanError> {
        let mut held = self.table.lock();
        let given = held.plans.get(id).ok_or_else(|| AccessPlanError::NoSuchPlan(id.to_owned()))?;
        let before = self.describe(id, given);
        let removed = fs::remove_file(self.path(id)).and_then(|()| File::open(&self.dir)?.sync_all());
        removed.map_err(|error| self.failed(error))?;
        self.deactivate(&mut held, id);
        Ok(before)
    }

    /// Returns all plans, sorted by id.
    #[must_use]
    pub fn list(&self) -> Vec<AccessPlan> {
        let given: Vec<_> =
            self.table.lock().plans.iter().map(|(id, given)| (id.clone(), given.clone())).collect();
        given.iter().map(|(id, given)| self.describe(id, given)).collect()
    }

    /// Returns one plan.
    ///
    /// # Errors
    /// If no plan has this id.
    pub fn show(&self, id: &str) -> Result<AccessPlan, AccessPlanError> {
        let given = self.table.lock().plans.get(id).cloned();
        given.map(|given| self.describe(id, &given)).ok_or_else(|| AccessPlanError::NoSuchPlan(id.to_owned()))
    }

    fn describe(&self, id: &str, given: &ActiveAccessPlan) -> AccessPlan {
        let ActiveAccessPlan { number, about, reading, keys } = given.clone();
        let (followed, workloads) = self.policy_driver.with_engine(|decider, _| {
            let its =
                decider.workloads.iter().filter(|it| it.identity.name.as_deref() == Some(&about.workload));
            (decider.engine.plan_progress(number), its.map(|it| it.id.to_string()).collect())
        });
        AccessPlan { id: id.to_owned(), about, reading, keys, followed, workloads }
    }

    /// Passes a plan to the engine, in place of the one with its id.
    fn activate(
        &self,
        held: &mut AccessPlanTable,
        id: &str,
        about: AccessPlanOwner,
        plan: Plan,
    ) -> Result<(), AccessPlanError> {
        let others = || held.plans.iter().filter(|(other, _)| *other != id);
        if others().count() >= PLANS_MAX {
            return Err(AccessPlanError::TooMany);
        }
        let (reading, keys) = (plan.schedule(), plan.keys().len());
        let all = others().map(|(_, given)| u64::from(given.keys)).sum::<u64>() + u64::from(keys);
        if all > ACCESS_PLAN_KEYS_MAX {
            return Err(AccessPlanError::TooManyKeys(all));
        }
        let number = held.plans.get(id).map_or(held.number, |given| given.number);
        let ready = ReadyPlan::new(BLOCK_ID_SEED, number, PlanReaders::Families, about.bucket_id, plan);
        self.policy_driver.with_engine(|decider, _| decider.put_plan(number, &about.workload, ready))?;
        held.number = held.number.max(number + 1);
        held.plans.insert(id.to_owned(), ActiveAccessPlan { number, about, reading, keys });
        assert!(held.plans.len() <= PLANS_MAX, "the number of plans is bounded");
        Ok(())
    }

    fn deactivate(&self, held: &mut AccessPlanTable, id: &str) {
        if let Some(given) = held.plans.remove(id) {
            self.policy_driver.with_engine(|decider, _| decider.drop_plan(given.number));
        }
    }

    /// Reads a plan from disk and passes it to the engine.
    ///
    /// # Errors
    /// A description of the fault.
    fn load(&self, held: &mut AccessPlanTable, id: &str) -> Result<(), String> {
        let bytes = regular::read(&self.path(id)).map_err(|error| error.to_string())?;
        let (about, plan) = file::parse(&self.lineage, &bytes).map_err(|error| error.to_string())?;
        self.activate(held, id, about, plan).map_err(|error| error.to_string())
    }

    fn write(&self, id: &str, bytes: &[u8]) -> io::Result<()> {
        if !self.dir.exists() {
            fs::create_dir(&self.dir)?;
            self.dir.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
        }
        private_file::write(&self.dir, &self.path(id), bytes)
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.{EXTENSION}"))
    }

    /// Returns the ids of the plans on disk, sorted.
    fn ids(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut ids = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).filter(|id| check(id).is_ok());
            ids.extend(id.filter(|_| path.extension().is_some_and(|of| of == EXTENSION)).map(str::to_owned));
        }
        ids.sort();
        Ok(ids)
    }

    fn failed(&self, error: io::Error) -> AccessPlanError {
        AccessPlanError::Io(self.dir.display().to_string(), error)
    }
}

impl AccessPlan {
    /// Returns the time at which the plan was stored.
    #[must_use]
    pub const fn put(&self) -> Timestamp {
        Timestamp(self.about.put_ms)
    }
}

/// Checks the form of an id.
///
/// # Errors
/// If the id is malformed.
pub fn check(id: &str) -> Result<(), AccessPlanError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let begins = id.bytes().next().is_some_and(is_plain);
    let rest = id.bytes().all(|byte| is_plain(byte) || byte == b'-' || byte == b'_');
    let is_one = begins && rest && id.len() <= ID_BYTES_MAX;
    if is_one { Ok(()) } else { Err(AccessPlanError::BadId(id.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::{AccessPlanError, AccessPlanOwner, AccessPlans};
    use mlgw_cache::policy_driver::PolicyDriver;
    use mlgw_common::limits::{ACCESS_PLAN_KEYS_MAX, ACCESS_PLAN_WORKLOAD_BYTES_MAX};
    use mlgw_common::{Lineage, SystemClock};
    use mlgw_policies::engine::PLANS_MAX;
    use mlgw_policies::language::Program;
    use mlgw_policies::plan::{Plan, PlanSchedule};
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    fn plans(dir: &Path) -> AccessPlans {
        let policy_driver =
            PolicyDriver::new(1 << 16, Arc::new(Program::compile_built_in().unwrap()), &SystemClock);
        AccessPlans::open(dir, Lineage::default(), policy_driver, Arc::new(SystemClock)).unwrap()
    }

    fn about(workload: &str) -> AccessPlanOwner {
        AccessPlanOwner { workload: workload.into(), bucket: "lake".into(), bucket_id: 1, put_ms: 0 }
    }

    fn plan(keys: &[&str]) -> Plan {
        Plan::new(keys.iter().copied(), PlanSchedule::default()).unwrap()
    }

    #[test]
    fn plans_and_deletions_survive_a_restart() {
        let room = tempfile::tempdir().unwrap();
        let here = plans(room.path());
        here.put("one", about("resnet"), plan(&["a", "b"])).unwrap();
        here.put("two", about("bert"), plan(&["c"])).unwrap();
        let (before, after) = here.put("two", about("bert"), plan(&["c", "d", "e"])).unwrap();
        assert_eq!((before.unwrap().keys, after.keys), (1, 3));
        here.put("gone", about("resnet"), plan(&["a"])).unwrap();
        assert_eq!(here.delete("gone").unwrap().id, "gone");
        assert!(matches!(here.delete("gone"), Err(AccessPlanError::NoSuchPlan(_))));
        let again = plans(room.path());
        assert_eq!(again.list(), here.list());
        let (one, two) = (again.show("one").unwrap(), again.show("two").unwrap());
        assert_eq!((one.keys, two.keys, &*two.about.workload), (2, 3, "bert"));
        assert!(one.followed.is_some_and(|followed| !followed.is_trusted && followed.keys == 2));
        again.put("three", about("bert"), plan(&["f"])).unwrap();
        assert!(
            [one, two].iter().all(|plan| again.show(&plan.id).unwrap() == *plan),
            "numbers are not given twice"
        );
    }

    #[test]
    fn a_damaged_file_is_passed_over_and_can_be_replaced() {
        let room = tempfile::tempdir().unwrap();
        plans(room.path()).put("one", about("resnet"), plan(&["a", "b"])).unwrap();
        plans(room.path()).put("two", about("resnet"), plan(&["a", "b"])).unwrap();
        fs::write(room.path().join("plans/one.plan"), "mlgw-plan 1").unwrap();
        fs::write(room.path().join("plans/two.plan.new"), "mlgw-plan 1").unwrap();
        let again = plans(room.path());
        assert_eq!(again.list().iter().map(|plan| &*plan.id).collect::<Vec<_>>(), ["two"]);
        again.put("one", about("resnet"), plan(&["a"])).unwrap();
        again.put("two", about("resnet"), plan(&["a"])).unwrap();
        assert_eq!(plans(room.path()).list().len(), 2);
    }

    #[test]
    fn too_large_or_badly_named_plans_are_refused_without_changes() {
        let room = tempfile::tempdir().unwrap();
        let here = plans(room.path());
        for id in ["", "..", "a/b", "A", "-a", &"a".repeat(65), "a.b"] {
            let put = here.put(id, about("resnet"), plan(&["a"]));
            assert!(matches!(put, Err(AccessPlanError::BadId(_))), "{id}");
        }
        for name in ["", &"x".repeat(ACCESS_PLAN_WORKLOAD_BYTES_MAX + 1)] {
            let put = here.put("a", about(name), plan(&["a"]));
            assert!(matches!(put, Err(AccessPlanError::BadWorkload(_))), "{name}");
        }
        for number in 0..PLANS_MAX {
            here.put(&format!("p{number}"), about("resnet"), plan(&["a"])).unwrap();
        }
        assert!(matches!(here.put("more", about("resnet"), plan(&["a"])), Err(AccessPlanError::TooMany)));
        here.put("p3", about("resnet"), plan(&["a", "b"])).unwrap();
        assert_eq!(plans(room.path()).list(), here.list());
        let large: Vec<String> = (0..ACCESS_PLAN_KEYS_MAX / 2).map(|n| n.to_string()).collect();
        let large = Plan::new(large.iter().map(String::as_str), PlanSchedule::default()).unwrap();
        here.put("p4", about("resnet"), large.clone()).unwrap();
        let put = here.put("p5", about("resnet"), large);
        assert!(matches!(put, Err(AccessPlanError::TooManyKeys(keys)) if keys > ACCESS_PLAN_KEYS_MAX));
        assert_eq!(here.show("p5").unwrap().keys, 1);
    }
}
