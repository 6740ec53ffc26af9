//! The running policy of a server: applied, shown, rolled back, watched, planned and explained, also after
//! a kill.

use super::write;
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::{ServerProcess, ServerSetup, runtime};
use http::Method;
use mlgw_common::time::Instant;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const BUCKET: &str = "lake";

/// A directory for files, and a server in it.
pub(super) struct ServerBench {
    pub(super) dir: tempfile::TempDir,
    pub(super) setup: ServerSetup,
}

impl ServerBench {
    pub(super) fn new() -> Self {
        let room = super::temp_dir();
        let setup = ServerSetup::new(room.path().join("data"));
        Self { dir: room, setup }
    }

    pub(super) fn file(&self, name: &str, text: &str) -> String {
        write(self.dir.path(), name, text);
        self.dir.path().join(name).display().to_string()
    }

    /// Runs `mlgw policy …`. Returns its output and status.
    pub(super) fn run(&self, words: &[&str]) -> (String, Option<i32>) {
        self.setup.command(&[&["policy"], words].concat())
    }

    /// Runs a policy command and returns its output, parsed as JSON.
    pub(super) fn run_json(&self, words: &[&str]) -> Value {
        let (output, status) = self.run(&[&["--output", "json"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {output}");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Returns the kinds of all versions, the newest first.
    fn kinds(&self) -> Vec<String> {
        let history = self.run_json(&["history", "--limit", "1000"]);
        let versions = history["versions"].as_array().expect("versions").clone();
        versions.iter().map(|one| one["kind"].as_str().expect("a kind").to_owned()).collect()
    }

    /// True if a rule with this id is in force.
    fn is_in_force(&self, id: &str) -> bool {
        let effective = self.run_json(&["show", "--effective"]);
        let rules = effective["policy"]["rules"].as_array().expect("rules").clone();
        rules.iter().any(|rule| rule["id"] == id)
    }

    /// Waits until the reload of watched files has this result.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let begun = Instant::now();
        loop {
            let shown = self.run_json(&["show"]);
            if is_so(&shown) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}: {shown:#}");
            mlgw_common::time::block_for(Duration::from_millis(20));
        }
    }
}

fn restart_after_kill(bench: &ServerBench, mut server: ServerProcess) -> ServerProcess {
    server.kill();
    bench.setup.start()
}

fn rule(id: &str, pattern: &str, action: &str) -> String {
    format!(
        "version: 1\nrules:\n- id: {id}\n  priority: 90\n  conditions:\n  \
         - {{type: file_pattern, property: name, operator: matches, value: '{pattern}'}}\n  actions:\n  \
         - {{type: {action}}}\n"
    )
}

#[test]
fn an_applied_policy_runs_at_once_and_survives_a_kill() {
    let bench = ServerBench::new();
    let server = bench.setup.start();
    let (output, status) = bench.run(&["show"]);
    assert!(status == Some(0) && output.starts_with("# No policy was applied"), "{output}");
    let text = rule("tars", "*.tar", "pin");
    let first = bench.file("first.yaml", &text);
    let (output, status) = bench.run(&["apply", &first, "--message", "initially"]);
    assert_eq!(
        (output.as_str(), status),
        ("Applied version 1 of the policy: 1 rule added (tars).\n", Some(0))
    );
    let server = restart_after_kill(&bench, server);
    assert_eq!(bench.run(&["show"]).0, text);
    let effective = bench.run_json(&["show", "--effective"]);
    assert_eq!(effective["from"]["rules"]["tars"], json!({"layer": "custom", "file": first, "line": 3}));
    let (yaml, _) = bench.run(&["show", "--effective"]);
    assert!(yaml.contains(&format!("# from {first}:3\n  - id: tars\n")), "{yaml}");
    assert!(yaml.contains("# from built-in/defaults.yaml:"), "the weaker layers are included");
    let second = bench.file("second.yaml", &rule("jpegs", "*.jpg", "pin"));
    assert_eq!(bench.run_json(&["apply", &second])["version"]["version"], 2);
    bench.run_json(&["freeze", "--message", "for the audit"]);
    let server = restart_after_kill(&bench, server);
    assert_eq!(
        (
            bench.is_in_force("jpegs"),
            bench.is_in_force("tars"),
            bench.run_json(&["show"])["learning"].clone()
        ),
        (true, false, json!(false))
    );
    let (output, _) = bench.run(&["rollback"]);
    assert_eq!(output, "Applied version 4 of the policy: 1 rule added (tars), 1 rule removed (jpegs).\n");
    bench.run_json(&["unfreeze"]);
    let server = restart_after_kill(&bench, server);
    assert!(bench.is_in_force("tars") && bench.run_json(&["show"])["learning"] == true);
    assert_eq!(bench.kinds(), ["unfreeze", "rollback", "freeze", "apply", "apply"]);
    let history = bench.run_json(&["history"]);
    let oldest = &history["versions"][4];
    assert_eq!(oldest["message"], "initially");
    assert!(oldest["who"].as_str().is_some_and(|who| who.starts_with("mlgw-local-")), "{oldest}");
    bench.run_json(&["rollback", "0"]);
    assert!(!bench.is_in_force("tars"), "only the built-in policy is left");
    let status = bench.setup.command(&["status"]).0;
    assert!(status.contains("policy     version 6, "), "{status}");
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    assert!(metrics.contains("mlgw_policy_version 6\n"), "{metrics}");
    server.stop();
}

#[test]
fn an_invalid_file_is_refused_with_the_errors_of_validate() {
    let bench = ServerBench::new();
    let server = bench.setup.start();
    let good = bench.file("good.yaml", &rule("tars", "*.tar", "pin"));
    bench.run_json(&["apply", &good]);
    let bad = bench.file("bad.yaml", &rule("jpegs", "*.jpg", "pinn").replace("matches", "matchez"));
    let (offline, _) = bench.run(&["validate", &bad]);
    let (output, status) = bench.run(&["apply", &bad]);
    assert_eq!(status, Some(1), "{output}");
    let diagnostics: Vec<&str> = offline.lines().filter(|line| line.contains("did you mean")).collect();
    assert_eq!(diagnostics.len(), 2, "{offline}");
    assert_eq!(output, format!("mlgw: {bad} is invalid:\n{}\n", diagnostics.join("\n")));
    assert!(bench.is_in_force("tars") && !bench.is_in_force("jpegs"));
    assert_eq!(bench.kinds(), ["apply"]);
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    assert!(metrics.contains("mlgw_policy_refused_total{source=\"person\"} 1\n"), "{metrics}");
    let (output, status) = bench.run(&["plan", &bad]);
    assert!(status == Some(1) && output.contains("did you mean \"pin\"?"), "{output}");
    server.stop();
}

#[test]
fn concurrent_applies_do_not_overwrite_each_other_unnoticed() {
    let bench = ServerBench::new();
    let server = bench.setup.start();
    let (one, two) =
        (bench.file("1.yaml", &rule("one", "*", "pin")), bench.file("2.yaml", &rule("two", "*", "pin")));
    bench.run_json(&["apply", &one, "--if-version", "0"]);
    let (output, status) = bench.run(&["apply", &two, "--if-version", "0"]);
    assert!(status == Some(4) && output.contains("its version is 1"), "{output}");
    assert!(bench.is_in_force("one") && !bench.is_in_force("two"));
    for words in [&["rollback", "--if-version", "5"][..], &["freeze", "--if-version", "5"]] {
        assert_eq!(bench.run(words).1, Some(4), "{words:?}");
    }
    bench.run_json(&["apply", &two, "--if-version", "1"]);
    assert_eq!(bench.kinds(), ["apply", "apply"]);
    let audit = std::fs::read_to_string(bench.setup.data_dir.join("audit/audit.log")).expect("the audit log");
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let policies: Vec<&Value> = lines
        .iter()
        .filter(|line| line["action"].as_str().is_some_and(|a| a.starts_with("policy.")))
        .collect();
    assert_eq!(policies.len(), 5, "each has a line: {policies:#?}");
    assert_eq!((&policies[4]["before"]["version"], &policies[4]["after"]["version"]), (&1.into(), &2.into()));
    server.stop();
}

#[test]
fn a_custom_plugin_is_applied_beside_policies() {
    let bench = ServerBench::new();
    let server = bench.setup.start();
    let plugin = "version: 1\nframework: mine\ndetect:\n  keys: [{pattern: '*.mine', confidence: 0.9}]\n\
        rules:\n- id: mine-stays\n  conditions: [{type: file_context, property: size, \
        operator: greater_than, value: 1B}]\n  actions: [{type: pin}]\n";
    let plugin = bench.file("mine.yaml", plugin);
    let (output, status) = bench.run(&["apply", &plugin]);
    assert!(status == Some(2) && output.contains("give it as --framework"), "{output}");
    bench.run_json(&["apply", "--framework", &plugin]);
    let policy = bench.file("p.yaml", &rule("tars", "*.tar", "pin"));
    bench.run_json(&["apply", &policy]);
    assert!(
        bench.is_in_force("mine-stays") && bench.is_in_force("tars"),
        "the other kind of file stays in force"
    );
    bench.run_json(&["apply", "--without-frameworks"]);
    assert!(!bench.is_in_force("mine-stays") && bench.is_in_force("tars"));
    server.stop();
}

#[test]
fn a_changed_watched_file_is_loaded_and_an_invalid_one_is_refused() {
    let bench = ServerBench::new();
    let path = bench.file("watched.yaml", &rule("tars", "*.tar", "pin"));
    let bench = ServerBench { setup: bench.setup.clone().with("policy.files", &path), ..bench };
    let server = bench.setup.start();
    assert!(bench.is_in_force("tars"), "the file is in force before the first request");
    write(Path::new(&path).parent().expect("a directory"), "watched.yaml", &rule("jpegs", "*.jpg", "pin"));
    bench.until("the changed file is in force", |shown| shown["version"]["version"] == 2);
    assert!(bench.is_in_force("jpegs") && !bench.is_in_force("tars"));
    bench.file("watched.yaml", &rule("gifs", "*.gif", "pin").replace("file_pattern", "file_patern"));
    bench.until("the wrong file is refused", |shown| shown["refused"].is_string());
    let refused = bench.run_json(&["show"])["refused"].as_str().expect("why").to_owned();
    assert!(
        refused.contains(&format!("{path}:6:12: ")) && refused.contains("did you mean \"file_pattern\"?"),
        "{refused}"
    );
    assert!(bench.is_in_force("jpegs") && !bench.is_in_force("gifs"));
    assert!(server.log().contains("the watched policy files are refused"), "{}", server.log());
    let (status, code) = bench.setup.command(&["status"]);
    assert!(code == Some(1) && status.contains("The watched policy files are invalid"), "{status}");
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    assert!(metrics.contains("mlgw_policy_faults{what=\"file\"} 1\n"), "{metrics}");
    let server = restart_after_kill(&bench, server);
    assert!(bench.is_in_force("jpegs"), "also after a restart");
    bench.file("watched.yaml", &rule("jpegs", "*.jpg", "pin"));
    bench.until("the file is valid again", |shown| shown["refused"].is_null());
    let mine = bench.file("mine.yaml", &rule("mine", "*", "pin"));
    bench.run_json(&["apply", &mine]);
    let server = restart_after_kill(&bench, server);
    assert!(bench.is_in_force("mine"), "the file is unchanged since another policy was applied");
    bench.file("watched.yaml", &rule("pngs", "*.png", "pin"));
    bench.until("the newest change of the file is in force", |shown| shown["version"]["kind"] == "reload");
    assert!(bench.is_in_force("pngs") && !bench.is_in_force("mine"));
    assert_eq!(bench.kinds(), ["reload", "apply", "reload", "reload"]);
    server.stop();
}

/// Starts a server with some objects in a bucket.
fn filled(bench: &ServerBench) -> ServerProcess {
    let server = bench.setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for (key, length) in [("train/0.tar", 2000), ("train/1.tar", 3000), ("notes.txt", 10)] {
            let bytes = TestContent { id: 1, length }.bytes();
            client.put(BUCKET, key, full_body(bytes)).await.expect("stored");
        }
    });
    server
}

#[test]
fn a_plan_lists_actions_that_would_start_and_stop() {
    let bench = ServerBench::new();
    let server = filled(&bench);
    let notes = bench.file("notes.yaml", &rule("notes-stay", "*.txt", "pin"));
    bench.run_json(&["apply", &notes]);
    let text = rule("tars-down", "*.tar", "spill")
        + "- id: busy\n  conditions: [{type: access_pattern, property: reads, operator: greater_than, \
            value: 3}]\n  actions: [{type: pin}]\n";
    let tars = bench.file("tars.yaml", &text);
    let plan = bench.run_json(&["plan", &tars]);
    assert_eq!((&plan["objects"], &plan["changed"], &plan["version"]), (&3.into(), &3.into(), &1.into()));
    let planned_action = |rule: &str| {
        let planned_actions = plan["actions"].as_array().expect("actions");
        planned_actions.iter().find(|action| action["rule"] == rule).unwrap_or_else(|| panic!("{plan:#}"))
    };
    let down = planned_action("tars-down");
    assert_eq!((&down["change"], &down["action"]), (&"starts".into(), &"spill".into()));
    assert_eq!(
        (&down["objects"], &down["bytes"], &down["moved_bytes"]),
        (&2.into(), &5000.into(), &0.into())
    );
    let nowhere = plan["impossible"][0].as_str().expect("the reason is reported");
    assert!(nowhere.starts_with("spill has no effect: no tier below the hot tier"), "{nowhere}");
    assert_eq!(down["examples"][0]["object"], "s3://lake/train/0.tar");
    let reason = down["examples"][0]["reason"].as_str().expect("a sentence");
    let expected =
        format!("spill because rule tars-down (priority 90, {tars}:3) matched: name matches *.tar (0.tar)");
    assert_eq!(reason.split("; ").next(), Some(expected.as_str()));
    let stays = planned_action("notes-stay");
    assert_eq!(
        (&stays["change"], &stays["objects"], &stays["moved_bytes"]),
        (&"stops".into(), &1.into(), &0.into())
    );
    assert_eq!(plan["not_judged"], json!([{"rule": "busy", "asks": ["reads"]}]));
    let (output, _) = bench.run(&["plan", &tars]);
    assert!(output.contains("Undetermined until objects are read: busy (reads).\n"), "{output}");
    assert!(output.ends_with("3 of 3 objects would be treated differently.\n"), "{output}");
    assert_eq!(bench.kinds(), ["apply"], "nothing changed");
    server.stop();
    let cold = bench.dir.path().join("cold");
    std::fs::create_dir(&cold).expect("made");
    let ServerBench { dir: _room, setup } = bench;
    let setup = setup.with("cold.dirs", cold.display());
    let server = setup.start();
    let (output, _) = setup.command(&["--output", "json", "policy", "plan", &tars]);
    let plan: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let down =
        plan["actions"].as_array().expect("actions").iter().find(|action| action["rule"] == "tars-down");
    assert_eq!(down.expect("a spill")["moved_bytes"], 5000);
    assert_eq!(plan["impossible"], json!([]));
    server.stop();
}

#[test]
fn explain_shows_due_actions_of_an_object_and_their_reasons() {
    let bench = ServerBench::new();
    let server = filled(&bench);
    let text = rule("tars-stay", "*.tar", "pin")
        + "- id: tars-go\n  priority: 10\n  conditions: [{type: file_context, property: size, \
            operator: greater_than, value: 1KiB}]\n  actions: [{type: spill}, {type: compress, \
            stance: observe}]\n";
    let policy = bench.file("p.yaml", &text);
    bench.run_json(&["apply", &policy]);
    let explained = bench.run_json(&["explain", "s3://lake/train/0.tar"]);
    let reason = explained["reason"].as_str().expect("a sentence");
    assert!(
        reason.starts_with(&format!(
            "pin because rule tars-stay (priority 90, {policy}:3) matched: name matches *.tar (0.tar)"
        )),
        "{reason}"
    );
    let of = |list: &str, rule: &str| {
        let found =
            explained[list].as_array().expect("a list").iter().find(|one| one["rule"] == rule).cloned();
        found.unwrap_or_else(|| panic!("{list}: {explained:#}"))
    };
    assert_eq!(
        of("due", "tars-stay"),
        json!({"action": "pin", "target": "object", "rule": "tars-stay", "note": ""})
    );
    assert_eq!(of("observed", "tars-go")["action"], "compress");
    let lost = of("overridden", "tars-go");
    assert_eq!(
        (&lost["action"], &lost["to_rule"], &lost["why"]),
        (&"spill".into(), &"tars-stay".into(), &"contradicts".into())
    );
    let fact = |word: &str| {
        let facts = explained["facts"].as_array().expect("facts");
        facts.iter().find(|fact| fact["property"] == word).map(|fact| fact["value"].clone())
    };
    assert_eq!(
        (fact("bucket"), fact("path"), fact("tier")),
        (Some("lake".into()), Some("train/".into()), Some("hot".into()))
    );
    assert_eq!((fact("type"), fact("frequency")), (Some("shard".into()), None));
    assert_eq!(explained["object"]["tiers"][0]["tier"], "hot");
    let (output, status) = bench.run(&["explain", "s3://lake/train/0.tar"]);
    assert_eq!(status, Some(0), "{output}");
    for line in ["overridden  spill", "observed    compress", "due         pin"] {
        assert!(output.contains(line), "{line}: {output}");
    }
    assert_eq!(bench.run(&["explain", "s3://lake/none"]).1, Some(1));
    server.stop();
}

#[test]
fn cached_objects_of_a_remote_backed_bucket_are_planned_and_explained() {
    let room = super::temp_dir();
    let origin = ServerSetup::new(room.path().join("origin")).start();
    let setup = ServerSetup::new(room.path().join("data")).with_upstream("far", origin.s3, "there", "5s");
    let bench = ServerBench { dir: room, setup };
    runtime().block_on(async {
        origin.client().create_bucket("there").await.expect("made");
        for key in ["0.tar", "1.tar", "unread.tar"] {
            let bytes = TestContent { id: 2, length: 5000 }.bytes();
            origin.client().put("there", key, full_body(bytes)).await.expect("stored");
        }
    });
    let server = bench.setup.start();
    let (output, status) = bench.setup.command(&["bucket", "bind", "here", "--upstream", "far"]);
    assert_eq!(status, Some(0), "{output}");
    runtime().block_on(async {
        for key in ["0.tar", "1.tar"] {
            server.client().get("here", key).await.expect("read");
        }
    });
    let policy = bench.file("p.yaml", &rule("tars-go", "*.tar", "evict"));
    let plan = bench.run_json(&["plan", &policy]);
    assert_eq!((&plan["objects"], &plan["actions"][0]["objects"]), (&2.into(), &2.into()), "{plan:#}");
    bench.run_json(&["apply", &policy]);
    let explained = bench.run_json(&["explain", "s3://here/unread.tar"]);
    assert_eq!(
        (&explained["due"][0]["rule"], &explained["object"]["size"]),
        (&"tars-go".into(), &5000.into()),
        "{explained:#}"
    );
    server.stop();
}

#[test]
fn conditions_on_tags_never_hold_if_only_the_origin_has_the_tags() {
    let room = super::temp_dir();
    let origin = ServerSetup::new(room.path().join("origin")).start();
    let setup = ServerSetup::new(room.path().join("data")).with_upstream("far", origin.s3, "there", "5s");
    let bench = ServerBench { dir: room, setup };
    let put =
        async |client: crate::s3::S3TestClient, bucket: &str, key: &str, tags: &[(&'static str, String)]| {
            let body = full_body(TestContent { id: 2, length: 5000 }.bytes());
            client.call(Method::PUT, &format!("/{bucket}/{key}"), tags, body).await.expect("stored");
        };
    let tagged = [("x-amz-tagging", "stage=production".to_owned())];
    let server = bench.setup.start();
    runtime().block_on(async {
        origin.client().create_bucket("there").await.expect("made");
        server.client().create_bucket("own").await.expect("made");
        put(origin.client(), "there", "tagged", &tagged).await;
        put(server.client(), "own", "tagged", &tagged).await;
        put(server.client(), "own", "plain", &[]).await;
    });
    let (output, status) = bench.setup.command(&["bucket", "bind", "here", "--upstream", "far"]);
    assert_eq!(status, Some(0), "{output}");
    let mut rules = String::from("version: 1\nrules:\n");
    for (id, condition) in [
        ("none", "tags.stage, operator: exists, value: false"),
        ("some", "tags.stage, operator: exists"),
        ("other", "tags, operator: not_equals, value: golden"),
    ] {
        rules += &format!(
            "- {{id: {id}, conditions: [{{type: file_context, property: {condition}}}], \
             actions: [{{type: pin}}]}}\n"
        );
    }
    bench.run_json(&["apply", &bench.file("p.yaml", &rules)]);
    let matched = |place: &str| {
        let explained = bench.run_json(&["explain", place]);
        let tried = explained["rules"].as_array().expect("rules").clone();
        let is_so = |id: &str| tried.iter().any(|one| one["rule"] == id && one["matched"] == true);
        ["none", "some", "other"].map(is_so)
    };
    runtime().block_on(server.client().get("here", "tagged")).expect("read");
    assert_eq!(matched("s3://here/tagged"), [false, false, false]);
    assert_eq!(matched("s3://own/tagged"), [false, true, true]);
    assert_eq!(matched("s3://own/plain"), [true, false, true]);
    server.stop();
}
