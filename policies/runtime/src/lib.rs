//! The running policy: compiled from the version in the catalogue, and replaced immediately by a newly
//! applied one.
//!
//! - `server_facts`, `facts`, `system`: facts about the server and about an object, for rules;
//! - `compression`: compression of new objects;
//! - `deletions`: rules that delete, which a cluster refuses; `following`: policies changed on another node;
//! - `changes`: differences between two policies;
//! - `learning`: bounds that adapt to measurements;
//! - `rule_uptime`: uptime of rules that delete;
//! - `watched_files`, `reload`: files that are applied when they change.
//!
//! The running policy was compiled completely and is durable in the catalogue before its activation is
//! reported; a policy that does not compile changes nothing. Changes are made one at a time, each on the
//! newest version by compare-and-set. After a power loss the newest version runs again. If a newer server
//! cannot compile it, the server logs an error, and the built-in defaults run until another version is
//! applied.

pub mod changes;
pub mod compression;
mod deletions;
pub mod facts;
pub mod following;
pub mod learning;
mod reload;
mod rule_uptime;
pub mod server_facts;
pub mod system;
#[cfg(test)]
mod tests;
pub mod watched_files;

pub use deletions::deleting_rules;
pub use server_facts::{ServerProfile, SystemFacts};
pub use watched_files::WatchedPolicyFiles;

use arc_swap::ArcSwap;
use deletions::permitted;
use mlgw_common::Clock;
use mlgw_formats::command::PutPolicy;
use mlgw_formats::command::Reject;
use mlgw_formats::schema::{PolicyFile as Text, PolicyFiles, PolicyKind, PolicyVersion};
use mlgw_metadata::{Catalogue, ProposeError, ReadError};
use mlgw_policies::language::{
    ActionKind, BuiltInLayers, Environment, Facts, InvalidPolicyFiles, PolicyFileSet, Program, Stance,
    Word as _,
};
use mlgw_policies::learned_bounds::LearnedBounds;
use mlgw_policies::learning::LearningChange;
use parking_lot::Mutex;
use reload::Refusals;
use rule_uptime::RuleUptime;
use std::sync::Arc;
use tokio::sync::watch;

/// The running policy and the operations that change it.
pub struct Policies {
    catalogue: Catalogue,
    clock: Arc<dyn Clock>,
    built_in: BuiltInLayers,
    server: ServerProfile,
    system: ArcSwap<SystemFacts>,
    watched: ArcSwap<WatchedPolicyFiles>,
    running: ArcSwap<RunningPolicy>,
    program: watch::Sender<Arc<Program>>,
    learning: watch::Sender<bool>,
    rule_uptime: RuleUptime,
    /// Serializes changes.
    changing: tokio::sync::Mutex<()>,
    refusals: Mutex<Refusals>,
    /// Term of the duty node of a cluster, which new versions carry.
    duty_term: Mutex<Option<u64>>,
    /// Result of the last check of the watched files, so that faulty files are refused once.
    last_check: tokio::sync::Mutex<Option<watched_files::WatchedChecksum>>,
}

/// The running policy.
#[derive(Debug)]
pub struct RunningPolicy {
    /// Its version; `None` if no policy was ever applied.
    pub version: Option<Arc<PolicyVersion>>,
    /// Its user-written files.
    pub files: PolicyFiles,
    /// Its compiled program.
    pub program: Arc<Program>,
    /// Reason why the files do not compile; the built-in defaults run then.
    pub fault: Option<String>,
}

/// Replacement of running files; `None` keeps the running ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFilesUpdate {
    /// Policies, the strongest first.
    pub custom: Option<Vec<Text>>,
    /// Framework plugins.
    pub frameworks: Option<Vec<Text>>,
}

/// Flags of the files that a change replaces. The other files are running or have run before: harmless
/// faults in them do not prevent the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SubmittedFiles {
    custom: bool,
    frameworks: bool,
}

impl SubmittedFiles {
    const NOTHING: Self = Self { custom: false, frameworks: false };

    const fn of(files: &PolicyFilesUpdate) -> Self {
        Self { custom: files.custom.is_some(), frameworks: files.frameworks.is_some() }
    }
}

/// Author of a change and the version on which it is based.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeAuthor {
    /// Access key, or the paths of the watched files.
    pub who: String,
    /// Message of the author.
    pub message: String,
    /// Version that must be running for the change to apply; `None` for any.
    pub if_version: Option<u64>,
}

