//! Formatting of quotas for people.

use mlgw_api::{QuotaInfo, UsedInfo};
use mlgw_common::ByteSize;

/// Word for no limit.
const NONE: &str = "none";

/// Formats a quota with its usage.
pub(super) fn describe(quota: QuotaInfo, used: UsedInfo) -> String {
    let bytes = quota.bytes.map(|limit| {
        let percent = percent(used.bytes, limit);
        format!("{} of {}{percent}", ByteSize(used.bytes).human(), ByteSize(limit).human())
    });
    let objects = quota
        .objects
        .map(|limit| format!("{} of {limit} objects{}", used.objects, percent(used.objects, limit)));
    let limits: Vec<String> = bytes.into_iter().chain(objects).collect();
    if limits.is_empty() { NONE.to_owned() } else { limits.join(", ") }
}

fn percent(used: u64, limit: u64) -> String {
    let percent = (u128::from(used) * 100).checked_div(u128::from(limit));
    percent.map(|percent| format!(" ({percent}%)")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::describe;
    use mlgw_api::{QuotaInfo, UsedInfo};

    #[test]
    fn usage_is_shown_beside_each_limit() {
        let used = UsedInfo { bytes: 5 << 30, objects: 3 };
        let quota = |bytes, objects| describe(QuotaInfo { bytes, objects }, used);
        assert_eq!(quota(None, None), "none");
        assert_eq!(quota(Some(10 << 30), None), "5.0 GiB of 10.0 GiB (50%)");
        assert_eq!(quota(Some(0), Some(2)), "5.0 GiB of 0 B, 3 of 2 objects (150%)");
    }
}
