//! Group 0: the rebalance that is requested. A later request replaces an earlier one, so that the end of the
//! earlier one, which was decided without what the later one knew, ends nothing.

use super::malformed;
use crate::view::{ApplyError, View};
use mlgw_common::limits::NODE_TEXT_BYTES_MAX;
use mlgw_formats::command::{EndRebalance, Reply, RequestRebalance};
use mlgw_formats::schema::Rebalance;

pub(super) fn request(view: &mut View<'_>, command: &RequestRebalance) -> Result<Reply, ApplyError> {
    if command.rebalance.by.len() > NODE_TEXT_BYTES_MAX {
        return Err(malformed("the name of the requester of a rebalance is too long"));
    }
    view.put(Rebalance::row(), &command.rebalance);
    Ok(Reply::Done)
}

pub(super) fn end(view: &mut View<'_>, command: &EndRebalance) -> Result<Reply, ApplyError> {
    let known: Option<Rebalance> = view.get(&Rebalance::row())?;
    if known.as_ref() == Some(&command.rebalance) {
        view.delete(Rebalance::row());
    }
    Ok(Reply::Done)
}
