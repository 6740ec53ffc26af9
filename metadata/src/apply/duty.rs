//! Group 0: the duty node. Each take-over has the next term, and commands of an earlier one are rejected.

use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_formats::command::{Reject, Reply, SetDuty};
use mlgw_formats::schema::Duty;

pub(super) fn set(view: &mut View<'_>, command: SetDuty) -> Result<Reply, ApplyError> {
    let known = current(view)?;
    // The same command again changes nothing.
    if known != command.duty {
        if !known.may_be_followed_by(&command.duty) {
            return Err(taken(&known).into());
        }
        view.put(Duty::row(), &command.duty);
    }
    Ok(Reply::Done)
}

/// Checks that a command of the duty node is of the present term. A command without a term is of a build that
/// knows none, or of a user.
pub(super) fn check_term(view: &View<'_>, term: Option<u64>) -> Result<(), ApplyError> {
    let Some(term) = term else { return Ok(()) };
    let known = current(view)?;
    if known.term == term { Ok(()) } else { Err(taken(&known).into()) }
}

/// Checks that a step of a job is of the present term. A step without a term is of the duty node as long as
/// the duty has not changed: its work may have begun before terms were known.
pub(super) fn check_worker(view: &View<'_>, node: u64, term: Option<u64>) -> Result<(), ApplyError> {
    let known = current(view)?;
    let is_present = term.map_or(known.term == 0 || known.node == node, |term| known.term == term);
    if is_present { Ok(()) } else { Err(taken(&known).into()) }
}

fn current(view: &View<'_>) -> Result<Duty, StoreError> {
    Ok(view.get(&Duty::row())?.unwrap_or(Duty::FIRST))
}

const fn taken(known: &Duty) -> Reject {
    Reject::DutyTaken { node: known.node, term: known.term }
}
