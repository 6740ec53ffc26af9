//! `/v1/upstreams`: the configured upstreams and checks of their capabilities.

use super::change::{AuditedAction, AuditedChange, json};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::words::{upstream_check_step, upstream_protocol};
use super::{Admin, ApiError};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{CheckInfo, UpstreamInfo, UpstreamList, UpstreamOwner};
use mlgw_common::{NodeId, SegmentTier, hide_url_secrets};
use mlgw_formats::schema::SegmentRecord;
use mlgw_remote::upstream::{CheckStep, PrefixOwnership, Upstream, UpstreamError, UpstreamSettings};
use std::sync::Arc;

/// Converts a step of a check to its API type.
fn check_info(step: CheckStep) -> CheckInfo {
    CheckInfo {
        step: upstream_check_step(step.verb),
        fault: step.fault,
        missing: step.missing.map(str::to_owned),
    }
}

const fn upstream_owner(ownership: &PrefixOwnership) -> UpstreamOwner {
    match ownership {
        PrefixOwnership::Unchecked { .. } => UpstreamOwner::Unchecked,
        PrefixOwnership::Own => UpstreamOwner::Own,
        PrefixOwnership::Earlier(_) => UpstreamOwner::Earlier,
        PrefixOwnership::Superseded(_) => UpstreamOwner::Superseded,
        PrefixOwnership::Foreign(_) => UpstreamOwner::Foreign,
        PrefixOwnership::Missing => UpstreamOwner::Missing,
        PrefixOwnership::Damaged => UpstreamOwner::Damaged,
    }
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Json<UpstreamList>, ApiError> {
    let loaded = admin.loaded.load();
    let upstreams = loaded.config.upstreams.iter().map(|settings| admin.upstream_info(settings));
    Ok(Json(UpstreamList { upstreams: upstreams.collect::<Result<_, _>>()? }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(name): AdminPath<String>,
) -> Result<Json<UpstreamInfo>, ApiError> {
    Ok(Json(admin.upstream_by_name(&name)?))
}

/// Takes ownership of the prefix for this server. From then on this server may delete objects under the
/// prefix, and every other server that used the prefix stops deleting there.
pub(super) async fn adopt(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "upstream.adopt", resource: name.clone(), status: StatusCode::OK };
    let shared = Arc::clone(&admin);
    let work = async move {
        check_may_adopt(&shared)?;
        let upstream = shared.upstreams.get(&name).ok_or_else(|| no_such_upstream(&name))?;
        check_is_owner(&shared, &name)?;
        let before = json(&shared.upstream_by_name(&name)?)?;
        upstream.adopt().await.map_err(|error| adopt_error(&error))?;
        let after = json(&shared.upstream_by_name(&name)?)?;
        Ok(AuditedChange { resource: name, before, after, answer: None })
    };
    admin.change(caller, action, work).await
}

/// Checks that this server may own prefixes. The rows of a recovered one may be older than what other nodes
/// did last, and one of these nodes may still run.
fn check_may_adopt(admin: &Admin) -> Result<(), ApiError> {
    if !admin.is_recovered {
        return Ok(());
    }
    let message = "This server was recovered from a node of a cluster and has not taken over. Check it, stop \
                   it, and run `mlgw cluster recover` with --take-over first.";
    Err(ApiError::new(StatusCode::CONFLICT, "NotTakenOver", message.to_owned()))
}

/// Checks that this node of a cluster is the one to which the prefix belongs. Another node that adopted it
/// would stop the deletes of that one.
fn check_is_owner(admin: &Admin, upstream: &str) -> Result<(), ApiError> {
    let Some(cluster) = &admin.cluster else { return Ok(()) };
    let segments = admin.stored.catalogue.segments().map_err(mlgw_wire::error::S3Error::from)?;
    if may_own(cluster.id(), upstream, &segments) {
        return Ok(());
    }
    let message = format!(
        "The duty node, node {}, has no segments at upstream {upstream:?}. Repeat the command when the node \
         that spills there has the duty.",
        cluster.id()
    );
    Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "OtherNode", message))
}

/// True for the node of a cluster that spills, and for one that owns segments at the upstream.
fn may_own(node: NodeId, upstream: &str, segments: &[SegmentRecord]) -> bool {
    node == NodeId::SINGLE
        || segments.iter().any(|segment| is_in(segment, upstream) && segment.is_owned_by(node))
}

