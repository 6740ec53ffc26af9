//! Policies simulated on generated workloads and on logs.

use super::{mlgw, temp_dir, write};
use serde_json::Value;
use std::path::Path;

const FIELDS: [&str; 8] = [
    "profile",
    "seed",
    "cache_fraction",
    "policy",
    "object_hit_ratio",
    "byte_hit_ratio",
    "upstream_bytes",
    "flash_bytes_written",
];
const POLICIES: [&str; 6] = ["mlgw", "lru", "s3-fifo", "sieve", "never-evict", "optimum"];

/// Runs a simulation and returns its rows, after checking that each has exactly the documented fields.
fn simulate(dir: &Path, words: &str) -> Vec<Value> {
    let output = mlgw(dir, &format!("policy simulate {words} --output json"));
    assert_eq!(output.status, 0, "{}", output.stderr);
    let Value::Array(rows) = output.document() else { panic!("{}", output.stdout) };
    for row in &rows {
        let fields = row.as_object().expect("an object");
        assert!(FIELDS.iter().all(|field| fields.contains_key(*field)), "{row}");
        // Rows of a trace have the hash of their decisions.
        let decided = words.contains("--trace") && row["policy"] == "mlgw";
        assert_eq!(fields.contains_key("decisions_hash"), decided, "{row}");
        assert_eq!(fields.len(), FIELDS.len() + usize::from(decided), "{row}");
    }
    rows
}

fn ratio(rows: &[Value], policy: &str, cache: f64) -> f64 {
    let is_it = |row: &&Value| row["policy"] == policy && row["cache_fraction"] == cache;
    let row = rows.iter().find(is_it).unwrap_or_else(|| panic!("{policy} at {cache}"));
    row["byte_hit_ratio"].as_f64().expect("a number")
}

#[test]
fn one_shuffled_job_has_the_theoretical_hit_ratios() {
    let room = temp_dir();
    let words = "--profile epochs --objects 1000 --epochs 6 --seed 7 --from-epoch 3";
    let by_default = simulate(room.path(), words);
    assert_eq!(by_default.len(), 3 * POLICIES.len());
    let rows = simulate(room.path(), &format!("{words} --cache .1,.2,.35,.5,.65,.8"));
    assert!(by_default.iter().all(|row| rows.contains(row)), "{by_default:?}");
    for cache in [0.1, 0.2, 0.35, 0.5, 0.65, 0.8] {
        let best = ratio(&rows, "optimum", cache);
        for policy in POLICIES {
            assert!(ratio(&rows, policy, cache) <= best + 1e-9, "{policy} at {cache}");
        }
        assert!((ratio(&rows, "never-evict", cache) - cache).abs() < 0.01, "at {cache}");
        assert!(ratio(&rows, "mlgw", cache) >= 0.98 * best, "at {cache}: {}", ratio(&rows, "mlgw", cache));
    }
    assert!(rows.iter().all(|row| row["profile"] == "epochs" && row["seed"] == 7));
}

