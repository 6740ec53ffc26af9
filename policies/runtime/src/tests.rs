//! Tests of the running policy on a real catalogue: apply, roll back, freeze, watch, and restart.

use super::{
    ChangeAuthor, Policies, PolicyError, PolicyFilesUpdate, ServerProfile, WatchedPolicyFiles, watched_files,
};
use mlgw_common::{Clock, SystemClock};
use mlgw_formats::schema::{PolicyFile, PolicyKind};
use mlgw_metadata::{Catalogue, CatalogueOptions};
use std::path::PathBuf;
use std::sync::Arc;

struct PolicyBench {
    directory: tempfile::TempDir,
    watched: WatchedPolicyFiles,
    policies: Option<(Catalogue, Arc<Policies>)>,
}

impl PolicyBench {
    async fn open(watch: bool) -> Self {
        let room = tempfile::tempdir().unwrap();
        let watched = match watch {
            true => WatchedPolicyFiles { files: vec![room.path().join("p.yaml")], frameworks: vec![] },
            false => WatchedPolicyFiles::default(),
        };
        let mut bench = Self { directory: room, watched, policies: None };
        bench.start().await;
        bench
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("p.yaml")
    }

    async fn start(&mut self) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = CatalogueOptions::new(self.directory.path().join("catalogue"), clock.clone());
        let catalogue = Catalogue::open(options).await.unwrap();
        let policies =
            Policies::open(catalogue.clone(), clock, ServerProfile::default(), self.watched.clone());
        self.policies = Some((catalogue, policies.await.unwrap()));
    }

    async fn restart(&mut self) {
        let (catalogue, policies) = self.policies.take().unwrap();
        drop(policies);
        catalogue.shutdown().await;
        self.start().await;
    }

    fn get(&self) -> &Arc<Policies> {
        &self.policies.as_ref().unwrap().1
    }

    async fn apply(&self, text: &str) -> Result<u64, PolicyError> {
        self.apply_if(text, None).await
    }

    async fn apply_if(&self, text: &str, if_version: Option<u64>) -> Result<u64, PolicyError> {
        let by = ChangeAuthor { who: "AK".into(), message: String::new(), if_version };
        let done = self.get().apply(files(text), by).await?;
        Ok(done.after.map_or(0, |version| version.number))
    }

    /// True if the rule with this id is in the running program; checks that subscribers have the same
    /// program.
    fn holds(&self, id: &str) -> bool {
        let subscribed = self.get().program().borrow().rules().iter().any(|one| &*one.rule.id == id);
        let runs = self.get().running().program.rules().iter().any(|one| &*one.rule.id == id);
        assert_eq!(subscribed, runs);
        runs
    }

    /// Stores a policy as the second version, as an earlier server would, and restarts.
    async fn restart_with_stored(&mut self, text: String) {
        let (catalogue, _) = self.policies.as_ref().unwrap();
        let custom = vec![PolicyFile { name: "old.yaml".into(), text }];
        let put = mlgw_formats::command::PutPolicy {
            version: mlgw_formats::schema::PolicyVersion::default(),
            after: 1,
            files: Some(mlgw_formats::schema::PolicyFiles { custom, frameworks: vec![] }),
            duty_term: None,
        };
        catalogue.put_policy(put).await.unwrap();
        self.restart().await;
    }

    fn newest(&self) -> (u64, PolicyKind, String) {
        let version = self.get().running().version.clone().unwrap();
        (version.number, PolicyKind::try_from(version.kind).unwrap(), version.changes.clone())
    }
}

fn files(text: &str) -> PolicyFilesUpdate {
    let file = PolicyFile { name: "mine.yaml".into(), text: text.into() };
    PolicyFilesUpdate { custom: Some(vec![file]), frameworks: None }
}

fn rule(id: &str) -> String {
    format!(
        "version: 1\nrules:\n- {{id: {id}, conditions: [{{type: file_pattern, property: name, \
         operator: matches, value: '*.a'}}], actions: [{{type: pin}}]}}\n"
    )
}

fn by() -> ChangeAuthor {
    ChangeAuthor { who: "AK".into(), ..ChangeAuthor::default() }
}

