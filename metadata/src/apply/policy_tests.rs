//! Policy versions follow each other, and the number of stored versions and files is bounded.

use super::memory_group::MemoryGroup;
use crate::view::RowReader as _;
use mlgw_common::limits::{POLICY_BYTES_MAX, POLICY_FILES_KEPT_MAX, POLICY_VERSIONS_MAX};
use mlgw_formats::command::{Change, PutPolicy, Reject, Reply, SetDuty};
use mlgw_formats::schema::{
    Duty, DutyPhase, PolicyFile, PolicyFiles, PolicyKind, PolicyVersion, decode, policy,
};

#[derive(Default)]
struct Group {
    group: MemoryGroup,
}

impl Group {
    fn apply(&mut self, put: PutPolicy) -> Result<PolicyVersion, Reject> {
        self.change(Change::PutPolicy(put)).map(|reply| match reply {
            Reply::Policy(version) => *version,
            other => panic!("{other:?}"),
        })
    }

    fn change(&mut self, change: Change) -> Result<Reply, Reject> {
        self.group.apply(change)
    }

    fn version(&self, number: u64) -> Option<PolicyVersion> {
        self.group.rows.get(&policy::row(number)).unwrap().map(|value| decode(&value).unwrap())
    }

    fn has_files(&self, number: u64) -> bool {
        self.group.rows.get(&policy::files_row(number)).unwrap().is_some()
    }
}

fn with_files(after: u64, text: &str) -> PutPolicy {
    let custom = vec![PolicyFile { name: "p.yaml".into(), text: text.into() }];
    let files = Some(PolicyFiles { custom, frameworks: Vec::new() });
    PutPolicy { after, files, ..PutPolicy::default() }
}

fn naming(after: u64, files: u64) -> PutPolicy {
    let version = PolicyVersion { files, kind: PolicyKind::Freeze as i32, ..PolicyVersion::default() };
    PutPolicy { version, after, ..PutPolicy::default() }
}

#[test]
fn a_former_duty_node_stores_no_version() {
    let mut group = Group::default();
    let duty = Duty { node: 2, term: 1, phase: DutyPhase::Waiting as i32 };
    group.change(Change::SetDuty(SetDuty { duty })).unwrap();
    let of_term = |term| PutPolicy { duty_term: Some(term), ..with_files(0, "a") };
    assert_eq!(group.apply(of_term(0)), Err(Reject::DutyTaken { node: 2, term: 1 }));
    assert_eq!(group.apply(of_term(1)).unwrap().number, 1);
}

#[test]
fn a_version_follows_the_newest_or_nothing_changes() {
    let mut group = Group::default();
    let first = group.apply(with_files(0, "a")).unwrap();
    assert_eq!((first.number, first.files), (1, 1));
    assert_eq!(group.apply(with_files(0, "b")), Err(Reject::PolicyChanged { newest: 1 }));
    assert_eq!(group.apply(with_files(2, "b")), Err(Reject::PolicyChanged { newest: 1 }));
    assert!(group.version(2).is_none() && !group.has_files(2));
    assert_eq!(group.apply(with_files(1, "b")).unwrap().files, 2);
    let frozen = group.apply(naming(2, 2)).unwrap();
    assert_eq!((frozen.number, frozen.files), (3, 2));
    assert_eq!(group.apply(naming(3, 3)), Err(Reject::NoSuchPolicy { number: 3 }));
    assert_eq!(group.apply(naming(3, 0)).unwrap().files, 0);
}

#[test]
fn oversized_versions_and_unknown_kinds_are_rejected() {
    let mut group = Group::default();
    let mut large = with_files(0, &"x".repeat(POLICY_BYTES_MAX / 5));
    let files = large.files.as_mut().unwrap();
    files.frameworks = vec![files.custom[0].clone(); 5];
    assert!(matches!(group.apply(large), Err(Reject::Malformed { .. })));
    let mut many = with_files(0, "a");
    let files = many.files.as_mut().unwrap();
    files.custom = vec![files.custom[0].clone(); 17];
    assert!(matches!(group.apply(many), Err(Reject::Malformed { .. })));
    let mut unknown = naming(0, 0);
    unknown.version.kind = 99;
    assert!(matches!(group.apply(unknown), Err(Reject::Malformed { .. })));
    assert!(group.version(1).is_none());
}

#[test]
fn the_newest_versions_and_fewer_of_their_files_are_kept() {
    let mut group = Group::default();
    group.apply(with_files(0, "first")).unwrap();
    let kept = POLICY_FILES_KEPT_MAX as u64;
    // Every later version refers to the files of the first one.
    for number in 2..=3 * kept {
        let put = if number % 50 == 0 { naming(number - 1, 1) } else { with_files(number - 1, "text") };
        group.apply(put).unwrap();
    }
    assert!(group.has_files(1));
    assert_eq!((2..=2 * kept).find(|number| group.has_files(*number)), None);
    assert!((2 * kept + 1..=3 * kept).all(|number| group.has_files(number) == (number % 50 != 0)));
    for number in 3 * kept + 1..=POLICY_VERSIONS_MAX as u64 + 2 {
        group.apply(with_files(number - 1, "text")).unwrap();
    }
    assert!(!group.has_files(1), "no version names them");
    let first = (1..).find(|number| group.version(*number).is_some());
    assert_eq!(first, Some(3));
}
