//! Pages in an object store: in memory, through the interface that all object stores have.

use std::time::Duration;

use fieldstone_paging::{Objects, Paged, Store, StoreError};
use opendal::{Operator, services};

use crate::fixture::{MIB, PAGE, build, pass_through_store};

/// The number of objects.
fn count(operator: &Operator) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let all = runtime.block_on(async { operator.list_with("").recursive(true).await }).unwrap();
    all.iter().filter(|entry| entry.metadata().is_file()).count()
}

#[test]
fn pages_come_back_from_objects_which_are_deleted_at_the_end() {
    let operator = Operator::new(services::Memory::default()).unwrap();
    let store = Objects::open(operator.clone(), Duration::from_secs(5)).unwrap();
    assert_eq!(count(&operator), 0, "nothing is left of the first check");
    let Some(memory) = build(Paged::builder(8 * MIB).resident(MIB).store(store)) else { return };
    pass_through_store(&memory, "opendal");
    assert!(count(&operator) > 1000);
    drop(memory);
    assert_eq!(count(&operator), 0);
}

#[test]
fn objects_that_are_gone_or_changed_are_errors() {
    let operator = Operator::new(services::Memory::default()).unwrap();
    let store = Objects::open(operator.clone(), Duration::from_secs(1)).unwrap();
    let (mut keys, mut pages) = ([0; 2], [[0; PAGE]; 2]);
    assert_eq!(store.put(&[&[1; PAGE], &[2; PAGE]], &mut keys), Ok(2));
    assert_eq!(store.get(&keys, &mut pages), Ok(()));
    assert!(pages == [[1; PAGE], [2; PAGE]]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let entries = runtime.block_on(async { operator.list_with("").recursive(true).await }).unwrap();
    let named = |key: u32| entries.iter().find(|entry| entry.path().ends_with(&format!("/{key}"))).unwrap().path();
    runtime.block_on(async { operator.write(named(keys[0]), "short").await }).unwrap();
    assert_eq!(store.get(&keys[..1], &mut pages[..1]), Err(StoreError::Damaged));
    runtime.block_on(async { operator.delete(named(keys[1])).await }).unwrap();
    assert_eq!(store.get(&keys[1..], &mut pages[..1]), Err(StoreError::Failed(libc::ENODATA)));
}
