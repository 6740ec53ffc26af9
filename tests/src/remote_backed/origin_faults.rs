//! An origin that is slow, wrong, disconnects or is unreachable, as clients here see it.

use super::{BUCKET, MIB, RemoteBench, runtime};
use crate::content::TestContent;
use crate::observability::{access_log, scrape::Scrape};
use crate::proxy::{Fault, Rule};
use crate::s3::CallFailure;

fn refused(failure: &CallFailure) -> (u16, &str) {
    match failure {
        CallFailure::Refused { status, body } => (status.as_u16(), body),
        CallFailure::NoResponse(why) => panic!("{why}"),
    }
}

fn slow_down() -> Fault {
    Fault::Status { status: 503, code: "SlowDown".into() }
}

#[test]
fn a_burst_of_503_and_connections_that_break_are_not_seen() {
    let bench = RemoteBench::new("0s");
    runtime().block_on(async {
        let content = TestContent { id: 1, length: 20 * MIB };
        bench.put("k", content).await;
        for rules in [
            vec![Rule::new(slow_down()).times(3)],
            vec![Rule::new(Fault::Status { status: 429, code: "TooManyRequests".into() }).times(2)],
            vec![Rule::new(Fault::CutAnswer { after: 3_000_000 }).method("GET").times(2)],
            vec![Rule::new(Fault::CutBeforeAnswer).times(2)],
            vec![Rule::new(Fault::Refuse).times(2)],
        ] {
            bench.proxy.set_rules(rules.clone());
            assert_eq!(bench.setup.command(&["bucket", "refresh", BUCKET]).1, Some(0));
            let found =
                bench.client().get(BUCKET, "k").await.unwrap_or_else(|why| panic!("{rules:?}: {why:?}"));
            assert_eq!(content.difference(&found.body), None, "{rules:?}");
        }
    });
}

#[test]
fn an_unreachable_origin_is_replaced_by_copies_and_one_that_denies_is_not() {
    let bench = RemoteBench::new("0s");
    runtime().block_on(async {
        let content = TestContent { id: 2, length: 5000 };
        bench.put("k", content).await;
        bench.client().get(BUCKET, "k").await.expect("read");
        for fault in [Fault::Refuse, slow_down(), Fault::Status { status: 500, code: "InternalError".into() }]
        {
            // A rule with a matcher also applies to open connections.
            bench.proxy.set_rules(vec![Rule::new(fault).method("GET")]);
            let found = bench.client().get(BUCKET, "k").await.expect("read from the copy");
            assert_eq!(content.difference(&found.body), None);
            assert_eq!(found.header("x-mlgw-cache"), Some("stale; tier=hot"));
            let unknown = bench.client().get(BUCKET, "unknown").await.expect_err("unknown key");
            assert!(matches!(refused(&unknown).0, 503), "{unknown:?}");
        }
        bench.proxy.set_rules(vec![Rule::new(Fault::Status { status: 403, code: "AccessDenied".into() })]);
        let denied = bench.client().get(BUCKET, "k").await.expect_err("access is denied");
        assert_eq!(refused(&denied).0, 403, "{denied:?}");
        bench.proxy.set_rules(vec![Rule::new(Fault::Status { status: 404, code: "NoSuchKey".into() })]);
        assert!(bench.client().get(BUCKET, "k").await.expect_err("the object is deleted").is_not_found());
        bench.proxy.set_rules(vec![]);
        // The absence of a key stays valid for at most two seconds.
        super::wait_until("the object is back", async || bench.client().get(BUCKET, "k").await.is_ok()).await;
    });
}

#[test]
fn access_log_and_metrics_name_a_throttling_origin() {
    let mut bench = RemoteBench::new("0s");
    bench.gateway.send_sigterm();
    bench.gateway.wait_exit();
    bench.setup = bench.setup.clone().with("access_log.one_in", 1);
    bench.gateway = bench.setup.start();
    runtime().block_on(async {
        // Rules with a matcher also apply to open connections.
        bench.proxy.set_rules(["GET", "HEAD"].map(|method| Rule::new(slow_down()).method(method)).to_vec());
        let throttled = bench.client().get(BUCKET, "k").await.expect_err("the origin throttles");
        assert_eq!(refused(&throttled).0, 503, "{throttled:?}");
        assert!(refused(&throttled).1.contains("<Code>SlowDown</Code>"), "{throttled:?}");
    });
    let count = Scrape::of(&bench.gateway).sum("mlgw_throttled_total", &[("reason", "origin")]);
    assert_eq!(count, 1.0);
    // A stop flushes buffered lines.
    bench.gateway.send_sigterm();
    bench.gateway.wait_exit();
    let lines = access_log::lines(&bench.setup.data_dir);
    let fields = ["operation", "error", "short_of"].map(|name| lines[0][name].as_str());
    assert_eq!(fields, [Some("GetObject"), Some("SlowDown"), Some("origin")], "{lines:?}");
    assert_eq!((lines.len(), lines[0]["status"].as_u64()), (1, Some(503)), "{lines:?}");
}

#[test]
fn another_version_midway_ends_the_answer_and_the_next_one_is_whole() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        let content = TestContent { id: 3, length: 60 * MIB };
        bench.put("k", content).await;
        // The third block arrives with another ETag.
        let etag = Fault::Header { name: "etag".into(), value: "\"another\"".into() };
        bench.proxy.set_rules(vec![Rule::new(etag).header("range").nth(2).times(1)]);
        let ended = bench.client().get(BUCKET, "k").await.expect_err("two versions");
        assert!(matches!(ended, CallFailure::NoResponse(_)), "the connection is cut: {ended:?}");
        let found = bench.client().get(BUCKET, "k").await.expect("read");
        assert_eq!(content.difference(&found.body), None);
    });
}

#[test]
fn an_answer_that_is_too_short_is_not_taken_for_the_object() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        let content = TestContent { id: 4, length: 20 * MIB };
        bench.put("k", content).await;
        let truncated = Rule::new(Fault::Truncate { after: 1000 }).header("range");
        bench.proxy.set_rules(vec![truncated]);
        let range = (10 * MIB as u64, 10 * MIB as u64 + 9);
        let failed = bench.client().get_range(BUCKET, "k", range).await.expect_err("a part of a part");
        assert_eq!(refused(&failed).0, 503, "{failed:?}");
        bench.proxy.set_rules(vec![]);
        let found = bench.client().get(BUCKET, "k").await.expect("read");
        assert_eq!(content.difference(&found.body), None);
    });
}

#[test]
fn an_origin_that_stalls_is_given_up_and_asked_again() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        let content = TestContent { id: 5, length: 3 * MIB };
        bench.put("k", content).await;
        let pause = std::time::Duration::from_secs(3600);
        bench.proxy.set_rules(vec![Rule::new(Fault::Stall { after: 1_000_000, pause }).times(1)]);
        let found = bench.client().get(BUCKET, "k").await.expect("read");
        assert_eq!(content.difference(&found.body), None);
        assert_eq!(bench.take_requests().len(), 2);
    });
}
