//! The command `mlgw object …`.

use super::client::Client;
use super::output::{Out, columns, pairs};
use super::{CliError, Global, discover, path_segment};
use clap::Subcommand;
use mlgw_api::{ExtentInfo, ObjectInfo, ObjectNodeInfo, ObjectTierInfo, OriginObjectInfo};
use mlgw_common::ByteSize;

/// Maximum number of extents in a table. `--output json` has all.
const EXTENTS_SHOWN: usize = 20;

#[derive(Debug, Subcommand)]
pub enum ObjectSubcommand {
    /// Show an object and the location of its bytes.
    Show {
        /// The object.
        #[arg(value_name = "s3://BUCKET/KEY", value_parser = parse_object_uri)]
        object: ObjectUri,
    },
}

/// An object's bucket and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUri {
    pub(super) bucket: String,
    pub(super) key: String,
}

/// Parses an object in the form `s3://BUCKET/KEY`.
pub(super) fn parse_object_uri(text: &str) -> Result<ObjectUri, String> {
    let named = text.strip_prefix("s3://").and_then(|path| path.split_once('/'));
    match named {
        Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
            Ok(ObjectUri { bucket: bucket.to_owned(), key: key.to_owned() })
        }
        _ => Err("expected s3://BUCKET/KEY".to_owned()),
    }
}

pub(super) async fn run(command: ObjectSubcommand, global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    let ObjectSubcommand::Show { object: ObjectUri { bucket, key } } = command;
    let path = format!("/v1/buckets/{}/object?key={}", path_segment(&bucket), path_segment(&key));
    out.document(&client.get::<ObjectInfo>(&path).await?, show)
}

fn show(object: &ObjectInfo) -> String {
    let size = |bytes: u64| ByteSize(bytes).human();
    let facts = pairs(&[
        ("object", format!("s3://{}/{}", object.bucket, object.key)),
        ("size", format!("{} ({} bytes)", size(object.size), object.size)),
        ("etag", object.etag.clone()),
        ("modified", object.modified.clone()),
        ("storage class", object.storage_class.clone()),
        ("parts", object.parts.to_string()),
        ("body", object.body_id.to_string()),
    ]);
    let origin = object.origin.as_ref().map_or_else(String::new, |origin| pairs(&origin_facts(origin)));
    let tier = |tier: &ObjectTierInfo| {
        vec![tier.tier.to_string(), size(tier.bytes), size(tier.stored_bytes), tier.segments.to_string()]
    };
    let tiers: Vec<_> = object.tiers.iter().map(tier).collect();
    let tiers = columns(&["TIER", "BYTES", "STORED", "SEGMENTS"], &tiers);
    let nodes = nodes(&object.nodes);
    let extents = extents(&object.extents[..object.extents.len().min(EXTENTS_SHOWN)]);
    let more = match (object.extents.len().saturating_sub(EXTENTS_SHOWN), object.whole) {
        (0, true) => String::new(),
        (more, true) => format!("{more} more extents: --output json shows all\n"),
        (_, false) if object.origin.is_some() => "the rest is fetched from the origin on read\n".to_owned(),
        (_, false) => "more extents exist than are shown\n".to_owned(),
    };
    format!("{facts}{origin}\n{tiers}{nodes}\n{extents}{more}")
}

/// Formats the location of extents; in a cluster with the nodes that have a copy.
fn extents(extents: &[ExtentInfo]) -> String {
    let mut head = vec!["FROM", "BYTES", "STORED", "ENCODING", "TIER", "SEGMENT", "STATE", "OFFSET"];
    let is_clustered = extents.iter().any(|extent| !extent.nodes.is_empty());
    if is_clustered {
        head.push("NODES");
    }
    let row = |extent: &ExtentInfo| {
        let mut row = vec![
            extent.first.to_string(),
            ByteSize(extent.bytes).human(),
            ByteSize(extent.stored_bytes).human(),
            extent.encoding.clone(),
            extent.tier.to_string(),
            format!("{:016x}", extent.segment),
            extent.segment_state.to_string(),
            extent.offset.to_string(),
        ];
        if is_clustered {
            row.push(extent.nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
        }
        row
    };
    columns(&head, &extents.iter().map(row).collect::<Vec<_>>())
}

/// Formats the bytes of an object on each node of a cluster.
fn nodes(nodes: &[ObjectNodeInfo]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let size = |bytes: u64| ByteSize(bytes).human();
    let row = |on: &ObjectNodeInfo| {
        vec![on.node.to_string(), on.tier.to_string(), size(on.bytes), size(on.suspect_bytes)]
    };
    let rows: Vec<_> = nodes.iter().map(row).collect();
    format!("\n{}", columns(&["NODE", "TIER", "BYTES", "SUSPECT"], &rows))
}

fn origin_facts(origin: &OriginObjectInfo) -> Vec<(&'static str, String)> {
    let state = match (origin.dirty, origin.contested) {
        (false, _) => "clean: the origin has it",
        (true, false) => "dirty: written here, not yet at the origin",
        (true, true) => "contested: another client wrote it at the origin; see `mlgw bucket flush`",
    };
    let mut facts = vec![
        ("upstream", origin.upstream.clone()),
        ("origin key", origin.key.clone()),
        ("state", state.to_owned()),
    ];
    let ago = |ms: u64| format!("{}.{} s ago", ms / 1000, ms % 1000 / 100);
    facts.extend(origin.validated_ms_ago.map(|ms| ("validated", ago(ms))));
    facts.extend(origin.read.clone().map(|read| ("last read", read)));
    facts
}

#[cfg(test)]
mod tests {
    use super::{ObjectUri, extents, nodes, parse_object_uri};
    use mlgw_api::{ExtentInfo, ExtentState, ObjectLocation, ObjectNodeInfo};

    #[test]
    fn the_nodes_of_an_object_are_shown_in_a_cluster() {
        let extent = |nodes: &[u64]| ExtentInfo {
            first: 0,
            bytes: 1024,
            stored_bytes: 1100,
            encoding: "raw".into(),
            tier: ObjectLocation::Hot,
            nodes: nodes.to_vec(),
            segment: 7,
            segment_state: ExtentState::Sealed,
            offset: 4096,
        };
        assert!(!extents(&[extent(&[])]).contains("NODES"), "{}", extents(&[extent(&[])]));
        let shown = extents(&[extent(&[1, 3])]);
        assert!(shown.contains("NODES\n") && shown.contains("4096    1, 3\n"), "{shown}");
        assert_eq!(nodes(&[]), "");
        let on = ObjectNodeInfo { node: 3, tier: ObjectLocation::Cold, bytes: 2048, suspect_bytes: 1024 };
        assert_eq!(nodes(&[on]), "\nNODE  TIER  BYTES    SUSPECT\n3     cold  2.0 KiB  1.0 KiB\n");
    }

    #[test]
    fn an_object_is_a_bucket_and_a_key_of_any_form() {
        let named = |bucket: &str, key: &str| Ok(ObjectUri { bucket: bucket.into(), key: key.into() });
        assert_eq!(parse_object_uri("s3://b/k"), named("b", "k"));
        assert_eq!(parse_object_uri("s3://b//k/ ?#/"), named("b", "/k/ ?#/"));
        for wrong in ["b/k", "s3://b", "s3://b/", "s3:///k", "http://b/k"] {
            assert!(parse_object_uri(wrong).is_err(), "{wrong}");
        }
    }
}