/// Result of a change, including one that was not necessary.
#[derive(Clone, Debug)]
pub struct AppliedPolicyChange {
    /// The version before the change.
    pub before: Option<Arc<PolicyVersion>>,
    /// The version after the change.
    pub after: Option<Arc<PolicyVersion>>,
}

/// Reason why a policy is not applied.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PolicyError {
    /// The policy has faults.
    #[error("{0}")]
    Wrong(InvalidPolicyFiles),
    /// Another version was applied in the meantime.
    #[error(
        "the policy is now at version {newest}, which is not the expected one; review it and apply again"
    )]
    Changed {
        /// Number of the running version.
        newest: u64,
    },
    /// There is no earlier version to roll back to.
    #[error("there is no earlier policy to roll back to")]
    NothingBefore,
    /// The version does not exist.
    #[error("policy version {0} does not exist")]
    NoSuchVersion(u64),
    /// Only the description of the version is retained, not its files.
    #[error("the files of policy version {0} are no longer kept")]
    FilesGone(u64),
    /// Rules of the policy delete checkpoints, and the server is a node of a cluster: its statistics lack the
    /// reads through other nodes.
    #[error(
        "a policy of a cluster must not delete: no node observes the reads through all others (rules: {})",
        .0.join(", ")
    )]
    DeletesInCluster(Vec<String>),
    /// The catalogue rejected the change.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A blocking task failed.
    #[error("{0}")]
    Internal(String),
}

/// A version to be stored.
struct PolicyDraft {
    kind: PolicyKind,
    by: ChangeAuthor,
    /// New files; `None` keeps the running ones.
    files: Option<PolicyFiles>,
    given: SubmittedFiles,
    /// The version that introduced the files, if they are not new.
    files_version: Option<u64>,
    back_to: u64,
    is_frozen: Option<bool>,
    watched: Option<Vec<u8>>,
    /// New learned bounds; `None` keeps the current ones.
    learnt: Option<LearnedBounds>,
    /// Summary of the changes by learning.
    changes: String,
}

impl PolicyDraft {
    fn new(kind: PolicyKind, by: ChangeAuthor) -> Self {
        Self {
            kind,
            by,
            files: None,
            given: SubmittedFiles::NOTHING,
            files_version: None,
            back_to: 0,
            is_frozen: None,
            watched: None,
            learnt: None,
            changes: String::new(),
        }
    }

    /// Checks that the parts of the draft agree.
    fn check(&self) {
        let is_about_learning = matches!(self.kind, PolicyKind::Freeze | PolicyKind::Unfreeze);
        assert!(self.is_frozen.is_some() == is_about_learning, "only a freeze stops learning");
        assert!(
            self.files.is_some() || self.files_version.is_none(),
            "earlier files are part of their draft"
        );
        let has_given = self.given != SubmittedFiles::NOTHING;
        assert!(!has_given || self.files.is_some(), "submitted files are part of their draft");
    }
}

impl RunningPolicy {
    /// Number of its version; 0 if no policy was ever applied.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.version.as_ref().map_or(0, |version| version.number)
    }

    /// True if learning was stopped by a freeze.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.version.as_ref().is_some_and(|version| version.is_frozen)
    }

    /// True if the watched files with this checksum were applied last.
    #[must_use]
    pub fn has_applied(&self, sum: &[u8]) -> bool {
        self.version.as_ref().is_some_and(|version| version.watched == sum)
    }

    fn is_learning(&self) -> bool {
        self.program.settings().learning() && !self.is_frozen()
    }
}

impl Policies {
    /// Loads the newest version, and then the watched files if they have changed since.
    ///
    /// # Errors
    /// If the catalogue cannot be read, or the built-in layers do not compile, which a test rules out.
    pub async fn open(
        catalogue: Catalogue,
        clock: Arc<dyn Clock>,
        place: ServerProfile,
        watched: WatchedPolicyFiles,
    ) -> Result<Arc<Self>, PolicyError> {
        let built_in =
            BuiltInLayers::load().map_err(|wrong| PolicyError::Wrong(InvalidPolicyFiles(wrong)))?;
        let running = load_newest(&catalogue, &built_in, &place)?;
        let versions = catalogue.policies();
        let policies = Arc::new(Self {
            catalogue,
            clock,
            built_in,
            server: place,
            system: ArcSwap::from_pointee(SystemFacts { server: place, ..SystemFacts::default() }),
            watched: ArcSwap::from_pointee(watched),
            program: watch::Sender::new(Arc::clone(&running.program)),
            learning: watch::Sender::new(running.is_learning()),
            rule_uptime: RuleUptime::new(&running.program, versions.iter().map(|version| &**version)),
            running: ArcSwap::from_pointee(running),
            changing: tokio::sync::Mutex::default(),
            refusals: Mutex::default(),
            duty_term: Mutex::default(),
            last_check: tokio::sync::Mutex::default(),
        });
        following::answer_questions(&policies);
        if !policies.watched.load().is_empty() {
            watched_files::check(&policies).await;
        }
        Ok(policies)
    }