#[tokio::test]
async fn an_applied_policy_runs_immediately_and_after_a_restart() {
    let mut bench = PolicyBench::open(false).await;
    assert!(bench.get().running().version.is_none() && !bench.holds("a"));
    let mut subscription = bench.get().program();
    subscription.mark_unchanged();
    assert_eq!(bench.apply(&rule("a")).await.unwrap(), 1);
    assert!(subscription.has_changed().unwrap() && bench.holds("a"));
    assert_eq!(bench.newest(), (1, PolicyKind::Apply, "1 rule added (a)".to_owned()));
    assert_eq!(bench.apply(&rule("a")).await.unwrap(), 1, "an unchanged policy makes no new version");
    bench.restart().await;
    assert!(bench.holds("a"));
    assert_eq!(bench.apply(&rule("b")).await.unwrap(), 2);
    assert!(bench.holds("b") && !bench.holds("a"));
}

#[tokio::test]
async fn a_faulty_or_outdated_change_has_no_effect() {
    let bench = PolicyBench::open(false).await;
    bench.apply(&rule("a")).await.unwrap();
    let wrong = bench.apply(&rule("b").replace("matches", "matchez")).await.unwrap_err().to_string();
    assert!(wrong.starts_with("mine.yaml is invalid:\nmine.yaml:3:"), "{wrong}");
    assert!(wrong.contains("did you mean \"matches\"?"), "{wrong}");
    let stale = bench.apply_if(&rule("b"), Some(0)).await.unwrap_err();
    assert!(matches!(stale, PolicyError::Changed { newest: 1 }), "{stale}");
    assert!(bench.holds("a") && !bench.holds("b"));
    assert_eq!(bench.apply_if(&rule("b"), Some(1)).await.unwrap(), 2);
}

#[tokio::test]
async fn a_rollback_is_a_new_version() {
    let mut bench = PolicyBench::open(false).await;
    let nothing = bench.get().roll_back(None, by()).await.unwrap_err();
    assert!(matches!(nothing, PolicyError::NothingBefore), "{nothing}");
    bench.apply(&rule("a")).await.unwrap();
    bench.apply(&rule("b")).await.unwrap();
    bench.get().freeze(by()).await.unwrap();
    bench.get().roll_back(None, by()).await.unwrap();
    let (number, kind, changes) = bench.newest();
    assert_eq!((number, kind), (4, PolicyKind::Rollback));
    assert_eq!(changes, "1 rule added (a), 1 rule removed (b)");
    assert!(bench.holds("a") && bench.get().running().is_frozen(), "the learning state is unchanged");
    bench.restart().await;
    assert!(bench.holds("a"));
    bench.get().roll_back(None, by()).await.unwrap();
    assert!(bench.holds("b"), "back again");
    bench.get().roll_back(Some(0), by()).await.unwrap();
    assert!(!bench.holds("a") && !bench.holds("b"));
    let unknown = bench.get().roll_back(Some(99), by()).await.unwrap_err();
    assert!(matches!(unknown, PolicyError::NoSuchVersion(99)), "{unknown}");
}

#[tokio::test]
async fn learning_stops_from_freeze_to_unfreeze() {
    let mut bench = PolicyBench::open(false).await;
    let learning = |bench: &PolicyBench| *bench.get().learning().borrow();
    assert!(learning(&bench));
    bench.get().freeze(by()).await.unwrap();
    bench.get().freeze(by()).await.unwrap();
    assert_eq!((learning(&bench), bench.newest().0), (false, 1));
    bench.apply(&rule("a")).await.unwrap();
    bench.restart().await;
    assert!(!learning(&bench));
    bench.get().unfreeze(by()).await.unwrap();
    assert!(learning(&bench));
    bench.apply("version: 1\nsettings: {learning: off}\n").await.unwrap();
    assert!(!learning(&bench), "the policy also disables learning");
}

/// A policy with the rule `few`, which deletes and has further actions.
fn deleting(more: &str) -> String {
    let condition = "{type: file_pattern, property: name, operator: matches, value: '*.a'}";
    let retain = "{type: retain, parameters: {keep_last: 1, delete: true, grace: 1d}}";
    format!("version: 1\nrules:\n- {{id: few, conditions: [{condition}], actions: [{retain}{more}]}}\n")
}

