//! Findings about the server's health, with advice: rules over the figures of its status.
//!
//! Pure: the same status gives the same findings. Each rule has an alert of the same meaning in
//! deploy/prometheus/alerts.yml; a status covers the last minute, an alert a longer period.

use mlgw_api::{Health, HealthFinding, ServerState, Status, TierStatus};
use mlgw_common::limits::{CHUNK_BYTES_MAX, GIB, PROPOSE_QUEUE_MAX};
use mlgw_common::{ByteSize, Tier};
use mlgw_objects::ResourceShortage;
use mlgw_remote::upstream::PrefixOwnership;
use mlgw_segments::hot::Upstreams;
use std::time::Duration;

/// Free bytes below which a tier counts as full: a body of a few chunks does not fit.
const ROOM_BYTES_MIN: u64 = 2 * CHUNK_BYTES_MAX;
/// Free share of a tier below which a warning is reported.
const ROOM_SHARE_MIN: f64 = 0.1;
/// Share of garbage in a tier above which a warning is reported, if there are at least [`GARBAGE_BYTES_MIN`].
const GARBAGE_SHARE_MAX: f64 = 0.5;
const GARBAGE_BYTES_MIN: u64 = GIB;
/// Share of open connections above which a warning is reported.
const CONNECTIONS_SHARE_MAX: f64 = 0.9;
/// Limit of the 99th percentile of sync durations: ten times that of a slow disk.
const SYNC_P99_MAX: Duration = Duration::from_millis(250);

pub(super) fn finding(severity: Health, what: String, advice: &str) -> HealthFinding {
    HealthFinding { severity, what, advice: advice.to_owned() }
}