    /// Replaces the watched files. They are read by [`watched_files::watch`]. In a cluster those of the duty
    /// node count.
    pub fn set_watched(&self, watched: WatchedPolicyFiles) {
        self.watched.store(Arc::new(watched));
    }

    /// Stores versions in this term of duty from now on; `None` on a node that has no term.
    pub fn set_duty_term(&self, duty_term: Option<u64>) {
        *self.duty_term.lock() = duty_term;
    }

    /// Returns the running policy.
    #[must_use]
    pub fn running(&self) -> Arc<RunningPolicy> {
        self.running.load_full()
    }

    /// Subscribes to the running program.
    #[must_use]
    pub fn program(&self) -> watch::Receiver<Arc<Program>> {
        self.program.subscribe()
    }

    /// Returns the running program if one of its rules performs actions of this kind.
    #[must_use]
    pub fn program_with_action(&self, kind: ActionKind) -> Option<Arc<Program>> {
        let running = self.running.load();
        running.program.has_acting(kind).then(|| Arc::clone(&running.program))
    }

    /// Subscribes to the state of learning: true if bounds may adapt to measurements.
    #[must_use]
    pub fn learning(&self) -> watch::Receiver<bool> {
        self.learning.subscribe()
    }

    /// Facts that do not change while the server runs.
    #[must_use]
    pub fn server(&self) -> ServerProfile {
        self.server
    }

    /// State of the server at the last check.
    #[must_use]
    pub fn system(&self) -> SystemFacts {
        **self.system.load()
    }

    /// Time since which a rule that deletes checkpoints has run without interruption, in milliseconds since
    /// 1970; `i64::MAX` if it does not run.
    #[must_use]
    pub fn deletes_since_ms(&self, rule: &str) -> i64 {
        self.rule_uptime.since_ms(rule)
    }

    fn set_system(&self, system: SystemFacts) {
        self.system.store(Arc::new(system));
    }

    /// Compiles `files`, together with the running files where `files` has none. Blocks for milliseconds,
    /// and longer for large files.
    ///
    /// # Errors
    /// All faults of the files.
    pub fn compile(&self, files: PolicyFilesUpdate) -> Result<Program, InvalidPolicyFiles> {
        self.compile_in(self.server.environment, files)
    }

    /// Like [`Self::compile`], for another environment.
    ///
    /// # Errors
    /// All faults of the files.
    pub fn compile_in(
        &self,
        environment: Option<Environment>,
        files: PolicyFilesUpdate,
    ) -> Result<Program, InvalidPolicyFiles> {
        let place = ServerProfile { environment, ..self.server };
        let given = SubmittedFiles::of(&files);
        let files = merged_with_running(files, &self.running().files);
        compile(&self.built_in, environment, &place, &files, given)
    }

    /// Applies files durably in place of the running ones. Identical files are a no-op. When this returns,
    /// all storage nodes of a cluster run them ([`following`]).
    ///
    /// # Errors
    /// The reason; nothing changes then.
    pub async fn apply(
        self: &Arc<Self>,
        files: PolicyFilesUpdate,
        by: ChangeAuthor,
    ) -> Result<AppliedPolicyChange, PolicyError> {
        let changing = self.lock_for_change().await?;
        let (given, files) =
            (SubmittedFiles::of(&files), Some(merged_with_running(files, &self.running().files)));
        let done =
            self.store_version(PolicyDraft { files, given, ..PolicyDraft::new(PolicyKind::Apply, by) }).await;
        drop(changing);
        following::until_followed(&self.catalogue, done).await
    }

