//! Tests of the limits of clients and connections, and of the order in which requests wait.

use super::{RequestMemory, blocks_of};
use crate::ResourceShortage;
use bytes::Bytes;
use mlgw_common::limits::{ACTIVE_CONNECTION_BYTES, BLOCK_BYTES, RESERVED_BLOCKS_MAX, SMALL_BODY_BYTES};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// 64 MiB: 768 blocks for bodies, 512 slots for connections.
const BYTES: u64 = 64 << 20;
const BLOCKS: usize = 768;
const PLACES: usize = 512;

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

fn half_each() -> RequestMemory {
    RequestMemory::new(BYTES, 50, None)
}

#[test]
fn one_client_reserves_its_part_and_leaves_the_rest_to_others() {
    let memory = half_each();
    let greedy: Vec<_> = (0..20).map(|_| memory.account(address(1))).collect();
    let held: Vec<_> = greedy.iter().filter_map(|connection| connection.try_reserve(64)).collect();
    assert_eq!(held.len() * 64, BLOCKS / 2, "half of it, over all of its connections");
    let modest = memory.account(address(2));
    assert!(modest.try_reserve(RESERVED_BLOCKS_MAX).is_some(), "another client can reserve enough");
    drop(held);
    assert!(greedy[0].try_reserve(64).is_some(), "released memory can be reserved again");
}

#[tokio::test]
async fn a_proxy_has_no_part_of_its_own_and_its_clients_have_theirs() {
    let memory = half_each();
    let mut active = Vec::new();
    for _ in 0..PLACES {
        active.push(memory.proxy_account(address(1)).activate().await.unwrap());
    }
    let greedy: Vec<_> = (0..20).map(|_| memory.account(address(2))).collect();
    let held: Vec<_> = greedy.iter().filter_map(|request| request.try_reserve(64)).collect();
    assert_eq!(held.len() * 64, BLOCKS / 2, "a client has half of it, over all of its requests");
    assert!(memory.account(address(1)).try_reserve(64).is_some(), "the address of the proxy has its part");
}

#[test]
fn one_connection_reserves_less_than_the_limit_of_its_client() {
    let memory = RequestMemory::new(1 << 30, 50, None);
    let connection = memory.account(address(1));
    let held: Vec<_> = std::iter::from_fn(|| connection.try_reserve(16)).collect();
    let all = (3 << 30) / 4 / BLOCK_BYTES as usize;
    assert_eq!(held.len() * 16, all / 8);
    assert!(memory.account(address(1)).try_reserve(16).is_some(), "the next connection has its own share");
}

#[tokio::test]
async fn bodies_never_take_the_slots_of_connections() {
    let memory = RequestMemory::new(BYTES, 100, None);
    let bodies: Vec<_> = (0..BLOCKS).map_while(|_| memory.account(address(1)).try_reserve(1)).collect();
    assert_eq!(bodies.len(), BLOCKS);
    assert_eq!(PLACES as u64, BYTES / 4 / ACTIVE_CONNECTION_BYTES);
    assert!(memory.account(address(1)).activate().await.is_ok());
}

#[tokio::test]
async fn a_request_without_memory_waits_and_then_fails_with_a_shortage() {
    let memory = RequestMemory::waiting_for(Duration::ZERO, BYTES, 100, None);
    let holders: Vec<_> = (0..BLOCKS).map_while(|_| memory.account(address(1)).try_reserve(1)).collect();
    let refused = memory.account(address(2)).reserve(1).await.err();
    assert_eq!(refused, Some(ResourceShortage::Memory));
    drop(holders);
    let memory = RequestMemory::new(BYTES, 100, None);
    let holders: Vec<_> = (0..BLOCKS).map_while(|_| memory.account(address(1)).try_reserve(1)).collect();
    let late = memory.account(address(2));
    let waits = tokio::spawn(async move { late.reserve(1).await.is_ok() });
    tokio::task::yield_now().await;
    drop(holders);
    assert!(waits.await.unwrap(), "it is served after the others release memory");
}

#[tokio::test]
async fn when_half_of_the_blocks_is_taken_requests_get_fewer() {
    let memory = RequestMemory::new(BYTES, 100, None);
    let connections: Vec<_> = (0..200).map(|_| memory.account(address(1))).collect();
    let mut held = Vec::new();
    for connection in &connections {
        held.push(connection.reserve_some(8, 2).await.unwrap());
    }
    let many = held.iter().filter(|held| held.blocks() == 8).count();
    assert_eq!(many * 8, BLOCKS / 2);
    assert!(held[many..].iter().all(|held| held.blocks() == 2));
}