fn adopt_error(error: &UpstreamError) -> ApiError {
    let (status, code) = match error {
        UpstreamError::NotOwner { .. } => (StatusCode::CONFLICT, "ForeignUpstream"),
        _ => (StatusCode::BAD_GATEWAY, "UpstreamFailed"),
    };
    ApiError::new(status, code, error.to_string())
}

/// Checks an upstream. The check reads and writes there and removes what it wrote; no state of this server
/// changes, so the audit log gets no line.
pub(super) async fn check(
    State(admin): State<Arc<Admin>>,
    AdminPath(name): AdminPath<String>,
) -> Result<Json<Vec<CheckInfo>>, ApiError> {
    let upstream = admin.upstreams.get(&name).ok_or_else(|| no_such_upstream(&name))?;
    Ok(Json(upstream.check().await.into_iter().map(check_info).collect()))
}

fn no_such_upstream(name: &str) -> ApiError {
    let message =
        format!("No such upstream: {name:?}; add a section [upstream.{name}] to the configuration.");
    ApiError::new(StatusCode::NOT_FOUND, "NoSuchUpstream", message)
}

impl Admin {
    fn upstream_by_name(&self, name: &str) -> Result<UpstreamInfo, ApiError> {
        let loaded = self.loaded.load();
        let found = loaded.config.upstreams.iter().find(|settings| settings.name == name);
        self.upstream_info(found.ok_or_else(|| no_such_upstream(name))?)
    }

    fn upstream_info(&self, settings: &UpstreamSettings) -> Result<UpstreamInfo, ApiError> {
        let mut segments = self.stored.catalogue.segments().map_err(mlgw_wire::error::S3Error::from)?;
        segments.retain(|segment| is_in(segment, &settings.name));
        let buckets = self.stored.catalogue.buckets(None, None, usize::MAX);
        let is_bound = |bucket: &mlgw_formats::schema::Bucket| {
            bucket.binding.as_ref().is_some_and(|binding| binding.upstream == settings.name)
        };
        let upstream = self.upstreams.get(&settings.name);
        let ownership = upstream.and_then(Upstream::ownership);
        let unchecked = || PrefixOwnership::Unchecked { why: None };
        Ok(UpstreamInfo {
            name: settings.name.clone(),
            kind: upstream_protocol(settings.kind),
            endpoint: settings.endpoint.as_deref().map(|url| hide_url_secrets(url).into_owned()),
            bucket: settings.bucket.clone(),
            prefix: settings.prefix.clone(),
            encrypt: settings.encrypt,
            bound: buckets
                .iter()
                .filter(|bucket| is_bound(bucket))
                .map(|bucket| bucket.name.clone())
                .collect(),
            spilled_to: self.loaded.load().config.cold.upstream.as_ref() == Some(&settings.name),
            segments: segments.len() as u64,
            segment_bytes: segments.iter().map(|segment| segment.length).sum(),
            owner: ownership.as_ref().map_or(UpstreamOwner::Unchecked, upstream_owner),
            marked_by: ownership.as_ref().and_then(PrefixOwnership::other).map(|of| of.to_string()),
            advice: upstream.filter(|_| ownership != Some(unchecked())).and_then(Upstream::owner_advice),
            conditions: upstream.and_then(Upstream::honours_conditions),
        })
    }
}

/// Returns true if a replica of the segment is in the given upstream.
fn is_in(segment: &SegmentRecord, upstream: &str) -> bool {
    segment.replicas.iter().any(|at| at.tier() == Ok(SegmentTier::Upstream) && at.location == upstream)
}

#[cfg(test)]
mod tests {
    use super::{NodeId, SegmentRecord, SegmentTier, may_own};
    use mlgw_formats::schema::Replica;

    #[test]
    fn a_prefix_belongs_to_the_node_that_spills_or_owns_segments_there() {
        let tier = SegmentTier::Upstream.number();
        let replica = Replica { node: 2, tier, location: "far".into(), ..Replica::default() };
        let segments = [SegmentRecord { id: 1, replicas: vec![replica], ..SegmentRecord::default() }];
        let may = |node, upstream| may_own(NodeId(node), upstream, &segments);
        assert_eq!([may(1, "far"), may(2, "far"), may(3, "far"), may(2, "near")], [true, true, false, false]);
    }
}
