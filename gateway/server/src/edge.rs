//! The S3 edge of a server: it serves requests, forwards them, or both.

use super::bring_up::ServerEngine;
use mlgw_auth::AuthRules;
use mlgw_common::Clock;
use mlgw_config::Config;
use mlgw_forwarding::Forwarder;
use mlgw_node::{ClusterNode, FIRST_NODE};
use mlgw_protocol::edge::{ForwardingEdge, MemberEdge, S3Edge};
use mlgw_protocol::member::{MemberPart, MemberView};
use mlgw_protocol::request_ids::RequestIds;
use mlgw_protocol::{Gateway, S3Config};
use mlgw_telemetry::GatewayMetrics;
use mlgw_wire::lanes::WorkloadLanes;
use std::net::IpAddr;
use std::sync::Arc;

/// Returns the gateway of a server with objects.
pub(super) fn gateway_of(engine: &ServerEngine, config: &Config, metrics: &Arc<GatewayMetrics>) -> Gateway {
    let domains = domains_of(config);
    let mut rules = AuthRules::new("s3");
    rules.region = config.s3.region_strict.then(|| config.s3.region.clone());
    rules.sigv2 = config.s3.sigv2;
    rules.domains.clone_from(&domains);
    Gateway {
        objects: Arc::clone(&engine.objects),
        remote_backed: engine.remote_backed.clone(),
        policy_driver: engine.policy_driver.clone(),
        policies: Arc::clone(&engine.policies),
        writeback: engine.writeback.clone(),
        keyring: engine.keyring.clone(),
        upload_ids: engine.upload_ids.clone(),
        config: S3Config { domains, region: config.s3.region.clone(), rules },
        lanes: lanes_of(config),
        metrics: Arc::clone(metrics),
        clock: Arc::clone(&engine.clock),
        ids: Arc::new(RequestIds::new(engine.dir.lineage().node)),
        member: engine.cluster.as_ref().map(|cluster| member_part(cluster, config)),
    }
}

/// Returns the part of a node in its cluster.
fn member_part(cluster: &ClusterNode, config: &Config) -> MemberPart {
    let view = MemberView {
        clock: cluster.clock(),
        majorities: cluster.majorities(),
        reads_stale: config.cluster.read_without_quorum,
    };
    MemberPart::new(cluster.id(), FIRST_NODE, view)
}

/// Returns the edge of a server with objects. A node of a cluster forwards what it does not own.
pub(super) fn edge_of(gateway: &Arc<Gateway>, cluster: Option<&ClusterNode>) -> S3Edge {
    let gateway = Arc::clone(gateway);
    let Some(cluster) = cluster else { return S3Edge::Local(gateway) };
    let forwarding = ForwardingEdge {
        domains: gateway.config.domains.clone(),
        metrics: Arc::clone(&gateway.metrics),
        clock: Arc::clone(&gateway.clock),
        ids: Arc::clone(&gateway.ids),
        routes: cluster.routes(),
        forwarder: forwarder_of(cluster, &gateway.metrics),
    };
    S3Edge::Member(Arc::new(MemberEdge { gateway, forwarding }))
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
