//! Gauges of `mlgw top`: the use of tiers, the flash budget, and hit ratios.
//!
//! The flash budget and the hits are in the metrics of a server, not in its status.

use super::StatusPair;
use mlgw_common::ByteSize;

/// Figures that only the metrics contain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ScrapedFigures {
    memory: HitCounts,
    copies: HitCounts,
    /// Remaining flash budget, if there is one.
    flash_left_bytes: Option<f64>,
    /// Flash budget of one hour.
    flash_hour_bytes: f64,
}

/// Reads since the start of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct HitCounts {
    hits: f64,
    reads: f64,
}

/// A share of a whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TopGauge {
    pub(super) name: String,
    /// From 0 to 1.
    pub(super) ratio: f64,
    pub(super) text: String,
}

impl ScrapedFigures {
    /// Parses the text of the metrics of a server with this flash budget per day.
    pub(super) fn parse(metrics: &str, flash_bytes_per_day: u64) -> Self {
        let value = |name, labels: &[&str]| samples(metrics, name, labels).sum::<f64>();
        let reads = |result| value(TIER_READS, &[r#"tier="memory""#, result]);
        let bound = |result| value(BOUND_READS, &[result]);
        let (hit, miss) = (r#"result="hit""#, r#"result="miss""#);
        let copies = bound(hit) + bound(r#"result="shared""#);
        Self {
            memory: HitCounts { hits: reads(hit), reads: reads(hit) + reads(miss) },
            copies: HitCounts { hits: copies, reads: copies + bound(miss) + bound(r#"result="stale""#) },
            flash_left_bytes: samples(metrics, FLASH_LEFT, &[]).next(),
            flash_hour_bytes: flash_bytes_per_day as f64 / 24.0,
        }
    }
}

impl HitCounts {
    fn since(self, before: Self) -> Self {
        let grown = |now: f64, before: f64| (now - before).max(0.0);
        Self { hits: grown(self.hits, before.hits), reads: grown(self.reads, before.reads) }
    }
}

const TIER_READS: &str = "mlgw_tier_reads_total";
const BOUND_READS: &str = "mlgw_bound_reads_total";
const FLASH_LEFT: &str = "mlgw_flash_budget_left_bytes";

/// Returns the values of a metric with these labels.
fn samples<'t>(metrics: &'t str, name: &'t str, labels: &'t [&str]) -> impl Iterator<Item = f64> + 't {
    metrics.lines().filter_map(move |line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (metric, of) = series.split_once('{').unwrap_or((series, ""));
        let is_selected = metric == name && labels.iter().all(|label| of.contains(label));
        is_selected.then(|| value.parse().ok()).flatten()
    })
}

/// Returns the gauges of a server. In a cluster they are those of the responding node, which they name.
pub(super) fn gauges(look: &StatusPair) -> Vec<TopGauge> {
    let mut gauges = gauges_of_server(look);
    if let Some(own) = look.now.nodes.iter().find(|report| report.own) {
        gauges.iter_mut().for_each(|gauge| gauge.name = format!("node {} {}", own.node, gauge.name));
    }
    gauges
}

fn gauges_of_server(look: &StatusPair) -> Vec<TopGauge> {
    let size = |bytes: f64| ByteSize(bytes as u64).human();
    let gauge = |name: &str, part: f64, whole: f64, text| {
        let ratio = if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        TopGauge { name: name.to_owned(), ratio, text }
    };
    let mut gauges: Vec<_> = look
        .now
        .tiers
        .iter()
        .filter(|tier| tier.can_be_full() && tier.capacity_bytes > 0)
        .map(|tier| {
            let (used, capacity) = (tier.used_bytes as f64, tier.capacity_bytes as f64);
            let text = format!("{} of {}", size(used), size(capacity));
            gauge(&format!("{} tier", tier.tier), used, capacity, text)
        })
        .collect();
    let Some(now) = look.figures else { return gauges };
    if let Some(left) = now.flash_left_bytes {
        let text = format!("{} of {} left", size(left.max(0.0)), size(now.flash_hour_bytes));
        gauges.push(gauge("flash budget", left, now.flash_hour_bytes, text));
    }
    let before = look.figures_before.unwrap_or_default();
    let hits = [("memory hits", now.memory, before.memory), ("copy hits", now.copies, before.copies)];
    for (name, now, before) in hits.into_iter().filter(|(_, now, _)| now.reads > 0.0) {
        let HitCounts { hits, reads } = now.since(before);
        gauges.push(gauge(name, hits, reads, format!("{hits:.0} of {reads:.0} reads")));
    }
    gauges
}

#[cfg(test)]
mod tests {
    use super::super::StatusPair;
    use super::{BOUND_READS, FLASH_LEFT, ScrapedFigures, TIER_READS, TopGauge, gauges};
    use mlgw_testing::sample_status::healthy;

    fn metrics(memory_hits: u64, copy_hits: u64, left: i64) -> String {
        format!(
            "# HELP mlgw_tier_reads Reads of a tier\n\
             mlgw_tier_reads_total{{tier=\"memory\",result=\"hit\"}} {memory_hits}\n\
             mlgw_tier_reads_total{{tier=\"memory\",result=\"miss\"}} 10\n\
             mlgw_tier_reads_total{{tier=\"hot\",result=\"disk\"}} 99\n\
             mlgw_bound_reads_total{{result=\"hit\"}} {copy_hits}\n\
             mlgw_bound_reads_total{{result=\"shared\"}} 1\n\
             mlgw_bound_reads_total{{result=\"miss\"}} 5\n\
             mlgw_flash_budget_left_bytes {left}\n# EOF\n"
        )
    }

    fn shown(now: &str, before: Option<&str>) -> Vec<(String, u32, String)> {
        let parse = |text: &str| ScrapedFigures::parse(text, 24 << 20);
        let figures_before = before.map(parse);
        let look = StatusPair {
            now: healthy(),
            before: None,
            jobs: Vec::new(),
            figures: Some(parse(now)),
            figures_before,
        };
        let percent = |gauge: TopGauge| (gauge.name, (gauge.ratio * 100.0).round() as u32, gauge.text);
        gauges(&look).into_iter().map(percent).collect()
    }

    #[test]
    fn gauges_show_tiers_the_flash_budget_and_hits() {
        let row = |name: &str, percent, text: &str| (name.to_owned(), percent, text.to_owned());
        let hot = row("hot tier", 10, "10.0 GiB of 100.0 GiB");
        let all = [
            hot.clone(),
            row("flash budget", 50, "512.0 KiB of 1.0 MiB left"),
            row("memory hits", 75, "30 of 40 reads"),
            row("copy hits", 50, "5 of 10 reads"),
        ];
        assert_eq!(shown(&metrics(30, 4, 1 << 19), None), all);
        assert_eq!(shown("", None), [hot], "nothing without a budget and reads");
    }

    #[test]
    fn hits_are_those_between_two_refreshes() {
        let gauges = shown(&metrics(31, 4, -5), Some(&metrics(30, 4, 7)));
        let texts: Vec<_> = gauges[1..].iter().map(|(_, percent, text)| (*percent, text.as_str())).collect();
        assert_eq!(texts, [(0, "0 B of 1.0 MiB left"), (100, "1 of 1 reads"), (0, "0 of 0 reads")]);
    }

    #[test]
    fn the_metrics_are_documented() {
        let page = include_str!("../../../../docs/METRICS.md");
        for name in [TIER_READS, BOUND_READS, FLASH_LEFT] {
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
