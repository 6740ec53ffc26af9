//! An origin that is slow, wrong, disconnects or is unreachable, as clients here see it.

use super::{Bench, HERE, MIB, runtime};
use crate::content::Content;
use crate::proxy::{Fault, Rule};
use crate::s3::Failure;

fn refused(failure: &Failure) -> (u16, &str) {
    match failure {
        Failure::Refused { status, body } => (status.as_u16(), body),
        Failure::Lost(why) => panic!("{why}"),
    }
}

fn slow_down() -> Fault {
    Fault::Status { status: 503, code: "SlowDown".into() }
}

#[test]
fn a_burst_of_503_and_connections_that_break_are_not_seen() {
    let bench = Bench::new("0s");
    runtime().block_on(async {
        let content = Content { id: 1, length: 20 * MIB };
        bench.put("k", content).await;
        for rules in [
            vec![Rule::new(slow_down()).times(3)],
            vec![Rule::new(Fault::Status { status: 429, code: "TooManyRequests".into() }).times(2)],
            vec![Rule::new(Fault::CutAnswer { after: 3_000_000 }).method("GET").times(2)],
            vec![Rule::new(Fault::CutBeforeAnswer).times(2)],
            vec![Rule::new(Fault::Refuse).times(2)],
        ] {
            bench.proxy.set_rules(rules.clone());
            assert_eq!(bench.setup.command(&["bucket", "refresh", HERE]).1, Some(0));
            let found = bench.here().get(HERE, "k").await.unwrap_or_else(|why| panic!("{rules:?}: {why:?}"));
            assert_eq!(content.difference(&found.body), None, "{rules:?}");
        }
    });
}

#[test]
fn an_origin_that_is_away_is_stood_in_for_and_one_that_denies_is_not() {
    let bench = Bench::new("0s");
    runtime().block_on(async {
        let content = Content { id: 2, length: 5000 };
        bench.put("k", content).await;
        bench.here().get(HERE, "k").await.expect("read");
        for fault in [Fault::Refuse, slow_down(), Fault::Status { status: 500, code: "InternalError".into() }]
        {
            // A rule with a matcher also applies to open connections.
            bench.proxy.set_rules(vec![Rule::new(fault).method("GET")]);
            let found = bench.here().get(HERE, "k").await.expect("read from the copy");
            assert_eq!(content.difference(&found.body), None);
            assert_eq!(found.header("x-mlgw-cache"), Some("stale; tier=hot"));
            let unknown = bench.here().get(HERE, "unknown").await.expect_err("nobody knows");
            assert!(matches!(refused(&unknown).0, 503), "{unknown:?}");
        }
        bench.proxy.set_rules(vec![Rule::new(Fault::Status { status: 403, code: "AccessDenied".into() })]);
        let denied = bench.here().get(HERE, "k").await.expect_err("it is not ours to give");
        assert_eq!(refused(&denied).0, 403, "{denied:?}");
        bench.proxy.set_rules(vec![Rule::new(Fault::Status { status: 404, code: "NoSuchKey".into() })]);
        assert!(bench.here().get(HERE, "k").await.expect_err("it is gone").is_not_found());
        bench.proxy.set_rules(vec![]);
        // The absence of a key stays valid for at most two seconds.
        super::until("it is back", async || bench.here().get(HERE, "k").await.is_ok()).await;
    });
}

#[test]
fn another_version_midway_ends_the_answer_and_the_next_one_is_whole() {
    let bench = Bench::new("1h");
    runtime().block_on(async {
        let content = Content { id: 3, length: 60 * MIB };
        bench.put("k", content).await;
        // The third block arrives with another ETag.
        let etag = Fault::Header { name: "etag".into(), value: "\"another\"".into() };
        bench.proxy.set_rules(vec![Rule::new(etag).header("range").nth(2).times(1)]);
        let ended = bench.here().get(HERE, "k").await.expect_err("two versions");
        assert!(matches!(ended, Failure::Lost(_)), "the connection is cut: {ended:?}");
        let found = bench.here().get(HERE, "k").await.expect("read");
        assert_eq!(content.difference(&found.body), None);
    });
}

#[test]
fn an_answer_that_is_too_short_is_not_taken_for_the_object() {
    let bench = Bench::new("1h");
    runtime().block_on(async {
        let content = Content { id: 4, length: 20 * MIB };
        bench.put("k", content).await;
        let truncated = Rule::new(Fault::Truncate { after: 1000 }).header("range");
        bench.proxy.set_rules(vec![truncated]);
        let range = (10 * MIB as u64, 10 * MIB as u64 + 9);
        let failed = bench.here().get_range(HERE, "k", range).await.expect_err("a part of a part");
        assert_eq!(refused(&failed).0, 503, "{failed:?}");
        bench.proxy.set_rules(vec![]);
        let found = bench.here().get(HERE, "k").await.expect("read");
        assert_eq!(content.difference(&found.body), None);
    });
}

#[test]
fn an_origin_that_stalls_is_given_up_and_asked_again() {
    let bench = Bench::new("1h");
    runtime().block_on(async {
        let content = Content { id: 5, length: 3 * MIB };
        bench.put("k", content).await;
        let pause = std::time::Duration::from_secs(3600);
        bench.proxy.set_rules(vec![Rule::new(Fault::Stall { after: 1_000_000, pause }).times(1)]);
        let found = bench.here().get(HERE, "k").await.expect("read");
        assert_eq!(content.difference(&found.body), None);
        assert_eq!(bench.asked().len(), 2);
    });
}