#[tokio::test]
async fn a_cluster_refuses_rules_that_delete_by_their_names() {
    let bench = PolicyBench::open(false).await;
    bench.apply(&deleting("")).await.unwrap();
    let running = || mlgw_policies::language::Program::clone(&bench.get().running().program);
    let refused = crate::deletions::without_deletions(running()).unwrap_err().to_string();
    assert!(refused.contains("must not delete") && refused.ends_with("(rules: few)"), "{refused}");
    bench.apply(&rule("b")).await.unwrap();
    crate::deletions::without_deletions(running()).unwrap();
}

#[tokio::test]
async fn a_deleting_rule_starts_anew_after_its_removal_or_a_rollback() {
    let few = deleting;
    let mut bench = PolicyBench::open(false).await;
    let since = |bench: &PolicyBench| bench.get().deletes_since_ms("few");
    // The sleep makes timestamps differ.
    let later = || mlgw_common::time::sleep(std::time::Duration::from_millis(2));
    assert_eq!(since(&bench), i64::MAX, "the rule does not run");
    bench.apply(&few("")).await.unwrap();
    let first = since(&bench);
    assert!(first < i64::MAX);
    later().await;
    bench.apply(&few(", {type: unpin}")).await.unwrap();
    bench.get().freeze(by()).await.unwrap();
    assert_eq!(since(&bench), first, "the rule has run without a break");
    bench.get().roll_back(None, by()).await.unwrap();
    let second = since(&bench);
    assert!(second > first, "a rollback restarts the uptime of all rules");
    later().await;
    bench.apply(&rule("b")).await.unwrap();
    assert_eq!(since(&bench), i64::MAX);
    bench.apply(&few("")).await.unwrap();
    let third = since(&bench);
    assert!(third > second, "the change was rolled back");
    bench.get().unfreeze(by()).await.unwrap();
    bench.restart().await;
    let fourth = since(&bench);
    assert!(fourth > second && fourth <= third, "since its version, not since the start: {third} {fourth}");
    assert_eq!(bench.get().deletes_since_ms("b"), i64::MAX);
}

async fn write_and_check(bench: &PolicyBench, write: &str) {
    std::fs::write(bench.path(), write).unwrap();
    watched_files::check(bench.get()).await;
}

#[tokio::test]
async fn a_watched_file_is_applied_or_refused_as_a_whole() {
    let mut bench = PolicyBench::open(true).await;
    assert!(
        bench.get().refused().is_some_and(|refused| refused.why.contains("p.yaml: ")),
        "the file is missing"
    );
    write_and_check(&bench, &rule("a")).await;
    assert!(bench.holds("a") && bench.get().refused().is_none());
    assert_eq!(bench.newest().1, PolicyKind::Reload);
    write_and_check(&bench, "version: 1\nrules: {}\n").await;
    watched_files::check(bench.get()).await;
    let refused = bench.get().refused().unwrap();
    assert!(refused.why.contains("p.yaml:2:"), "{}", refused.why);
    assert!(bench.holds("a") && bench.newest().0 == 1);
    assert_eq!(bench.get().refusals()[0], ("file", 2), "each refusal is counted once");
    write_and_check(&bench, &rule("a")).await;
    assert!(bench.get().refused().is_none() && bench.newest().0 == 1, "the policy is unchanged");
    write_and_check(&bench, &rule("b")).await;
    assert!(bench.holds("b"));
    bench.restart().await;
    assert_eq!((bench.holds("b"), bench.newest().0), (true, 2));
}

#[tokio::test]
async fn the_latest_change_wins_between_a_person_and_a_watched_file() {
    let mut bench = PolicyBench::open(true).await;
    write_and_check(&bench, &rule("a")).await;
    bench.apply(&rule("mine")).await.unwrap();
    watched_files::check(bench.get()).await;
    bench.restart().await;
    assert!(bench.holds("mine"), "the file did not change since");
    write_and_check(&bench, &rule("b")).await;
    assert!(bench.holds("b") && !bench.holds("mine"));
}

