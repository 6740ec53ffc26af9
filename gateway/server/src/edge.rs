//! The S3 edge of a server: it serves requests, forwards them, or both.

use super::bring_up::StorageParts;
use mlgw_auth::AuthRules;
use mlgw_common::Clock;
use mlgw_config::Config;
use mlgw_forwarding::Forwarder;
use mlgw_node::ClusterNode;
use mlgw_protocol::edge::{ForwardingEdge, MemberEdge, S3Edge};
use mlgw_protocol::member::{MemberGateway, MemberPart, MemberView};
use mlgw_protocol::request_ids::RequestIds;
use mlgw_protocol::{Gateway, S3Config};
use mlgw_remote::origin::OriginFence;
use mlgw_telemetry::GatewayMetrics;
use mlgw_wire::lanes::WorkloadLanes;
use std::net::IpAddr;
use std::sync::Arc;

/// Returns the gateway of a server with objects. In a cluster it serves remote-backed buckets only with the
/// fence of a term of duty.
pub(super) fn gateway_of(
    parts: &StorageParts,
    config: &Config,
    metrics: &Arc<GatewayMetrics>,
    fence: Option<OriginFence>,
) -> Gateway {
    let domains = domains_of(config);
    let mut rules = AuthRules::new("s3");
    rules.region = config.s3.region_strict.then(|| config.s3.region.clone());
    rules.sigv2 = config.s3.sigv2;
    rules.domains.clone_from(&domains);
    Gateway {
        objects: Arc::clone(&parts.objects),
        remote_backed: parts.remote_backed.clone(),
        policy_driver: parts.policy_driver.clone(),
        policies: Arc::clone(&parts.policies),
        writeback: parts.writeback.clone(),
        keyring: parts.keyring.clone(),
        upload_ids: parts.upload_ids.clone(),
        config: S3Config { domains, region: config.s3.region.clone(), rules },
        lanes: lanes_of(config),
        metrics: Arc::clone(metrics),
        clock: Arc::clone(&parts.clock),
        ids: Arc::new(RequestIds::new(parts.lineage.node)),
        member: parts.cluster.as_ref().map(|cluster| member_part(cluster, config, fence)),
    }
}

/// Returns the part of a node in its cluster.
fn member_part(cluster: &ClusterNode, config: &Config, fence: Option<OriginFence>) -> MemberPart {
    let view = MemberView {
        clock: cluster.clock(),
        lost_groups: cluster.lost_groups(),
        reads_stale: config.cluster.read_without_quorum,
    };
    MemberPart::new(cluster.id(), fence, view)
}

/// Returns the edge of a storage node of a cluster, which forwards what it does not own.
pub(super) fn edge_of(gateways: &Arc<MemberGateway>, cluster: &ClusterNode) -> S3Edge {
    let gateway = gateways.load();
    let forwarding = ForwardingEdge {
        domains: gateway.config.domains.clone(),
        metrics: Arc::clone(&gateway.metrics),
        clock: Arc::clone(&gateway.clock),
        ids: Arc::clone(&gateway.ids),
        routes: cluster.routes(),
        forwarder: forwarder_of(cluster, &gateway.metrics),
    };
    S3Edge::Member(Arc::new(MemberEdge { gateway: Arc::clone(gateways), forwarding }))
}

/// Returns the edge of a node without objects.
pub(super) fn forwarding_edge(
    cluster: &ClusterNode,
    config: &Config,
    metrics: &Arc<GatewayMetrics>,
    clock: &Arc<dyn Clock>,
) -> S3Edge {
    S3Edge::Forwarding(Arc::new(ForwardingEdge {
        domains: domains_of(config),
        metrics: Arc::clone(metrics),
        clock: Arc::clone(clock),
        ids: Arc::new(RequestIds::new(cluster.id())),
        routes: cluster.routes(),
        forwarder: forwarder_of(cluster, metrics),
    }))
}

/// Returns the forwarder of a node, which counts in the metrics of the node.
fn forwarder_of(cluster: &ClusterNode, metrics: &GatewayMetrics) -> Forwarder {
    let counters = metrics.forwarding.clone().unwrap_or_default();
    Forwarder::new(cluster.id(), cluster.streams(), counters)
}

/// Returns the base names whose sub-domains are buckets: those of the configuration, and the name of the
/// listener.
fn domains_of(config: &Config) -> Vec<String> {
    let mut domains = config.s3.domains.clone();
    let host = &config.s3.listen.host;
    if host.parse::<IpAddr>().is_err() && !domains.contains(host) {
        domains.push(host.clone());
    }
    domains
}

/// Returns the lanes of the configuration. Invalid globs were refused when the configuration was loaded.
fn lanes_of(config: &Config) -> WorkloadLanes {
    WorkloadLanes::new(&config.lanes.inference).unwrap_or_default()
}