/// Returns all findings, worst first.
#[must_use]
pub(super) fn findings(status: &Status) -> Vec<HealthFinding> {
    let mut found = Vec::new();
    if status.state != ServerState::Ready {
        let what = "The server is stopping and accepts no new requests.".to_owned();
        found.push(finding(Health::Warning, what, "Wait until it has stopped, then start it again."));
    }
    add_tier_findings(status, &mut found);
    add_request_findings(status, &mut found);
    add_catalogue_findings(status, &mut found);
    add_policy_findings(status, &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

fn add_tier_findings(status: &Status, found: &mut Vec<HealthFinding>) {
    for tier in status.tiers.iter().filter(|tier| tier.is_authoritative()) {
        let name = &tier.tier;
        if tier.quarantined_blocks > 0 {
            found.push(finding(
                Health::Critical,
                format!(
                    "{} stored blocks of the {name} tier are bad: reads of them fail.",
                    tier.quarantined_blocks
                ),
                &format!(
                    "List them with `mlgw tier show {name}`. Check the disk (dmesg, smartctl), and restore \
                     the objects from a copy."
                ),
            ));
        }
        if tier.can_be_full() {
            add_room_finding(tier, found);
        }
        let share = GARBAGE_SHARE_MAX * tier.used_bytes as f64;
        if tier.garbage_bytes >= GARBAGE_BYTES_MIN && tier.garbage_bytes as f64 > share {
            let garbage = ByteSize(tier.garbage_bytes).human();
            found.push(finding(
                Health::Warning,
                format!("The {name} tier has {garbage} of garbage."),
                "Compaction does not keep up with deletes and overwrites; check the log for its messages.",
            ));
        }
    }
}

/// Returns a finding for each upstream whose mark is not this server's.
pub(super) fn upstream_findings(upstreams: &Upstreams) -> Vec<HealthFinding> {
    let found = upstreams.iter().filter_map(|(name, upstream)| {
        upstream_finding(name, &upstream.ownership()?, upstream.owner_advice())
    });
    found.collect()
}

/// Returns the finding for an upstream. The mark of an upstream without spilled segments is never compared,
/// which is no finding.
fn upstream_finding(
    name: &str,
    ownership: &PrefixOwnership,
    advice: Option<String>,
) -> Option<HealthFinding> {
    let advice = advice.filter(|_| *ownership != PrefixOwnership::Unchecked { why: None })?;
    let what = format!("No data is deleted in upstream {name}: its mark is {}.", ownership.name());
    Some(finding(Health::Warning, what, &format!("Upstream {name}: {advice}.")))
}

fn add_room_finding(tier: &TierStatus, found: &mut Vec<HealthFinding>) {
    let name = tier.tier;
    let room = ByteSize(tier.room_bytes).human();
    let (what, more) = match name {
        Tier::Cold => ("no segments are spilled to it", "add a directory to cold.dirs"),
        Tier::Memory | Tier::Hot | Tier::Upstream => {
            ("writes are refused", "raise hot.capacity, or use a larger disk")
        }
    };
    if tier.room_bytes < ROOM_BYTES_MIN {
        found.push(finding(
            Health::Critical,
            format!("The {name} tier is full: {what}."),
            &format!("Delete objects, or {more}. Reads and deletes continue."),
        ));
    } else if (tier.room_bytes as f64) < ROOM_SHARE_MIN * (tier.room_bytes + tier.used_bytes) as f64 {
        found.push(finding(
            Health::Warning,
            format!("The {name} tier has only {room} free."),
            &format!("Delete objects, or {more}, before {what}."),
        ));
    }
}

fn add_policy_findings(status: &Status, found: &mut Vec<HealthFinding>) {
    let Some(policy) = &status.policy else { return };
    if let Some(why) = &policy.fault {
        found.push(finding(
            Health::Warning,
            format!("The applied policy is no longer valid, and the built-in defaults run: {why}"),
            "Print it with `mlgw policy show`, correct it, and apply it again.",
        ));
    }
    if let Some(why) = &policy.refused {
        found.push(finding(
            Health::Warning,
            format!("The watched policy files are invalid, and the previous policy still runs: {why}"),
            "Check the file with `mlgw policy validate FILE`; the server applies it once it is valid.",
        ));
    }
}

fn add_request_findings(status: &Status, found: &mut Vec<HealthFinding>) {
    let recent = &status.recent;
    let errors: u64 = recent.operations.iter().map(|operation| operation.errors).sum();
    if errors > 0 {
        found.push(finding(
            Health::Critical,
            format!("{errors} requests of the last {} s failed with server errors.", recent.seconds),
            "The log has a line of level error for each, with the cause and the request id.",
        ));
    }
    for short in recent.throttled.iter().filter(|short| short.count > 0) {
        let shortage = ResourceShortage::ALL.into_iter().find(|shortage| shortage.name() == short.reason);
        found.push(finding(
            Health::Warning,
            format!(
                "Shortage of {}: {} requests delayed or refused in the last {} s.",
                short.reason, short.count, recent.seconds
            ),
            shortage.map_or("", advice_on_shortage),
        ));
    }
    let s3 = &status.s3;
    if s3.connections as f64 > CONNECTIONS_SHARE_MAX * s3.connections_limit as f64 {
        found.push(finding(
            Health::Warning,
            format!("{} of {} connections are open.", s3.connections, s3.connections_limit),
            advice_on_shortage(ResourceShortage::Connections),
        ));
    }
}

const fn advice_on_shortage(shortage: ResourceShortage) -> &'static str {
    match shortage {
        ResourceShortage::Connections => {
            "Raise limits.connections and the limit of open files, or make clients share connections."
        }
        ResourceShortage::Dirty => {
            "Origins do not keep up with the writes of write-back buckets: check them with `mlgw bucket \
             flush NAME`, or raise bound.dirty_bytes_max."
        }
        ResourceShortage::Disk => "Delete objects, raise hot.capacity, or use a larger disk.",
        ResourceShortage::Memory => {
            "Raise limits.memory_bytes, give the process more memory, or run fewer uploads at once."
        }
        ResourceShortage::Origin => {
            "An origin throttles this server: see the messages of its errors, and send it fewer requests or \
             raise its limits."
        }
        ResourceShortage::Queue => {
            "The disk does not keep up with writes: check sync times, or run fewer writers."
        }
        ResourceShortage::WriteBack => {
            "An object of a write-back bucket was written again during each attempt of a request: let fewer \
             clients write the same key."
        }
    }
}

fn add_catalogue_findings(status: &Status, found: &mut Vec<HealthFinding>) {
    let catalogue = &status.catalogue;
    if catalogue.log_bytes > 2 * catalogue.log_bytes_max {
        let (bytes, max) = (ByteSize(catalogue.log_bytes).human(), ByteSize(catalogue.log_bytes_max).human());
        found.push(finding(
            Health::Warning,
            format!("The catalogue's log has {bytes}; it should be purged at {max}."),
            "Flushing the catalogue does not keep up, or a node of the cluster is slow: check the disk, the \
             messages of the server, and `mlgw cluster status`.",
        ));
    }
    if catalogue.queued_commands > PROPOSE_QUEUE_MAX as u64 / 2 {
        found.push(finding(
            Health::Warning,
            format!("{} commands wait for the catalogue.", catalogue.queued_commands),
            advice_on_shortage(ResourceShortage::Queue),
        ));
    }
    let slow = status.recent.sync_p99_seconds.filter(|p99| *p99 > SYNC_P99_MAX.as_secs_f64());
    if let Some(p99) = slow {
        found.push(finding(
            Health::Warning,
            format!("One sync in a hundred takes {:.0} ms or more.", p99 * 1e3),
            "The disk is slow or shared with others; every write waits for it. Check it with iostat -x.",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::{PrefixOwnership, advice_on_shortage, findings, upstream_finding};
    use mlgw_api::{Health, ServerState, Status, TierStatus};
    use mlgw_common::Tier;
    use mlgw_objects::ResourceShortage;
    use mlgw_testing::sample_status::healthy;

    fn worst(change: impl FnOnce(&mut Status)) -> (Health, String) {
        let mut status = healthy();
        change(&mut status);
        let found = findings(&status);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(!found[0].advice.is_empty());
        (found[0].severity, found[0].what.clone())
    }

    #[test]
    fn a_healthy_server_has_no_findings() {
        assert_eq!(findings(&healthy()), []);
    }

    #[test]
    fn each_rule_finds_what_it_is_for() {
        use Health::{Critical, Warning};
        let cases: Vec<((Health, String), Health, &str)> = vec![
            (worst(|s| s.state = ServerState::Draining), Warning, "stopping"),
            (worst(|s| s.tiers[0].quarantined_blocks = 2), Critical, "2 stored blocks of the hot tier"),
            (worst(|s| s.tiers[0].room_bytes = 0), Critical, "full"),
            (worst(|s| s.tiers[0].room_bytes = s.tiers[0].used_bytes / 10), Warning, "has only 1.0 GiB free"),
            (worst(|s| s.tiers[0].garbage_bytes = 6 << 30), Warning, "The hot tier has 6.0 GiB of garbage"),
            (worst(|s| s.recent.operations[0].errors = 3), Critical, "3 requests of the last 60 s failed"),
            (
                worst(|s| s.recent.throttled[0].count = 4),
                Warning,
                "Shortage of connections: 4 requests delayed or refused",
            ),
            (worst(|s| s.s3.connections = 9_500), Warning, "9500 of 10000 connections"),
            (worst(|s| s.catalogue.log_bytes = 3 << 30), Warning, "log has 3.0 GiB"),
            (worst(|s| s.catalogue.queued_commands = 4000), Warning, "4000 commands wait"),
            (worst(|s| s.recent.sync_p99_seconds = Some(0.3)), Warning, "takes 300 ms or more"),
        ];
        for ((severity, what), expected, says) in cases {
            assert_eq!(severity, expected, "{what}");
            assert!(what.contains(says), "{what}");
        }
    }

    #[test]
    fn each_shortage_has_advice_of_its_own() {
        let mut advice = Vec::new();
        for shortage in ResourceShortage::ALL {
            let mut status = healthy();
            let growth = status.recent.throttled.iter_mut().find(|growth| growth.reason == shortage.name());
            growth.unwrap().count = 1;
            let found = findings(&status);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].advice, advice_on_shortage(shortage));
            advice.push(found[0].advice.clone());
        }
        let has = |shortage: ResourceShortage, text: &str| advice[shortage as usize].contains(text);
        assert!(has(ResourceShortage::Dirty, "bound.dirty_bytes_max"), "{advice:?}");
        assert!(has(ResourceShortage::Queue, "sync times"), "{advice:?}");
        advice.sort();
        advice.dedup();
        assert_eq!(advice.len(), ResourceShortage::ALL.len(), "{advice:?}");
    }

    #[test]
    fn an_upstream_is_a_finding_when_its_mark_was_compared_and_is_not_ours() {
        let advice = || Some("adopt it".to_owned());
        assert_eq!(upstream_finding("lake", &PrefixOwnership::Unchecked { why: None }, advice()), None);
        assert_eq!(upstream_finding("lake", &PrefixOwnership::Own, None), None);
        for ownership in [PrefixOwnership::Missing, PrefixOwnership::Unchecked { why: Some("away".into()) }] {
            let found = upstream_finding("lake", &ownership, advice()).unwrap();
            assert!(found.what.contains("lake") && found.what.contains(ownership.name()), "{found:?}");
            assert_eq!(found.advice, "Upstream lake: adopt it.");
        }
    }

    #[test]
    fn an_object_store_is_never_full() {
        let mut status = healthy();
        let upstream = TierStatus { tier: Tier::Upstream, room_bytes: 0, ..status.tiers[0].clone() };
        status.tiers.push(upstream);
        assert_eq!(findings(&status), []);
    }

    #[test]
    fn the_worst_comes_first() {
        let mut status = healthy();
        status.s3.connections = 9_500;
        status.tiers[0].quarantined_blocks = 1;
        let severities: Vec<_> = findings(&status).into_iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Health::Critical, Health::Warning]);
    }
}