#[test]
fn cache_sizes_policy_names_and_a_plot() {
    let room = temp_dir();
    let words =
        "--profile k-workloads --workloads 2 --objects 200 --epochs 4 --cache .5,50MiB --policy lru,optimum";
    let rows = simulate(room.path(), &format!("{words} --plot out.svg"));
    let seen: Vec<_> =
        rows.iter().map(|row| (row["cache_fraction"].as_f64().unwrap_or(0.0), &row["policy"])).collect();
    let (lru, optimum) = (Value::from("lru"), Value::from("optimum"));
    assert_eq!(seen, [(0.5, &lru), (0.5, &optimum), (0.25, &lru), (0.25, &optimum)]);
    assert_eq!(simulate(room.path(), words), rows, "repeatable");
    let plot = std::fs::read_to_string(room.path().join("out.svg")).expect("a plot");
    assert!(plot.starts_with("<svg") && plot.matches("<polyline").count() == 2, "{plot}");
    let table = mlgw(room.path(), &format!("policy simulate {words}")).stdout;
    assert!(table.starts_with("CACHE") && table.lines().count() == 5, "{table}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let room = temp_dir();
    for words in [
        "",
        " --profile resnet51",
        " --profile mix --trace t",
        " --profile mix --cache 0",
        " --profile mix --policy best",
        " --profile mix --workloads 0",
        " --trace none",
    ] {
        let output = mlgw(room.path(), &format!("policy simulate{words}"));
        assert_eq!(output.status, 2, "{words}: {}", output.stderr);
    }
    write(room.path(), "t", "no trace");
    let output = mlgw(room.path(), "policy simulate --trace t");
    assert!(output.status == 1 && output.stderr.contains("this is not a trace"), "{}", output.stderr);
}

#[test]
fn a_simulated_policy_must_be_valid_and_its_rules_take_effect() {
    let room = temp_dir();
    let small = "--profile epochs --objects 20 --epochs 3 --cache .5 --policy mlgw";
    let rule = "
version: 1
rules:
  - id: nothing
    priority: 10
    conditions: [{type: file_context, property: size, operator: greater_than, value: 1KiB}]
    actions: [{type: cache, parameters: {keep: false}}]
";
    write(room.path(), "p.yaml", rule);
    let rows = simulate(room.path(), &format!("p.yaml {small}"));
    assert_eq!((ratio(&rows, "mlgw", 0.5), &rows[0]["flash_bytes_written"]), (0.0, &Value::from(0)));
    assert!(ratio(&simulate(room.path(), small), "mlgw", 0.5) > 0.3);
    write(room.path(), "p.yaml", "version: 2\n");
    let output = mlgw(room.path(), &format!("policy simulate p.yaml {small}"));
    assert!(output.status == 1 && output.stderr.contains("p.yaml:1:10: version"), "{}", output.stderr);
}

/// Returns a line of S3's server access log: a read of `key`, of 4 KiB.
fn line(second: usize, key: &str) -> String {
    format!(
        "owner lake [06/Feb/2019:00:{:02}:{:02} +0000] 192.0.2.3 reader ID REST.GET.OBJECT {key} \
         \"GET /lake/{key} HTTP/1.1\" 200 - 4096 4096 7 5 \"-\" \"torch\" -\n",
        second / 60,
        second % 60
    )
}

#[test]
fn an_s3_log_is_imported_and_simulated() {
    let room = temp_dir();
    let lines: String = (0..300).map(|at| line(at, &format!("train/{:03}.jpg", at * 37 % 100))).collect();
    write(room.path(), "s3.log", &(lines + "nonsense\n"));
    let output = mlgw(room.path(), "trace import --from s3 s3.log day.trace");
    assert_eq!(output.status, 0, "{}", output.stderr);
    assert_eq!(output.stdout, "day.trace: 300 accesses from 301 lines; 0 skipped, 1 bad, 0 late.\n");
    assert_eq!(output.stderr, "mlgw: s3.log:301: the field for the bucket is missing\n");
    let rows = simulate(room.path(), "--trace day.trace --cache .5");
    assert_eq!(rows.len(), POLICIES.len());
    assert!(rows.iter().all(|row| row["profile"] == "day.trace"));
    // 100 keys three times in the same order: an object that fits and stays is read again twice.
    assert!((ratio(&rows, "never-evict", 0.5) - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(ratio(&rows, "lru", 0.5), 0.0);
    assert!(ratio(&rows, "optimum", 0.5) >= ratio(&rows, "mlgw", 0.5));
    write(room.path(), "p.yaml", "version: 1\n");
    let tested = mlgw(room.path(), "policy test p.yaml --trace day.trace --limit 1 --output json").document();
    assert_eq!((&tested["tried"], &tested["keys"][0]["size"]), (&100.into(), &4096.into()));
    let wrong = mlgw(room.path(), "trace import --from own s3.log other.trace");
    assert!(wrong.status == 1 && wrong.stderr.contains("check --from"), "{}", wrong.stderr);
    assert!(!room.path().join("other.trace").exists());
    let forgotten = mlgw(room.path(), "trace import --from s3 s3.log s3.log");
    assert!(forgotten.status == 2 && forgotten.stderr.contains("is the destination"), "{}", forgotten.stderr);
}
