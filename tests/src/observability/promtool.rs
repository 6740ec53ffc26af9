//! Evaluates rules over given time series with Prometheus's own tool (`MLGW_PROMTOOL`).

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::scrape::{Scrape, is_counter};

/// Minutes of normal operation at the beginning.
const CALM_MINUTES: usize = 30;
/// Minutes of the whole story; longer than the `for` duration of any alert.
pub(super) const MINUTES: usize = 120;

/// A scrape that is repeated for some minutes; `None` if the server did not respond.
pub(super) struct ScrapeStage {
    pub(super) scrape: Option<Scrape>,
    pub(super) minutes: usize,
}

/// Scrapes over two hours, which begin with normal operation.
pub(super) struct AlertStory {
    /// Alerts that fire.
    pub(super) alerts: &'static [&'static str],
    pub(super) stages: Vec<ScrapeStage>,
}

impl AlertStory {
    /// Returns a story of normal operation, then of a persistent condition: in each minute, counters grow
    /// by the difference between the two scrapes.
    pub(super) fn of_condition(alerts: &'static [&'static str], before: Scrape, after: Scrape) -> Self {
        let mut stages = vec![ScrapeStage { scrape: Some(before.clone()), minutes: CALM_MINUTES }];
        let mut last = before.clone();
        for _ in CALM_MINUTES..MINUTES {
            let grown = after.0.iter().map(|(series, now)| {
                let then = before.0.get(series).copied().unwrap_or(0.0);
                let value = match is_counter(series) {
                    true => last.0.get(series).copied().unwrap_or(0.0) + (now - then).max(0.0),
                    false => *now,
                };
                (series.clone(), value)
            });
            last = Scrape(grown.collect());
            stages.push(ScrapeStage { scrape: Some(last.clone()), minutes: 1 });
        }
        Self { alerts, stages }
    }

    /// Returns a story of normal operation, then of these stages; the last one continues to the end.
    pub(super) fn of_stages(alerts: &'static [&'static str], before: Scrape, then: Vec<ScrapeStage>) -> Self {
        let mut stages = vec![ScrapeStage { scrape: Some(before), minutes: CALM_MINUTES }];
        stages.extend(then);
        let minutes: usize = stages.iter().map(|stage| stage.minutes).sum();
        let last = stages.last_mut().expect("a stage");
        last.minutes += MINUTES - minutes;
        Self { alerts, stages }
    }

    /// Returns the story as a test of promtool: no alert fires during normal operation, and the expected
    /// ones fire later.
    fn test(&self) -> Value {
        let fired = |alert: &&str| {
            json!({
                "expr": format!("max by (alertname) (max_over_time(ALERTS{{alertname=\"{alert}\",\
                    alertstate=\"firing\"}}[{MINUTES}m]))"),
                "eval_time": format!("{}m", MINUTES - 1),
                "exp_samples": [{ "labels": format!("{{alertname=\"{alert}\"}}"), "value": 1 }],
            })
        };
        let calm = json!({
            "expr": format!("max by (alertname) (max_over_time(ALERTS[{CALM_MINUTES}m]))"),
            "eval_time": format!("{}m", CALM_MINUTES - 1),
            "exp_samples": [],
        });
        let expected: Vec<Value> = self.alerts.iter().map(fired).chain([calm]).collect();
        json!({ "interval": "1m", "input_series": self.series(), "promql_expr_test": expected })
    }

    fn series(&self) -> Vec<Value> {
        let scrapes = || self.stages.iter().filter_map(|stage| stage.scrape.as_ref());
        let mut names: Vec<&String> = scrapes().flat_map(|scrape| scrape.0.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let mut all = vec![json!({
            "series": target("up"),
            "values": self.values(|scrape| Some(f64::from(u8::from(scrape.is_some())))),
        })];
        all.extend(names.into_iter().map(|name| {
            let values = self.values(|scrape| scrape.and_then(|scrape| scrape.0.get(name).copied()));
            json!({ "series": target(name), "values": values })
        }));
        all
    }

    /// Returns values in promtool's notation: `_x2` for three missing values, `5x2` for three times 5.
    fn values(&self, value: impl Fn(Option<&Scrape>) -> Option<f64>) -> String {
        let stages = self.stages.iter().map(|stage| {
            let value = value(stage.scrape.as_ref()).map_or("_".to_owned(), |value| value.to_string());
            if stage.minutes == 1 { value } else { format!("{value}x{}", stage.minutes - 1) }
        });
        stages.collect::<Vec<_>>().join(" ")
    }
}

/// Returns a series with the labels that a scrape adds.
fn target(series: &str) -> String {
    const LABELS: &str = "job=\"mlgw\",instance=\"127.0.0.1:9001\"";
    match series.strip_suffix('}') {
        Some(series) => format!("{series},{LABELS}}}"),
        None => format!("{series}{{{LABELS}}}"),
    }
}

/// Returns the path of a file in deploy/.
pub(super) fn deploy(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    root.join("deploy").join(name)
}

/// Runs promtool with these arguments, followed by a file with `content`.
fn promtool(arguments: &[&str], content: &Value) {
    let Some(tool) = std::env::var_os("MLGW_PROMTOOL") else {
        panic!("MLGW_PROMTOOL does not name a promtool; tests/steps/rust-tests system installs one");
    };
    let file = tempfile::Builder::new().suffix(".yml").tempfile().expect("a file");
    std::fs::write(file.path(), content.to_string()).expect("written");
    let done = Command::new(tool).args(arguments).arg(file.path()).output().expect("promtool runs");
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{output}");
}

/// Asserts that the alerts of each story fire, and that none fires before.
pub(super) fn assert_fires(stories: &[AlertStory]) {
    for story in stories {
        let tests = json!({
            "rule_files": [deploy("prometheus/alerts.yml")],
            "evaluation_interval": "1m",
            "tests": [story.test()],
        });
        eprintln!("observability: {:?} fire", story.alerts);
        promtool(&["test", "rules"], &tests);
    }
}

/// Asserts that these are valid queries.
pub(super) fn assert_parses(queries: &[String]) {
    let rule = |query: &String| json!({ "record": "checked", "expr": query });
    let rules: Vec<Value> = queries.iter().map(rule).collect();
    promtool(
        &["check", "rules", "--lint=none"],
        &json!({ "groups": [{ "name": "queries", "rules": rules }] }),
    );
}
