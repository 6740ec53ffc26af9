//! The rules of promises, one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{ExpectedBody, History, HistoryItem, ItemValue, NOW};
use crate::content::TestContent;

fn value(id: u64) -> ItemValue {
    ItemValue::Present(Some(ExpectedBody::plain(TestContent { id, length: 20 })))
}

fn key() -> HistoryItem {
    HistoryItem::Object("k".to_owned())
}

fn history() -> History {
    History::new(Box::new(|| 0))
}

#[test]
fn an_acknowledged_operation_replaces_the_previous_value() {
    let history = history();
    history.acknowledge(history.send(key(), value(1)));
    history.acknowledge(history.send(key(), value(2)));
    assert_eq!(history.allowed(&key(), NOW), [value(2)]);
    history.acknowledge(history.send(key(), ItemValue::Absent));
    assert_eq!(history.allowed(&key(), NOW), [ItemValue::Absent]);
}

#[test]
fn an_operation_without_a_response_may_or_may_not_have_taken_effect() {
    let history = history();
    history.send(key(), value(1));
    assert_eq!(history.allowed(&key(), NOW), [ItemValue::Absent, value(1)]);
    history.acknowledge(history.send(key(), value(2)));
    assert_eq!(history.allowed(&key(), NOW), [value(1), value(2)]);
}

#[test]
fn overlapping_operations_take_effect_in_either_order() {
    let history = history();
    let first = history.send(key(), value(1));
    let second = history.send(key(), value(2));
    history.acknowledge(first);
    history.acknowledge(second);
    assert_eq!(history.allowed(&key(), NOW), [value(1), value(2)]);
}

#[test]
fn a_cut_allows_only_values_promised_by_its_position() {
    let position = Arc::new(AtomicUsize::new(0));
    let clock = position.clone();
    let history = History::new(Box::new(move || clock.load(Ordering::SeqCst)));
    let first = history.send(key(), value(1));
    position.store(10, Ordering::SeqCst);
    history.acknowledge(first);
    let second = history.send(key(), value(2));
    position.store(20, Ordering::SeqCst);
    history.acknowledge(second);
    assert_eq!(history.allowed(&key(), 0), [ItemValue::Absent]);
    assert_eq!(history.allowed(&key(), 9), [ItemValue::Absent, value(1)]);
    assert_eq!(history.allowed(&key(), 10), [value(1)]);
    assert_eq!(history.allowed(&key(), 11), [value(1), value(2)]);
    assert_eq!(history.allowed(&key(), 20), [value(2)]);
}

#[test]
fn values_found_after_a_crash_replace_the_history() {
    let history = history();
    history.send(key(), value(1));
    history.reset_to([(key(), value(1))]);
    assert_eq!(history.allowed(&key(), NOW), [value(1)]);
    history.reset_to([(key(), ItemValue::Absent)]);
    assert_eq!(history.allowed(&key(), NOW), [ItemValue::Absent]);
}

#[test]
fn a_complete_is_contested_only_by_operations_that_may_have_come_after_it() {
    let history = history();
    let upload = HistoryItem::Upload { key: "k".to_owned(), id: "u".to_owned() };
    history.acknowledge(history.send(key(), value(1)));
    history.send_complete(upload, key(), value(2));
    assert!(!history.completes(NOW)[0].contested);
    history.send(key(), ItemValue::Absent);
    assert!(history.completes(NOW)[0].contested);
}

#[test]
fn a_value_shown_by_a_restarted_server_is_promised_from_then_on() {
    let position = Arc::new(AtomicUsize::new(0));
    let clock = position.clone();
    let history = History::new(Box::new(move || clock.load(Ordering::SeqCst)));
    history.send(key(), value(1));
    history.send(key(), value(2));
    position.store(10, Ordering::SeqCst);
    history.observe(&[(key(), value(1))].into());
    assert_eq!(history.allowed(&key(), 9), [ItemValue::Absent, value(1), value(2)]);
    assert_eq!(history.allowed(&key(), 10), [value(1)]);
}

#[test]
fn a_history_after_a_cut_keeps_promises_made_before_it_and_none_made_later() {
    let position = Arc::new(AtomicUsize::new(0));
    let clock = position.clone();
    let history = History::new(Box::new(move || clock.load(Ordering::SeqCst)));
    history.acknowledge(history.send(key(), value(1)));
    position.store(5, Ordering::SeqCst);
    history.send(key(), value(2));
    position.store(10, Ordering::SeqCst);
    history.acknowledge(history.send(key(), value(3)));
    let after = history.after_cut(7, Box::new(|| 100));
    assert_eq!(after.allowed(&key(), 1), [value(1), value(2)]);
    assert_eq!(after.allowed(&key(), NOW), [value(1), value(2)]);
    after.observe(&[(key(), value(1))].into());
    assert_eq!(after.allowed(&key(), NOW), [value(1)]);
    assert_eq!(after.allowed(&key(), 99), [value(1), value(2)]);
}