    /// Rolls back to the files of a version, or to those before the running ones; version 0 has the
    /// built-in layers alone. Other nodes are waited for as in [`Self::apply`].
    ///
    /// # Errors
    /// The reason; nothing changes then.
    pub async fn roll_back(
        self: &Arc<Self>,
        to: Option<u64>,
        by: ChangeAuthor,
    ) -> Result<AppliedPolicyChange, PolicyError> {
        let changing = self.lock_for_change().await?;
        let running = self.running();
        let back_to = match to {
            Some(number) => number,
            None => self.previous_version(&running)?,
        };
        let versions = self.catalogue.policies();
        let target = versions.iter().find(|version| version.number == back_to);
        let (brought, learnt) = match (back_to, target) {
            (0, _) => (0, LearnedBounds::default()),
            (_, Some(version)) => (version.files, learning::from_stored_bounds(&version.learnt)),
            (_, None) => return Err(PolicyError::NoSuchVersion(back_to)),
        };
        let files = match brought {
            0 => PolicyFiles::default(),
            _ => self.catalogue.policy_files(brought)?.ok_or(PolicyError::FilesGone(back_to))?,
        };
        let draft = PolicyDraft::new(PolicyKind::Rollback, by);
        let (files, of, learnt) = (Some(files), Some(brought), Some(learnt));
        let done =
            self.store_version(PolicyDraft { files, files_version: of, learnt, back_to, ..draft }).await;
        drop(changing);
        following::until_followed(&self.catalogue, done).await
    }

    /// The newest version with files or learned bounds other than the current ones.
    fn previous_version(&self, running: &RunningPolicy) -> Result<u64, PolicyError> {
        let none = PolicyVersion::default();
        let now = running.version.as_deref().unwrap_or(&none);
        let is_other = |version: &PolicyVersion| version.files != now.files || version.learnt != now.learnt;
        let versions = self.catalogue.policies();
        match versions.iter().rev().find(|version| is_other(version)) {
            Some(version) => Ok(version.number),
            None if is_other(&none) => Ok(0),
            None => Err(PolicyError::NothingBefore),
        }
    }

    /// Stops learning.
    ///
    /// # Errors
    /// The reason; nothing changes then.
    pub async fn freeze(self: &Arc<Self>, by: ChangeAuthor) -> Result<AppliedPolicyChange, PolicyError> {
        let draft = PolicyDraft::new(PolicyKind::Freeze, by);
        self.change_learning(PolicyDraft { is_frozen: Some(true), ..draft }).await
    }

    /// Resumes learning.
    ///
    /// # Errors
    /// The reason; nothing changes then.
    pub async fn unfreeze(self: &Arc<Self>, by: ChangeAuthor) -> Result<AppliedPolicyChange, PolicyError> {
        let draft = PolicyDraft::new(PolicyKind::Unfreeze, by);
        self.change_learning(PolicyDraft { is_frozen: Some(false), ..draft }).await
    }

    async fn change_learning(
        self: &Arc<Self>,
        draft: PolicyDraft,
    ) -> Result<AppliedPolicyChange, PolicyError> {
        let changing = self.lock_for_change().await?;
        let done = self.store_version(draft).await;
        drop(changing);
        done
    }

    /// Applies a learned change, unless learning was stopped or the policy has changed since `on`. Returns
    /// true if it was applied.
    ///
    /// # Errors
    /// The reason; nothing changes then.
    pub async fn learn(
        self: &Arc<Self>,
        on: &Arc<Program>,
        change: LearningChange,
    ) -> Result<bool, PolicyError> {
        let changing = self.lock_for_change().await?;
        let running = self.running();
        if !Arc::ptr_eq(on, &running.program) || !running.is_learning() {
            return Ok(false);
        }
        let by = ChangeAuthor { who: learning::LEARNING_AUTHOR.to_owned(), ..ChangeAuthor::default() };
        let LearningChange { learnt, changes } = change;
        let draft = PolicyDraft { learnt: Some(learnt), changes, ..PolicyDraft::new(PolicyKind::Learn, by) };
        let done = self.store_version(draft).await;
        drop(changing);
        done.map(|_| true)
    }

    /// Loads the newest version if it is not the running one.
    ///
    /// # Errors
    /// If it cannot be read. The running one stays.
    pub async fn load_newer(&self) -> Result<(), PolicyError> {
        self.lock_for_change().await.map(drop)
    }

