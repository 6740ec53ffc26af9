//! Access plan documents, in which a client announces its future reads: a bucket, keys or a prefix, and the
//! sampler that orders them.

use super::diagnostic::Diagnostics;
use super::findings::Findings;
use super::limits::PLAN_TEXT_BYTES_MAX;
use super::parser::{DocumentLimits, parse_within};
use super::reader::{Fields, LocatedNode};
use crate::plan::{EPOCHS_MAX, InvalidAccessPlan, KEYS_MAX, PlanSchedule, RANKS_MAX, Sampler};
use mlgw_common::limits::{BUCKET_NAME_LEN_MAX, KEY_LEN_MAX};

/// Keys of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedKeys {
    /// These keys, in this order.
    Listed(Vec<Box<str>>),
    /// All keys with this prefix, in the order of a listing, which the receiver of the plan makes.
    Prefix(Box<str>),
}

/// A parsed access plan document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanDocument {
    /// Name of the bucket.
    pub bucket: Box<str>,
    /// Keys of the plan.
    pub keys: PlannedKeys,
    /// Order in which the keys are read.
    pub schedule: PlanSchedule,
}

const FIELDS: &[&str] = &[
    "version",
    "bucket",
    "keys",
    "prefix",
    "sampler",
    "seed",
    "first_epoch",
    "epochs",
    "ranks",
    "rank",
    "drop_last",
];

impl PlanDocument {
    /// Parses YAML or JSON; messages call the file `file`.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let mut findings = Findings::new(file);
        let bounds = DocumentLimits { text_bytes: PLAN_TEXT_BYTES_MAX, nodes: KEYS_MAX + 4 * FIELDS.len() };
        let node = parse_within(text, bounds, &mut findings);
        let document = node.and_then(|node| Self::read(&LocatedNode::root(&node), &mut findings));
        findings.result(document)
    }

    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, FIELDS, findings)?;
        super::file::read_version(&fields, findings);
        let bucket = fields.required("bucket", findings);
        let bucket = bucket.and_then(|at| text(&at, BUCKET_NAME_LEN_MAX, "the name of a bucket", findings));
        let keys = read_keys(&fields, findings);
        let reading = read_schedule(&fields, findings);
        Some(Self { bucket: bucket?, keys: keys?, schedule: reading })
    }
}

fn text(
    place: &LocatedNode<'_>,
    bytes_max: usize,
    expected: &str,
    findings: &mut Findings,
) -> Option<Box<str>> {
    let text = &findings.scalar(place, expected)?.text;
    if text.is_empty() || text.len() > bytes_max {
        findings.report_wrong(
            place,
            &format!("has {} bytes", text.len()),
            format!("{expected}, at most {bytes_max} bytes"),
        );
        return None;
    }
    Some(text.clone())
}

fn read_keys(fields: &Fields<'_>, findings: &mut Findings) -> Option<PlannedKeys> {
    match (fields.get("keys"), fields.get("prefix")) {
        (Some(listed), None) => {
            let items = findings.items(&listed, KEYS_MAX);
            if items.is_empty() && listed.is_empty_list() {
                findings.report_wrong(&listed, "is empty", "one or more keys".to_owned());
            }
            let keys = items.iter().map(|item| text(item, KEY_LEN_MAX, "a key", findings));
            keys.collect::<Vec<_>>().into_iter().collect::<Option<_>>().map(PlannedKeys::Listed)
        }
        (None, Some(prefix)) => {
            let prefix = findings.scalar(&prefix, "a key prefix")?.text.clone();
            Some(PlannedKeys::Prefix(prefix))
        }
        (Some(_), Some(prefix)) => {
            findings.report_wrong(&prefix, "conflicts with keys", "one of keys, prefix".to_owned());
            None
        }
        (None, None) => {
            findings.report_missing_field(fields.place, "keys or prefix");
            None
        }
    }
}

fn read_schedule(fields: &Fields<'_>, findings: &mut Findings) -> PlanSchedule {
    let plain = PlanSchedule::default();
    let mut whole = |name: &str, low: u64, high: u64| {
        let at = fields.get(name)?;
        let expected = format!("a whole number from {low} to {high}");
        let scalar = findings.scalar(&at, &expected)?;
        let number = scalar.text.parse().ok().filter(|n| scalar.is_plain && (low..=high).contains(n));
        if number.is_none() {
            findings.report_wrong(&at, "is not a valid number", expected);
        }
        number
    };
    let seed = whole("seed", 0, u64::MAX).unwrap_or(plain.seed);
    let [first_epoch, epochs, ranks] =
        [("first_epoch", 0, EPOCHS_MAX, 0), ("epochs", 1, EPOCHS_MAX, 1), ("ranks", 1, RANKS_MAX, 1)].map(
            |(name, low, high, plain)| {
                whole(name, low, u64::from(high)).map_or(plain, |number| number as u32)
            },
        );
    let rank = whole("rank", 0, u64::from(RANKS_MAX)).map(|number| number as u32);
    let drop_last = fields.get("drop_last").and_then(|at| findings.flag(&at)).unwrap_or(plain.drop_last);
    let reading = PlanSchedule {
        sampler: read_sampler(fields, findings),
        seed,
        first_epoch,
        epochs,
        ranks,
        rank,
        drop_last,
    };
    if let Err(wrong) = reading.check() {
        let field = match wrong {
            InvalidAccessPlan::Epochs(_) => "epochs",
            InvalidAccessPlan::Rank { .. } => "rank",
            _ => "ranks",
        };
        let place = fields.get(field);
        let (spot, path) =
            place.map_or((fields.place.node.spot, String::new()), |at| (at.node.spot, at.path()));
        findings.add(spot, &path, wrong.to_string(), String::new(), None);
    }
    reading
}