#[tokio::test]
async fn an_unnoticed_version_is_loaded_before_the_next_one() {
    let bench = PolicyBench::open(false).await;
    bench.apply(&rule("a")).await.unwrap();
    let (catalogue, _) = bench.policies.as_ref().unwrap();
    let untold = mlgw_formats::command::PutPolicy {
        version: mlgw_formats::schema::PolicyVersion { is_frozen: true, files: 1, ..Default::default() },
        after: 1,
        files: None,
        duty_term: None,
    };
    catalogue.put_policy(untold).await.unwrap();
    assert_eq!(bench.apply(&rule("b")).await.unwrap(), 3);
    assert!(bench.holds("b") && bench.get().running().is_frozen());
}

#[tokio::test]
async fn a_stored_policy_that_does_not_compile_lets_the_server_start() {
    let mut bench = PolicyBench::open(false).await;
    bench.apply(&rule("a")).await.unwrap();
    // Simulates a newer server that rejects a policy that was once valid.
    bench.restart_with_stored("version: 1\nrulez: []\n".to_owned()).await;
    let running = bench.get().running();
    assert!(running.fault.as_ref().is_some_and(|why| why.contains("old.yaml:2:1")), "{:?}", running.fault);
    assert!(!bench.holds("a") && !running.program.rules().is_empty());
    drop(running);
    bench.get().roll_back(Some(1), by()).await.unwrap();
    assert!(bench.holds("a") && bench.get().running().fault.is_none());
}

#[tokio::test]
async fn a_switch_of_a_missing_rule_is_refused_from_a_person_and_harmless_in_a_stored_policy() {
    let mut bench = PolicyBench::open(false).await;
    bench.apply(&rule("a")).await.unwrap();
    let stale = format!("{}- {{id: no-such, enabled: false}}\n", rule("b"));
    let wrong = bench.apply(&stale).await.unwrap_err().to_string();
    assert!(wrong.contains("mine.yaml:4:8: rules[1].id: there is no rule \"no-such\""), "{wrong}");
    bench.restart_with_stored(stale).await;
    assert!(bench.holds("b") && bench.get().running().fault.is_none());
    bench.apply(&rule("c")).await.unwrap();
    bench.get().roll_back(Some(2), by()).await.unwrap();
    assert!(bench.holds("b") && !bench.holds("c"));
}

#[tokio::test]
async fn removed_words_are_harmless_in_a_stored_policy_and_to_plugins_applied_later() {
    const OLD: &str =
        "[{type: intelligent_cache, parameters: {bypass_one_pass: true}}, {type: retain, target: dataset}]";
    let mut bench = PolicyBench::open(false).await;
    bench.apply(&rule("a")).await.unwrap();
    let stale = format!("{}- {{id: no-such, enabled: false}}\n", rule("b").replace("[{type: pin}]", OLD));
    let wrong = bench.apply(&stale).await.unwrap_err().to_string();
    assert!(wrong.contains("bypass_one_pass") && wrong.contains("has no checkpoints"), "{wrong}");
    bench.restart_with_stored(stale.clone()).await;
    assert!(bench.holds("b") && bench.get().running().fault.is_none());
    let plugin = |id: &str| {
        let detect = "detect: {user_agents: [{pattern: mine, confidence: 1}]}";
        let text = rule(id).replace("version: 1", &format!("version: 1\nframework: mine\n{detect}"));
        PolicyFilesUpdate {
            custom: None,
            frameworks: Some(vec![PolicyFile { name: "plugin.yaml".into(), text }]),
        }
    };
    bench.get().compile(plugin("p")).unwrap();
    bench.get().apply(plugin("p"), by()).await.unwrap();
    assert!(bench.holds("b") && bench.holds("p"));
    assert!(bench.get().reload(plugin("q"), vec![1]).await && bench.get().refused().is_none());
    assert!(bench.holds("b") && bench.holds("q"));
    bench.get().compile(files(&stale)).unwrap_err();
    assert!(bench.get().reload(files(&stale), vec![2]).await && bench.get().refused().is_some());
}
