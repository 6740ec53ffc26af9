//! Planted violations, each beside the legal history that differs from it in one operation.

use std::time::Duration;

use super::{NotLinearizable, OPERATIONS_MAX, check, shortest_violation};
use crate::cluster::histories::register::{
    KeyAction, KeyCondition, KeyMoment, KeyOperation, KeyOutcome, ValueId,
};

const A: ValueId = ValueId(0xa);
const B: ValueId = ValueId(0xb);
const C: ValueId = ValueId(0xc);

fn moment(order: u64) -> KeyMoment {
    KeyMoment { order, at: Duration::from_millis(order) }
}

/// An operation that begins and ends at these positions.
fn operation(request: &'static str, span: [u64; 2], action: KeyAction, outcome: KeyOutcome) -> KeyOperation {
    let [begun, ended] = span.map(moment);
    KeyOperation { request, client: 1, node: 2, action, outcome, begun, ended: Some(ended) }
}

fn put(span: [u64; 2], value: ValueId) -> KeyOperation {
    operation("PUT", span, KeyAction::Write(value, KeyCondition::Always), KeyOutcome::Done)
}

fn put_if(span: [u64; 2], value: ValueId, condition: KeyCondition, outcome: KeyOutcome) -> KeyOperation {
    operation("PUT", span, KeyAction::Write(value, condition), outcome)
}

fn delete(span: [u64; 2]) -> KeyOperation {
    operation("DELETE", span, KeyAction::Delete, KeyOutcome::Done)
}

fn found(request: &'static str, span: [u64; 2], value: ValueId) -> KeyOperation {
    operation(request, span, KeyAction::Read(KeyCondition::Always), KeyOutcome::Present(value))
}

fn absent(request: &'static str, span: [u64; 2]) -> KeyOperation {
    operation(request, span, KeyAction::Read(KeyCondition::Always), KeyOutcome::Absent)
}

/// The same change without a certain outcome.
fn unknown(change: KeyOperation) -> KeyOperation {
    KeyOperation { outcome: KeyOutcome::Unknown, ended: None, ..change }
}

#[track_caller]
fn accepted(operations: &[KeyOperation]) {
    assert_eq!(check(operations), Ok(()));
}

/// Asserts that the operation at this index is a violation, and that the shortest history is one too.
#[track_caller]
fn refused(operations: &[KeyOperation], at: usize) {
    assert_eq!(check(operations), Err(NotLinearizable::Violation(at)));
    let shortest = shortest_violation(operations);
    assert!(matches!(check(&shortest), Err(NotLinearizable::Violation(_))), "{shortest:?}");
}

#[test]
fn a_stale_read_is_found() {
    let writes = [put([1, 2], A), put([3, 6], B)];
    accepted(&[&writes[..], &[found("GET", [4, 5], A), found("GET", [7, 8], B)]].concat());
    refused(&[&writes[..], &[found("GET", [4, 5], A), found("GET", [7, 8], A)]].concat(), 3);
    // A value that was read may not be replaced by the one before it.
    refused(&[&writes[..], &[found("GET", [4, 5], B), found("GET", [7, 8], A)]].concat(), 3);
}

#[test]
fn a_lost_update_is_found() {
    let if_a = |span, value| put_if(span, value, KeyCondition::Is(A), KeyOutcome::Done);
    accepted(&[put([1, 2], A), if_a([3, 6], B), found("GET", [7, 8], B)]);
    refused(&[put([1, 2], A), if_a([3, 6], B), if_a([4, 5], C)], 1);
}

#[test]
fn a_lost_acknowledged_write_is_found() {
    accepted(&[put([1, 4], A), absent("GET", [2, 3]), found("GET", [5, 6], A)]);
    refused(&[put([1, 4], A), absent("GET", [2, 3]), absent("GET", [5, 6])], 2);
}

#[test]
fn a_resurrected_delete_is_found() {
    accepted(&[put([1, 2], A), delete([3, 6]), found("GET", [4, 5], A), absent("GET", [7, 8])]);
    refused(&[put([1, 2], A), delete([3, 6]), absent("GET", [4, 5]), found("GET", [7, 8], A)], 3);
}

#[test]
fn two_winners_of_if_none_match_are_found() {
    let if_absent = |span, value, outcome| put_if(span, value, KeyCondition::IsAbsent, outcome);
    let first = if_absent([1, 4], A, KeyOutcome::Done);
    accepted(&[first, if_absent([2, 3], B, KeyOutcome::Refused), found("GET", [5, 6], A)]);
    accepted(&[first, delete([5, 6]), if_absent([7, 8], B, KeyOutcome::Done)]);
    refused(&[first, if_absent([2, 3], B, KeyOutcome::Done)], 0);
    // The loser of a race without a winner.
    refused(&[if_absent([1, 2], A, KeyOutcome::Refused)], 0);
}

#[test]
fn a_read_of_a_value_never_written_is_found() {
    accepted(&[put([1, 2], A), found("GET", [3, 4], A)]);
    refused(&[put([1, 2], A), found("GET", [3, 4], C)], 1);
}

#[test]
fn a_read_of_a_value_before_its_write_began_is_found() {
    accepted(&[found("GET", [1, 3], A), put([2, 4], A)]);
    refused(&[found("GET", [1, 2], A), put([3, 4], A)], 0);
}

#[test]
fn a_head_that_disagrees_with_a_get_is_found() {
    let writes = [put([1, 2], A), put([3, 8], B)];
    accepted(&[&writes[..], &[found("HEAD", [4, 5], A), found("GET", [6, 7], B)]].concat());
    refused(&[&writes[..], &[found("GET", [4, 5], B), found("HEAD", [6, 7], A)]].concat(), 3);
}

