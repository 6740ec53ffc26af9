//! File format of an access plan: a line about its owner, and the serialized plan.
//!
//! The [line](crate::line_file) is `mlgw-plan 2 OWNER CRC JSON`; version 1 has no owner. The serialized plan
//! has its own version and checksum. Only files that this server wrote on its present timeline are accepted.

use crate::line_file::{LineFileError, LineFormat};
use mlgw_common::{Identity, Lineage};
use mlgw_policies::plan::{Plan, StoredPlanError};
use serde::{Deserialize, Serialize};

const KIND: LineFormat = LineFormat { magic: "mlgw-plan", version: "2", without_owner: &["1"] };

/// Workload and bucket of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPlanOwner {
    /// Name under which the plan's workloads identify themselves.
    pub workload: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Id of the bucket, which excludes keys of a later bucket with the same name.
    pub bucket_id: u64,
    /// Time at which the plan was stored, in milliseconds since 1970.
    pub put_ms: i64,
}

/// Reason why a file is not a valid plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadPlanFile {
    /// The line is invalid.
    #[error(transparent)]
    Line(#[from] LineFileError),
    /// The serialized plan is invalid.
    #[error(transparent)]
    Plan(#[from] StoredPlanError),
}

/// Serializes a plan file.
pub(super) fn serialize(owner: &Identity, about: &AccessPlanOwner, plan: &Plan) -> Vec<u8> {
    let mut bytes = KIND.to_line(owner, about);
    bytes.extend_from_slice(&plan.to_bytes());
    bytes
}

/// Parses a plan file.
pub(super) fn parse(lineage: &Lineage, bytes: &[u8]) -> Result<(AccessPlanOwner, Plan), BadPlanFile> {
    let (about, plan) = KIND.read(lineage, bytes)?;
    Ok((about, Plan::from_bytes(plan)?))
}

#[cfg(test)]
mod tests {
    use super::{AccessPlanOwner, BadPlanFile, LineFileError, parse, serialize};
    use crate::line_file::tests::lineages;
    use mlgw_policies::plan::{Plan, PlanSchedule, Sampler};

    fn example() -> (AccessPlanOwner, Plan) {
        let about = AccessPlanOwner {
            workload: "resnet".into(),
            bucket: "lake".into(),
            bucket_id: 7,
            put_ms: 1_700_000_000_123,
        };
        let reading = PlanSchedule {
            sampler: Sampler::TorchDistributed,
            seed: 42,
            epochs: 90,
            ..PlanSchedule::default()
        };
        (about, Plan::new(["a/1", "a/2", "b"], reading).unwrap())
    }

    #[test]
    fn a_file_reads_back_as_written_and_damage_is_detected() {
        let (about, plan) = example();
        let (lineage, restored) = lineages();
        let bytes = serialize(&lineage.own, &about, &plan);
        assert_eq!(parse(&lineage, &bytes).unwrap(), (about, plan));
        assert!(matches!(parse(&restored, &bytes), Err(BadPlanFile::Line(LineFileError::Foreign(_)))));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(parse(&lineage, &damaged).is_err(), "byte {at}");
            assert!(parse(&lineage, &bytes[..at]).is_err(), "cut at {at}");
        }
        let text = String::from_utf8_lossy(&bytes).replacen("mlgw-plan 2", "mlgw-plan 3", 1);
        assert!(matches!(
            parse(&lineage, text.as_bytes()),
            Err(BadPlanFile::Line(LineFileError::Version(version))) if version == "3"
        ));
    }

    #[test]
    fn the_format_equals_the_released_one() {
        let (about, plan) = example();
        let (lineage, restored) = lineages();
        let bytes = serialize(&lineage.own, &about, &plan);
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let rest = &bytes[end..];
        let line = concat!(
            r#"mlgw-plan 1 8fdaa7b0 "#,
            r#"{"workload":"resnet","bucket":"lake","bucket_id":7,"put_ms":1700000000123}"#
        );
        let older = [line.as_bytes(), rest];
        assert_eq!(parse(&lineage, &older.concat()).unwrap(), (about, plan));
        assert!(matches!(parse(&restored, &older.concat()), Err(BadPlanFile::Line(LineFileError::Unowned))));
        let line = concat!(
            r#"mlgw-plan 2 0000000000000001-0000000000000002-0000000000000003 c298aeb1 "#,
            r#"{"workload":"resnet","bucket":"lake","bucket_id":7,"put_ms":1700000000123}"#
        );
        assert_eq!(std::str::from_utf8(&bytes[..end]).unwrap(), line);
        // The last eight bytes are the checksum, which the parser verifies.
        let hex: String = bytes[end + 1..bytes.len() - 8].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0101002a005a010003".to_owned() + "0003612f31" + "020132" + "000162" + "00");
    }
}
