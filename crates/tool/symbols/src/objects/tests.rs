//! Descriptions of the memory of test programs, compiled in several ways. The programs print the
//! expected addresses and sizes.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `program` | builds and starts the test program |
//! | `blocks`, `types`, `variables`, `classes` | heap blocks; types; variables; class members |
//! | `hostile` | corrupted ELF files |

mod blocks;
mod classes;
mod hostile;
mod program;
mod types;
mod variables;

use super::*;

#[test]
fn objects_can_move_to_another_thread() {
    fn check<T: Send>() {}
    check::<Objects>();
}

#[test]
fn opening_an_ended_process_fails() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    assert!(Objects::open(pid).is_err());
}

#[test]
fn this_process_can_describe_itself() {
    static TABLE: [u64; 100] = [1; 100];
    let mut objects = Objects::open(std::process::id()).unwrap();
    let info = objects.describe(std::ptr::from_ref(&TABLE[7]).addr() as u64, 64);
    assert_eq!(info.kind, AddressKind::Global, "{info:?}");
    assert_eq!(objects.describe(16, 64).kind, AddressKind::Nothing);
    let vdso = objects.maps.0.iter().find(|mapping| mapping.name == "[vdso]").map(|mapping| mapping.start);
    if let Some(vdso) = vdso {
        assert_eq!(
            (objects.describe(vdso, 64).kind, objects.describe(vdso, 64).name.as_str()),
            (AddressKind::Mapping, "[vdso]")
        );
    }
}