    /// Acquires the lock for changes, and loads the newest version from the catalogue if an earlier change
    /// was stored without a confirmation.
    async fn lock_for_change(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, PolicyError> {
        let alone = self.changing.lock().await;
        if self.catalogue.policy().map_or(0, |version| version.number) != self.running().number() {
            self.replace(load_newest(&self.catalogue, &self.built_in, &self.server)?);
        }
        Ok(alone)
    }

    /// Stores the next version; the caller holds the lock for changes.
    async fn store_version(self: &Arc<Self>, draft: PolicyDraft) -> Result<AppliedPolicyChange, PolicyError> {
        assert!(self.changing.try_lock().is_err(), "a version is stored under the lock for changes");
        draft.check();
        let running = self.running();
        let newest = running.number();
        if draft.by.if_version.is_some_and(|seen| seen != newest) {
            return Err(PolicyError::Changed { newest });
        }
        let program = self.compile_draft(&running, &draft).await?;
        if running.is_unchanged_by(&draft) {
            return Ok(AppliedPolicyChange {
                before: running.version.clone(),
                after: running.version.clone(),
            });
        }
        let version = version_of(&running, &draft, &program, self.clock.now().as_millis());
        let has_new_files = draft.files.is_some() && draft.files_version.is_none();
        let files = draft.files.clone().filter(|_| has_new_files);
        let duty_term = *self.duty_term.lock();
        let put = PutPolicy { version, after: newest, files, duty_term };
        let made = self.catalogue.put_policy(put).await.map_err(|error| match error {
            ProposeError::Rejected(Reject::PolicyChanged { newest }) => PolicyError::Changed { newest },
            ProposeError::Rejected(Reject::NoSuchPolicy { number }) => PolicyError::FilesGone(number),
            error => PolicyError::Propose(error),
        })?;
        assert!(made.number > newest, "each version has a greater number than the one before");
        let after = Arc::new(made);
        let fault = if draft.files.is_some() { None } else { running.fault.clone() };
        self.replace(RunningPolicy {
            version: Some(Arc::clone(&after)),
            files: draft.files.unwrap_or_else(|| running.files.clone()),
            program,
            fault,
        });
        tracing::info!(version = after.number, who = after.who, changes = after.changes, "policy changed");
        Ok(AppliedPolicyChange { before: running.version.clone(), after: Some(after) })
    }

    /// Compiles the program of a draft.
    async fn compile_draft(
        self: &Arc<Self>,
        running: &RunningPolicy,
        draft: &PolicyDraft,
    ) -> Result<Arc<Program>, PolicyError> {
        let learnt = || draft.learnt.clone().unwrap_or_else(|| running.program.learnt().clone());
        let Some(files) = draft.files.clone() else {
            return Ok(match draft.learnt {
                Some(_) => Arc::new(Program::clone(&running.program).with_learnt(learnt())),
                None => Arc::clone(&running.program),
            });
        };
        let (policies, given) = (Arc::clone(self), draft.given);
        let compiled =
            move || compile(&policies.built_in, policies.server.environment, &policies.server, &files, given);
        let compiled = tokio::task::spawn_blocking(compiled).await;
        let compiled = compiled.map_err(|error| PolicyError::Internal(error.to_string()))?;
        let program = permitted(&self.catalogue, compiled.map_err(PolicyError::Wrong)?)?;
        Ok(Arc::new(program.with_learnt(learnt())))
    }

    fn replace(&self, running: RunningPolicy) {
        let (program, is_learning) = (Arc::clone(&running.program), running.is_learning());
        self.rule_uptime.replace(&program, running.version.as_deref(), self.clock.now().as_millis());
        self.running.store(Arc::new(running));
        self.program.send_if_modified(|held| {
            let is_other = !Arc::ptr_eq(held, &program);
            *held = program;
            is_other
        });
        self.learning.send_if_modified(|held| std::mem::replace(held, is_learning) != is_learning);
    }

    /// Number of rules by stance: those that act, and those whose actions all only observe.
    #[must_use]
    pub fn rules_by_stance(&self) -> [(&'static str, u64); 2] {
        let running = self.running();
        let observes = |rule: &&mlgw_policies::language::EffectiveRule| {
            rule.actions().all(|(action, _)| action.stance == Some(Stance::Observe))
        };
        let all = running.program.rules().len() as u64;
        let observing = running.program.rules().iter().filter(observes).count() as u64;
        [(Stance::Act.name(), all - observing), (Stance::Observe.name(), observing)]
    }
}

impl RunningPolicy {
    /// True if the draft does not differ from the running policy.
    fn is_unchanged_by(&self, draft: &PolicyDraft) -> bool {
        let other = |files: &PolicyFiles| *files != self.files || self.fault.is_some();
        !draft.files.as_ref().is_some_and(other)
            && draft.learnt.as_ref().is_none_or(|learnt| learnt == self.program.learnt())
            && draft.is_frozen.is_none_or(|is_frozen| is_frozen == self.is_frozen())
            && draft.watched.as_ref().is_none_or(|sum| self.has_applied(sum))
    }
}

fn version_of(running: &RunningPolicy, draft: &PolicyDraft, program: &Program, at_ms: i64) -> PolicyVersion {
    let before = running.version.as_deref().cloned().unwrap_or_default();
    let changes = match (draft.is_frozen, draft.kind) {
        (Some(true), _) => "learning frozen".to_owned(),
        (Some(false), _) => "learning resumed".to_owned(),
        (None, PolicyKind::Learn) => draft.changes.clone(),
        (None, _) => changes::change_summary(&running.program, program),
    };
    PolicyVersion {
        number: 0,
        at_ms,
        who: bounded(&draft.by.who),
        kind: draft.kind as i32,
        message: bounded(&draft.by.message),
        changes: bounded(&changes),
        files: draft.files_version.unwrap_or(before.files),
        is_frozen: draft.is_frozen.unwrap_or(before.is_frozen),
        back_to: draft.back_to,
        watched: draft.watched.clone().unwrap_or(before.watched),
        learnt: learning::to_stored_bounds(program.learnt()),
    }
}

/// The text, truncated to the stored length.
fn bounded(text: &str) -> String {
    text.chars()
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= mlgw_common::limits::POLICY_TEXT_BYTES_MAX).then_some(c)
        })
        .collect()
}

