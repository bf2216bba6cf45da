//! Programs that say where their memory is, looked at from outside, in all the ways in which they can be built.

mod blocks;
mod classes;
mod hostile;
mod program;
mod types;
mod variables;

use super::*;

#[test]
fn who_asks_may_go_to_another_thread() {
    fn goes<T: Send>() {}
    goes::<Objects>();
}

#[test]
fn a_process_that_is_gone_is_told() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    assert!(Objects::of(pid).is_err());
}

#[test]
fn ours_is_a_process_too() {
    static TABLE: [u64; 100] = [1; 100];
    let mut objects = Objects::of(std::process::id()).unwrap();
    let place = objects.at(std::ptr::from_ref(&TABLE[7]).addr() as u64, 64);
    assert_eq!(place.kind, Kind::Global, "{place:?}");
    assert_eq!(objects.at(16, 64).kind, Kind::Nothing);
    let vdso = objects.maps.0.iter().find(|mapping| mapping.name == "[vdso]").map(|mapping| mapping.start);
    if let Some(vdso) = vdso {
        assert_eq!((objects.at(vdso, 64).kind, objects.at(vdso, 64).name.as_str()), (Kind::Mapping, "[vdso]"));
    }
}