#[test]
fn a_list_without_an_acknowledged_key_is_found() {
    accepted(&[put([1, 4], A), absent("LIST", [2, 3]), found("LIST", [5, 6], A)]);
    refused(&[put([1, 4], A), found("GET", [2, 3], A), absent("LIST", [5, 6])], 2);
}

#[test]
fn a_list_with_a_deleted_key_is_found() {
    accepted(&[put([1, 2], A), delete([3, 6]), found("LIST", [4, 5], A), absent("LIST", [7, 8])]);
    refused(&[put([1, 2], A), delete([3, 4]), found("LIST", [5, 6], A)], 2);
}

#[test]
fn an_unknown_outcome_that_is_used_twice_is_found() {
    let writes = [put([1, 2], A), unknown(put([3, 4], B))];
    let late = [found("GET", [5, 6], A), put([7, 8], C), found("GET", [9, 10], B)];
    accepted(&[&writes[..], &late].concat());
    let twice = [found("GET", [5, 6], B), put([7, 8], C), found("GET", [9, 10], B)];
    refused(&[&writes[..], &twice].concat(), 4);
    // The same for a delete.
    let deleted = [put([1, 2], A), unknown(delete([3, 4])), absent("GET", [5, 6]), put([7, 8], B)];
    accepted(&[&deleted[..], &[found("GET", [9, 10], B)]].concat());
    refused(&[&deleted[..], &[absent("GET", [9, 10])]].concat(), 4);
}

#[test]
fn a_change_of_unknown_outcome_happens_once_at_any_time_or_never() {
    let lost = unknown(put([3, 4], B));
    accepted(&[put([1, 2], A), lost, found("GET", [5, 6], A), found("GET", [7, 8], A)]);
    accepted(&[put([1, 2], A), lost, found("GET", [5, 6], A), found("GET", [7, 8], B)]);
    refused(&[put([1, 2], A), lost, found("GET", [5, 6], B), found("GET", [7, 8], A)], 3);
    let [first, second] = [unknown(delete([3, 4])), unknown(delete([5, 6]))];
    let between = [absent("GET", [7, 8]), put([9, 10], B), absent("HEAD", [11, 12])];
    accepted(&[&[put([1, 2], A), first, second][..], &between].concat());
    // A condition holds for it too.
    let if_c = unknown(put_if([3, 4], B, KeyCondition::Is(C), KeyOutcome::Done));
    refused(&[put([1, 2], A), if_c, found("GET", [5, 6], B)], 2);
    accepted(&[put([1, 2], A), if_c, put([5, 6], C), found("GET", [7, 8], B)]);
}

#[test]
fn a_copy_reads_its_source_under_its_condition() {
    let source = |span, outcome| operation("COPY from", span, KeyAction::Read(KeyCondition::Is(A)), outcome);
    accepted(&[put([1, 2], A), put([3, 6], B), source([4, 5], KeyOutcome::Present(A))]);
    accepted(&[put([1, 2], A), put([3, 6], B), source([4, 5], KeyOutcome::Refused)]);
    refused(&[put([1, 2], A), source([3, 4], KeyOutcome::Refused)], 1);
    refused(&[put([1, 2], A), source([3, 4], KeyOutcome::Absent)], 1);
}

#[test]
fn the_shortest_violation_has_only_operations_that_are_needed() {
    let mut operations = vec![put([1, 2], A), found("GET", [3, 4], A), unknown(put([5, 6], C))];
    operations.extend([found("HEAD", [7, 8], A), put([9, 10], B), found("LIST", [11, 12], B)]);
    operations.extend([found("GET", [13, 14], A), delete([15, 16]), absent("GET", [17, 18])]);
    let shortest = shortest_violation(&operations);
    assert_eq!(shortest, [put([1, 2], A), put([9, 10], B), found("GET", [13, 14], A)]);
    let line = shortest[2].to_string();
    assert_eq!(line, "   0.0130 to    0.0140 s  client  1, node 2: GET -> a");
}

#[test]
fn a_history_that_is_too_long_gets_no_verdict() {
    let reads = |count: usize| -> Vec<KeyOperation> {
        (0..count as u64).map(|at| absent("GET", [2 * at, 2 * at + 1])).collect()
    };
    accepted(&reads(OPERATIONS_MAX));
    let verdict = check(&reads(OPERATIONS_MAX + 1));
    assert_eq!(verdict, Err(NotLinearizable::TooLong(OPERATIONS_MAX + 1)));
}

#[test]
fn many_changes_of_unknown_outcome_are_decided() {
    let value = |at: u64| ValueId(100 + at);
    let lost =
        |at: u64| unknown(if at.is_multiple_of(3) { delete([at, 0]) } else { put([at, 0], value(at)) });
    let mut operations: Vec<KeyOperation> = (1..120).map(lost).collect();
    let written = |at: u64| put([200 + 4 * at, 201 + 4 * at], value(1000 + at));
    let read = |at: u64| found("GET", [202 + 4 * at, 203 + 4 * at], value(1000 + at));
    operations.extend((0..40).flat_map(|at| [written(at), read(at)]));
    operations.push(found("GET", [900, 901], value(7)));
    accepted(&operations);
    operations.push(found("GET", [902, 903], value(1038)));
    assert_eq!(check(&operations), Err(NotLinearizable::Violation(operations.len() - 1)));
}