fn merged_with_running(files: PolicyFilesUpdate, running: &PolicyFiles) -> PolicyFiles {
    PolicyFiles {
        custom: files.custom.unwrap_or_else(|| running.custom.clone()),
        frameworks: files.frameworks.unwrap_or_else(|| running.frameworks.clone()),
    }
}

/// Loads the newest version from the catalogue; the built-in layers if it does not compile.
fn load_newest(
    catalogue: &Catalogue,
    built_in: &BuiltInLayers,
    place: &ServerProfile,
) -> Result<RunningPolicy, PolicyError> {
    let version = catalogue.policy();
    let brought = version.as_ref().map_or(0, |version| version.files);
    let files = match brought {
        0 => Some(PolicyFiles::default()),
        _ => catalogue.policy_files(brought)?,
    };
    let learnt =
        version.as_ref().map(|version| learning::from_stored_bounds(&version.learnt)).unwrap_or_default();
    let compiled = match &files {
        Some(files) => compile(built_in, place.environment, place, files, SubmittedFiles::NOTHING)
            .map_err(PolicyError::Wrong)
            // A policy that was applied before other nodes served, or by an older build.
            .and_then(|program| permitted(catalogue, program))
            .map(|program| program.with_learnt(learnt))
            .map_err(|wrong| wrong.to_string()),
        None => Err(PolicyError::FilesGone(brought).to_string()),
    };
    let files = files.unwrap_or_default();
    let (program, fault) = match compiled {
        Ok(program) => (program, None),
        Err(why) => {
            let number = version.as_ref().map_or(0, |version| version.number);
            tracing::error!(version = number, %why, "the policy is no longer valid; the built-in defaults \
                are in force");
            let alone =
                compile(built_in, place.environment, place, &PolicyFiles::default(), SubmittedFiles::NOTHING)
                    .map_err(PolicyError::Wrong)?;
            (alone, Some(why))
        }
    };
    Ok(RunningPolicy { version, files, program: Arc::new(program), fault })
}

/// Compiles files; `given` marks those that are new in this change. Returns all faults if there are any.
fn compile(
    built_in: &BuiltInLayers,
    environment: Option<Environment>,
    machine: &dyn Facts,
    files: &PolicyFiles,
    given: SubmittedFiles,
) -> Result<Program, InvalidPolicyFiles> {
    let mut texts = PolicyFileSet::default();
    let policy = if given.custom { PolicyFileSet::submit_policy } else { PolicyFileSet::add_stored_policy };
    let framework =
        if given.frameworks { PolicyFileSet::submit_framework } else { PolicyFileSet::add_stored_framework };
    files.custom.iter().for_each(|file| policy(&mut texts, &file.name, &file.text));
    files.frameworks.iter().for_each(|file| framework(&mut texts, &file.name, &file.text));
    texts.compile(environment, machine, built_in).map_err(InvalidPolicyFiles)
}
