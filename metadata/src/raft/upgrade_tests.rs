//! A node that knows the version before only, beside nodes that know the newest one.

use super::in_process::InProcess;
use crate::catalogue::testing::options;
use crate::catalogue::{Catalogue, CatalogueOptions};
use mlgw_common::NodeId;
use mlgw_formats::cluster_version::{CLUSTER_VERSION, PREVIOUS_CLUSTER_VERSION, SETS_CLUSTER_VERSION};
use mlgw_formats::command::{Change, Command, LeaseBodies, SetClusterVersion};
use mlgw_formats::log_batch::{Batch, encode_into};
use mlgw_formats::log_types::RaftLogEntry;
use mlgw_formats::member_calls::{
    AppendCall, IsMemberCall, MemberAnswer, MemberCall, MemberReply, MemberRequest, VoteRecord, log_id,
};
use mlgw_formats::schema::meta::LogPosition;
use openraft::EntryPayload;
use std::path::Path;
use std::sync::{Arc, mpsc};

/// Group of all nodes.
const SYSTEM_GROUP: u32 = 0;

/// The node that leads.
const LEADER: NodeId = NodeId(1);

/// Opens an empty member that knows this version, with the reasons for which it stops.
async fn older_member(dir: &Path, cluster_version: u32) -> (Catalogue, mpsc::Receiver<String>) {
    let (reason, stopped) = mpsc::channel();
    let catalogue = CatalogueOptions {
        node: NodeId(2),
        cluster_version,
        peers: Some(InProcess::default().peers(2)),
        fatal: Arc::new(move |why| reason.send(why.to_owned()).unwrap()),
        ..options(dir)
    };
    (Catalogue::open(catalogue).await.unwrap(), stopped)
}

/// A call of the leader with an entry that has one encoded command.
fn append(command: &[u8]) -> bytes::Bytes {
    let length = u32::try_from(command.len()).unwrap().to_le_bytes();
    let encoded = [&length[..], command].concat().into();
    let position = LogPosition { term: 1, node: LEADER.get(), index: 0 };
    let batch = Batch { commands: Vec::new(), encoded };
    let log_id = log_id(Some(&position)).unwrap();
    let entry = RaftLogEntry { log_id, payload: EntryPayload::Normal(batch) };
    let call = AppendCall {
        vote: VoteRecord { term: 1, node: LEADER.get(), committed: true },
        entries: AppendCall::encode_entries(&[entry]),
        ..AppendCall::default()
    };
    MemberCall::encode_request(SYSTEM_GROUP, MemberRequest::Append(call))
}

fn encoded(change: Change) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(&Command::from(change), &mut bytes);
    bytes.split_off(4)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_receives_a_command_or_a_field_of_a_later_version_stops() {
    let known = || encoded(Change::LeaseBodies(LeaseBodies { count: 1 }));
    // A field with the number 99, which no version has.
    let later_field = [&known()[..], &[0x98, 0x06, 1]].concat();
    let later_command = encoded(Change::SetClusterVersion(SetClusterVersion { version: CLUSTER_VERSION }));
    for later in [later_field, later_command] {
        let dir = tempfile::tempdir().unwrap();
        let (member, stopped) = older_member(dir.path(), PREVIOUS_CLUSTER_VERSION).await;
        let appended = member.serve_call(LEADER, append(&known())).await.unwrap();
        assert_eq!(MemberAnswer::read(appended).unwrap(), MemberReply::Appended(Default::default()));
        assert!(stopped.try_recv().is_err());
        assert!(member.serve_call(LEADER, append(&later)).await.is_err());
        let why = stopped.try_recv().unwrap();
        assert!(why.contains("cluster version") || why.contains("a later version"), "{why}");
        member.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_the_version_before_sets_does_not_know_questions_about_members() {
    let dir = tempfile::tempdir().unwrap();
    let (member, _) = older_member(dir.path(), SETS_CLUSTER_VERSION - 1).await;
    let call = MemberCall::encode_request(SYSTEM_GROUP, MemberRequest::IsMember(IsMemberCall {}));
    let refused = member.serve_call(LEADER, call).await.unwrap_err();
    assert!(refused.to_string().contains("does not know"), "{refused}");
    member.shutdown().await;
}
