//! The server of requests to the admin API that other nodes of the cluster send to this one.
//!
//! While this node has the duty, it has the whole API for them, otherwise only its own part. A node that
//! stops refuses further ones. Nothing is stored here.

use super::listeners::DutyAdmin;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mlgw_admin::serve::{Body, Router, handle_call};
use mlgw_admin::{MemberAdmin, member_node_router};
use mlgw_common::NodeId;
use mlgw_forwarding::MemberBody;
use mlgw_node::{AdminAnswer, AdminCall, AdminServer};
use std::sync::Arc;

/// Serves requests of other nodes.
pub(super) struct ServedAdmin {
    own: Router,
    duty: Arc<DutyAdmin>,
}

impl ServedAdmin {
    pub(super) fn new(admin: &Arc<MemberAdmin>, duty: Arc<DutyAdmin>) -> Self {
        Self { own: member_node_router(admin), duty }
    }
}

impl AdminServer for ServedAdmin {
    fn serve(&self, from: NodeId, call: AdminCall, body: MemberBody) -> BoxFuture<'static, AdminAnswer> {
        let routes = self.duty.node_routes().unwrap_or_else(|| self.own.clone());
        handle_call(routes, from, call, Body::new(body)).boxed()
    }
}
