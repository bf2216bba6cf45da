//! The library as its users write it: the lines of the interface, each with what it needs.

#![cfg(feature = "std")]

use std::alloc::Layout;
use std::error::Error;
use std::fmt;

use fieldstone_guard::{Bump, Finding, Kind, Slots};

struct Cell<'a> {
    head: u64,
    tail: Option<&'a Cell<'a>>,
}

#[derive(Debug)]
struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory limit is reached")
    }
}

impl Error for Full {}

struct Node {
    _key: u64,
    _children: [Option<Box<Self>>; 2],
}

#[test]
fn a_heap_without_a_limit_check_grows() -> Result<(), Box<dyn Error>> {
    let young = Bump::builder(1 << 20).on_full(|heap| heap.grow(1 << 20)).build()?;
    let mut tail = None;
    for head in 0..100_000 {
        let cell = young.alloc(Cell { head, tail })?;
        tail = Some(&*cell);
    }
    let list = std::iter::successors(tail, |cell| cell.tail);
    assert!(list.map(|cell| cell.head).eq((0..100_000).rev()));
    assert_eq!(young.bytes(), 2 << 20);
    Ok(())
}

#[test]
fn an_address_past_an_object_is_explained() -> Result<(), Box<dyn Error>> {
    let guards = Slots::builder().memory(64 << 20).build()?;
    let object = guards.alloc(Layout::new::<Node>()).ok_or(Full)?;
    let address = object.as_ptr().addr() + size_of::<Node>();
    let finding: Option<Finding> = guards.explain(address);
    let finding = finding.ok_or("the first byte past the end is explained")?;
    assert_eq!((finding.kind, finding.offset), (Kind::HeapBufferOverflow, 0));
    assert!(guards.stats().to_string().lines().count() > 5, "one line for each field");
    Ok(())
}

#[test]
fn slots_serve_several_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Slots>();
}