fn read_sampler(fields: &Fields<'_>, findings: &mut Findings) -> Sampler {
    let names = Sampler::ALL.map(Sampler::name);
    let Some(at) = fields.get("sampler") else { return Sampler::default() };
    let expected = super::diagnostic::one_of(names);
    let Some(scalar) = findings.scalar(&at, &expected) else { return Sampler::default() };
    let sampler = Sampler::ALL.into_iter().find(|sampler| sampler.name() == &*scalar.text);
    if sampler.is_none() {
        findings.report_unknown_word(&at, &scalar.text, "sampler", &names);
    }
    sampler.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{PlanDocument, PlannedKeys};
    use crate::plan::{KEYS_MAX, PlanSchedule, Sampler};

    fn wrong(text: &str) -> String {
        PlanDocument::parse("plan.yaml", text).unwrap_err().to_string()
    }

    #[test]
    fn keys_keep_the_order_of_the_list() {
        let document =
            PlanDocument::parse("p", r#"{"version": 1, "bucket": "data", "keys": ["b", "a", "b"]}"#).unwrap();
        let keys = PlannedKeys::Listed(["b", "a", "b"].map(Into::into).to_vec());
        assert_eq!(
            (&*document.bucket, document.keys, document.schedule),
            ("data", keys, PlanSchedule::default())
        );
    }

    #[test]
    fn prefix_and_sampler_are_parsed() {
        let text = "version: 1\nbucket: data\nprefix: train/\nsampler: torch_distributed\n\
            seed: 18446744073709551615\n\
            epochs: 90\nfirst_epoch: 3\nranks: 8\nrank: 7\ndrop_last: true\n";
        let document = PlanDocument::parse("p", text).unwrap();
        assert_eq!(document.keys, PlannedKeys::Prefix("train/".into()));
        let expected = PlanSchedule {
            sampler: Sampler::TorchDistributed,
            seed: u64::MAX,
            first_epoch: 3,
            epochs: 90,
            ranks: 8,
            rank: Some(7),
            drop_last: true,
        };
        assert_eq!(document.schedule, expected);
    }

    #[test]
    fn errors_are_reported_with_their_position() {
        let begin = "version: 1\nbucket: data\n";
        for (text, message) in [
            ("bucket: data\nprefix: x", "plan.yaml:1:1: the field version is missing"),
            ("version: 1\nprefix: x", "plan.yaml:1:1: the field bucket is missing"),
            (begin, "plan.yaml:1:1: the field keys or prefix is missing"),
            (&format!("{begin}prefix: x\nkeys: [a]"), "plan.yaml:3:9: prefix: \"x\" conflicts with keys"),
            (&format!("{begin}keys: []"), "plan.yaml:3:7: keys: a list is empty (one or more keys)"),
            (
                &format!("{begin}keys: [a, \"\"]"),
                "plan.yaml:3:11: keys[1]: \"\" has 0 bytes (a key, at most 1024 bytes)",
            ),
            (
                &format!("{begin}prefix: x\nsampler: torch_distribted"),
                "plan.yaml:4:10: sampler: unknown sampler \"torch_distribted\"; did you mean \
                    \"torch_distributed\"?",
            ),
            (
                &format!("{begin}prefix: x\nepochs: 0"),
                "plan.yaml:4:9: epochs: \"0\" is not a valid number (a whole number from 1 to",
            ),
            (&format!("{begin}prefix: x\nseed: -1"), "plan.yaml:4:7: seed: \"-1\" is not a valid number"),
            (
                &format!("{begin}prefix: x\nranks: 2\nrank: 2"),
                "plan.yaml:5:7: rank: rank 2 is out of range: the plan has 2 ranks",
            ),
            (
                &format!("{begin}prefix: x\nsampler: torch_random\nranks: 2"),
                "plan.yaml:5:8: ranks: only the samplers sequential and torch_distributed distribute keys \
                    to ranks",
            ),
            (&format!("{begin}prefix: x\nworld: 2"), "plan.yaml:4:1: world: unknown field \"world\""),
            ("{\"version\": 1,\n \"keys\": [1, 2", "plan.yaml:"),
        ] {
            assert!(wrong(text).starts_with(message), "{text:?}: {}", wrong(text));
        }
    }

    #[test]
    fn too_many_keys_are_reported_at_the_list() {
        let keys = "a,".repeat(KEYS_MAX + 1);
        let found = wrong(&format!("version: 1\nbucket: data\nkeys: [{keys}]"));
        assert!(
            found.starts_with(&format!("plan.yaml:3:7: keys: a list of {} items is too long", KEYS_MAX + 1)),
            "{found}"
        );
    }
}