#[tokio::test]
async fn the_memory_is_short_while_connections_wait_for_a_slot() {
    let memory = RequestMemory::new(BYTES, 100, None);
    let mut awake = Vec::new();
    for _ in 0..PLACES {
        awake.push(memory.account(address(1)).activate().await.unwrap());
    }
    assert!(!memory.is_short());
    let late = memory.account(address(2));
    let waits = tokio::spawn(async move { late.activate().await.is_ok() });
    tokio::task::yield_now().await;
    assert!(memory.is_short());
    awake.pop();
    assert!(waits.await.unwrap());
    assert!(!memory.is_short());
}

#[test]
fn memory_is_reserved_until_the_last_slice_of_the_bytes_is_dropped() {
    let memory = RequestMemory::new(BYTES, 100, None);
    let account = memory.account(address(1));
    let mut bytes = Arc::new(account.try_reserve(96).unwrap()).attached_to(Bytes::from(vec![7; 100]));
    let tail = bytes.split_off(50);
    drop(bytes);
    assert!(
        account.try_reserve(RESERVED_BLOCKS_MAX).is_none(),
        "a connection may hold {RESERVED_BLOCKS_MAX}"
    );
    assert_eq!(tail, vec![7; 50]);
    drop(tail);
    assert!(account.try_reserve(RESERVED_BLOCKS_MAX).is_some());
}

#[test]
fn small_answers_need_no_memory_and_large_ones_are_refused_without_it() {
    let memory = RequestMemory::new(BYTES, 100, None);
    let account = memory.account(address(1));
    let _all = std::iter::from_fn(|| account.try_reserve(1)).collect::<Vec<_>>();
    assert!(account.cover(Bytes::from(vec![0; SMALL_BODY_BYTES])).is_ok());
    let refused = account.cover(Bytes::from(vec![0; SMALL_BODY_BYTES + 1])).err();
    assert_eq!(refused, Some(ResourceShortage::Memory));
}

#[test]
fn the_smallest_memory_fits_the_largest_document() {
    for percent in [1, 50, 100] {
        let account = RequestMemory::new(0, percent, None).account(address(1));
        assert!(account.try_reserve(RESERVED_BLOCKS_MAX).is_some(), "{percent} %");
    }
    assert_eq!(blocks_of(1), 1);
    assert_eq!(blocks_of(BLOCK_BYTES + 1), 2);
}

#[test]
fn clients_without_connections_are_removed() {
    let memory = half_each();
    let accounts: Vec<_> = (1..=9).map(|last| memory.account(address(last))).collect();
    assert_eq!(memory.0.clients.lock().len(), 9);
    drop(accounts);
    assert_eq!(memory.0.clients.lock().len(), 0);
}

#[tokio::test]
async fn incomplete_forms_of_one_address_leave_most_of_its_slots_to_its_signed_requests() {
    let memory = half_each();
    // The reservations of an address are kept while it has connections.
    let (mut forms, mut refused, mut connections) = (Vec::new(), 0, Vec::new());
    for _ in 0..PLACES {
        connections.push(memory.account(address(1)));
        let account = &connections[connections.len() - 1];
        match account.reserve_form() {
            Ok(form) => forms.push((account.activate().await.unwrap(), form)),
            Err(error) => {
                assert_eq!(error, ResourceShortage::Memory);
                refused += 1;
            }
        }
    }
    assert_eq!((forms.len(), refused), (PLACES / 2 / 4, PLACES - PLACES / 2 / 4));
    let mut signed = Vec::new();
    for _ in 0..PLACES / 2 - forms.len() {
        signed.push(memory.account(address(1)).activate().await.unwrap());
    }
    assert!(!memory.is_short(), "no request of the same address had to wait");
    assert!(memory.account(address(1)).try_reserve(RESERVED_BLOCKS_MAX).is_some(), "nor for memory");
    assert!(memory.account(address(2)).reserve_form().is_ok(), "another address has forms of its own");
    drop(forms);
    assert!(memory.account(address(1)).reserve_form().is_ok());
}

#[test]
fn incomplete_requests_of_all_addresses_take_at_most_a_quarter_of_the_slots() {
    let memory = half_each();
    let turns = (1..=9).flat_map(|last| {
        let memory = memory.clone();
        (0..PLACES).map_while(move |_| memory.account(address(last)).unverified_slot().ok())
    });
    assert_eq!(turns.collect::<Vec<_>>().len(), PLACES / 4);
}
