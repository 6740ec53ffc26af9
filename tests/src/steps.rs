//! Tests of the runner of the steps of `make test`, with stand-ins for two of its steps: the tests that run
//! once more, and the closing lines.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A stand-in for a step. It has the tests `good`, `flaky one` and `bad[x]`; `$FAILS` names the tests that
/// fail, each as often as it is named. With `$BREAKS` the step exits with this status instead and lists no
/// test.
const STEP: &str = r#"#!/usr/bin/env bash
name=$(basename "$0")
[ "$name" = lint ] && { echo "test result: ok. 1 passed; 0 failed"; exit 0; }
[ -z "${BREAKS:-}" ] || exit "$BREAKS"
tests=(good "flaky one" "bad[x]")
[ -z "${MLGW_AGAIN:-}" ] || mapfile -t tests <"$MLGW_AGAIN"
printf '%s\n' "${tests[@]}" >>"$STATE/runs"
passed=0 failed=0
for test in "${tests[@]}"; do
    times=$(grep -cxF "$test" "$STATE/runs")
    if [ "$times" -le "$(grep -cxF "$test" <<<"${FAILS:-}")" ]; then
        failed=$((failed + 1))
        echo "$test" >>"$MLGW_FAILED"
    else
        passed=$((passed + 1))
    fi
done
[ -z "${SILENT:-}" ] || [ -z "${MLGW_AGAIN:-}" ] || exit 0
echo "===== $failed failed, $passed passed in 0.01s ====="
[ "$failed" -eq 0 ]
"#;

/// A copy of the runner with the stand-ins.
struct StepRunner {
    temp_dir: tempfile::TempDir,
}

/// The output of a run, and its success.
struct RunOutput {
    text: String,
    is_success: bool,
}

impl RunOutput {
    fn last_line(&self) -> &str {
        self.text.lines().last().unwrap_or_default()
    }
}

impl StepRunner {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("made");
        let steps = room.path().join("tests/steps");
        fs::create_dir_all(&steps).expect("made");
        fs::create_dir(room.path().join("state")).expect("made");
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("steps");
        for name in ["run", "lib.sh"] {
            fs::copy(own.join(name), steps.join(name)).expect("copied");
        }
        for name in ["format", "lint"] {
            fs::write(steps.join(name), STEP).expect("written");
            fs::set_permissions(steps.join(name), fs::Permissions::from_mode(0o755)).expect("set");
        }
        Self { temp_dir: room }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp_dir.path().join(name)
    }

    fn run(&self, variables: &[(&str, &str)]) -> RunOutput {
        let _ = fs::remove_file(self.path("state/runs"));
        let mut command = Command::new("bash");
        command.arg(self.path("tests/steps/run")).arg("check");
        command.env("MLGW_CACHE", self.path("cache")).env("STATE", self.path("state"));
        command.envs(variables.iter().copied());
        let ended = command.output().expect("run");
        let text = String::from_utf8(ended.stdout).expect("text");
        RunOutput { text, is_success: ended.status.success() }
    }

    /// Number of runs of a test.
    fn runs(&self, test: &str) -> usize {
        let runs = fs::read_to_string(self.path("state/runs")).unwrap_or_default();
        runs.lines().filter(|line| *line == test).count()
    }
}

#[test]
fn a_test_that_fails_runs_once_more_and_is_flaky_or_fails_the_run() {
    let runner = StepRunner::new();
    for (fails, flaky, last, is_success) in [
        ("", &[][..], "4 passed, 0 failed", true),
        ("flaky one", &["    format  flaky one"], "4 passed, 0 failed", true),
        ("flaky one\nbad[x]", &["    format  flaky one", "    format  bad[x]"], "4 passed, 0 failed", true),
        ("bad[x]\nbad[x]", &[], "3 passed, 1 failed", false),
        ("flaky one\nbad[x]\nbad[x]", &["    format  flaky one"], "3 passed, 1 failed", false),
        ("flaky one\nflaky one\nbad[x]\nbad[x]", &[], "2 passed, 2 failed", false),
    ] {
        let ended = runner.run(&[("FAILS", fails)]);
        assert_eq!((ended.last_line(), ended.is_success), (last, is_success), "{fails:?}: {}", ended.text);
        let listed: Vec<_> = ended.text.lines().filter(|line| line.starts_with("    format  ")).collect();
        assert_eq!(listed, flaky, "{}", ended.text);
        assert_eq!(ended.text.contains("\nflaky, to be fixed"), !flaky.is_empty(), "{}", ended.text);
        for test in ["good", "flaky one", "bad[x]"] {
            assert_eq!(runner.runs(test), 1 + usize::from(fails.lines().any(|one| one == test)), "{test}");
        }
    }
}

#[test]
fn a_step_that_fails_without_a_test_is_not_run_once_more() {
    let runner = StepRunner::new();
    for status in ["1", "2", "101", "124"] {
        let ended = runner.run(&[("BREAKS", status)]);
        assert_eq!((ended.last_line(), ended.is_success), ("1 passed, 1 failed", false), "{}", ended.text);
        assert!(!ended.text.contains("once more"), "{}", ended.text);
    }
}

#[test]
fn a_test_that_is_missing_from_the_second_run_has_not_passed() {
    let ended = StepRunner::new().run(&[("FAILS", "flaky one"), ("SILENT", "yes")]);
    assert_eq!((ended.last_line(), ended.is_success), ("3 passed, 1 failed", false), "{}", ended.text);
}
