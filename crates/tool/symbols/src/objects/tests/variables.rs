//! Variables: with debug information, with symbols alone, with nothing.

use fieldstone_sharing::{Member, Object};

use super::super::{Kind, Objects, Place};
use super::program::{Running, compilers};

const WAYS: [&str; 5] = ["-O0", "-O2", "-O0 -no-pie", "-O2 -static", "-O2 -gdwarf-4"];

/// The place of each byte of what the program called so, which has to be one.
fn place(running: &Running, objects: &mut Objects, name: &str) -> Place {
    let (start, bytes) = running.said(name);
    let place = objects.at(start, 1);
    for at in 1..bytes {
        let other = objects.at(start + at, 1);
        assert_eq!((&other.name, other.offset), (&place.name, place.offset + at), "{name}+{at}");
    }
    place
}

fn declarations(object: &Object) -> Vec<(&str, &str)> {
    object.members.iter().map(|member| (member.name.as_str(), member.declaration.as_str())).collect()
}

#[test]
fn debug_information_tells_members() {
    for compiler in compilers() {
        for way in WAYS {
            let Some(running) = Running::start(compiler, &format!("-g {way}"), &[]) else { continue };
            let mut objects = running.objects();
            slots(&running, &mut objects);
            simple(&running, &mut objects);
            line(&running, &mut objects, true);
            locals(&running, &mut objects, "own_count");
        }
    }
}

/// The array of structures: each member where the compiler put it.
fn slots(running: &Running, objects: &mut Objects) {
    let found = place(running, objects, "slots");
    let (start, bytes) = running.said("slots");
    assert_eq!((found.kind, found.name.as_str(), found.range.clone()), (Kind::Global, "slots", start..start + bytes));
    assert_eq!(found.module.as_deref(), Some("program"));
    let object = found.object.unwrap();
    assert_eq!((object.name.as_str(), object.address, object.elements), ("slot", start, 4));
    assert_eq!((object.stride, object.on_heap), (bytes / 4, false));
    let expected = [
        ("hits", "long hits"),
        ("at.x", "int at_x"),
        ("at.y", "int at_y"),
        ("low, high", ""),
        ("name", "char name[12]"),
        ("either", ""),
        ("call", "int (*call)()"),
        ("texts", "const char *const *texts"),
        ("first", "short first"),
        ("second", "short second"),
        ("counts", "volatile uint64_t counts[2][3]"),
        ("next", "struct slot *next"),
    ];
    let told: Vec<(String, String)> = declarations(&object)
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.replace("long int", "long").replace("short int", "short")))
        .collect();
    assert_eq!(told.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>(), expected);
    for Member { name, offset, bytes, .. } in &object.members {
        let [first, ..] = name.split(['.', ',']).collect::<Vec<_>>()[..] else { panic!("{name}") };
        match running.all(&format!("struct slot.{first}")).first() {
            Some(&said) if first == "at" => assert_eq!((offset & !7, *bytes), (said.0, said.1 / 2)),
            Some(&said) => assert_eq!((*offset, *bytes), said, "{name}"),
            None => assert_eq!((name.as_str(), *bytes), ("low, high", 1)),
        }
    }
    let alignments: Vec<u64> = object.members.iter().map(|member| member.alignment).collect();
    assert_eq!(alignments, [8, 4, 4, 0, 1, 8, 8, 8, 2, 2, 8, 8], "bits have none");
    let (behind, _) = running.said("tight");
    assert_ne!(objects.at(start + bytes, 64).name, "slots", "{behind:#x}");
}

fn simple(running: &Running, objects: &mut Objects) {
    // A member of each kind, its offset, and what its type asks for: nothing says that the structure is packed.
    let object = place(running, objects, "tight").object.unwrap();
    let told =
        |member: &Member| (member.name.clone(), member.offset, member.alignment, member.crosses(object.address, 64));
    let expected =
        [("before", 0, 1, false), ("first", 60, 8, true), ("second.x", 68, 4, false), ("second.y", 72, 4, false)];
    let expected = expected.map(|(name, offset, alignment, crosses)| (name.to_owned(), offset, alignment, crosses));
    assert_eq!(object.members.iter().map(told).collect::<Vec<_>>(), expected);
    let object = place(running, objects, "together").object.unwrap();
    assert_eq!((object.name.as_str(), object.elements, object.stride), ("partial", 1, 16), "a typedef's name");
    let object = place(running, objects, "table").object.unwrap();
    assert_eq!((object.name.as_str(), object.elements, object.stride), ("table", 16, 8));
    assert_eq!(object.members.len(), 1, "{object:?}");
    assert!(object.members[0].declaration.starts_with("long") && object.members[0].declaration.ends_with(" value"));
    assert_eq!(place(running, objects, "calls").name, "calls", "a static of a function");
    if !running.all("shared_table").is_empty() {
        let found = place(running, objects, "shared_table");
        assert_eq!((found.name.as_str(), found.module.as_deref()), ("shared_table", Some("libshared.so")));
        let object = found.object.unwrap();
        assert_eq!((object.name.as_str(), object.elements, object.stride), ("pair", 5, 8));
        assert_eq!(declarations(&object), [("left", "int left"), ("right", "int right")]);
    }
}

/// Three variables on one line are one object, whichever is asked for.
fn line(running: &Running, objects: &mut Objects, declared: bool) {
    let start = ["counter", "flag", "corner"].map(|name| running.said(name).0).into_iter().min().unwrap();
    for name in ["counter", "flag", "corner"] {
        let found = objects.at(running.said(name).0, 64);
        assert_eq!(found.name, name);
        let object = found.object.unwrap();
        object.check().unwrap();
        assert_eq!((object.address, object.elements), (start, 1), "{object:?}");
        for member in ["counter", "flag", "corner"] {
            let (at, bytes) = running.said(member);
            let told = object.members.iter().find(|told| told.name == member).unwrap();
            assert_eq!((told.offset, told.bytes), (at - start, bytes), "{object:?}");
            assert_ne!(told.declaration.is_empty(), declared, "{told:?}");
        }
        assert_eq!(objects.at(running.said("counter").0, 1).object.unwrap().name, "counter", "alone");
    }
}

/// What each thread has of its own.
fn locals(running: &Running, objects: &mut Objects, name: &str) {
    for said in ["main_own_count", "own_count"] {
        for (start, bytes) in running.all(said) {
            let found = objects.at(start, 64);
            assert_eq!((found.kind, found.name.as_str()), (Kind::ThreadLocal, name), "{said}: {found:?}");
            assert_eq!((found.range, found.offset), (start..start + bytes, 0));
        }
    }
    assert_eq!(objects.at(running.said("own_place").0 + 4, 64).kind, Kind::ThreadLocal);
}

#[test]
fn symbols_tell_names_and_sizes() {
    for way in ["-O0", "-O2 -no-pie", "-O2 -static"] {
        let Some(running) = Running::start("cc", way, &[]) else { continue };
        let mut objects = running.objects();
        for name in ["slots", "together", "table"] {
            let found = place(&running, &mut objects, name);
            let (start, bytes) = running.said(name);
            let object = found.object.unwrap();
            assert_eq!((found.name.as_str(), found.range, object.members), (name, start..start + bytes, vec![]));
        }
        line(&running, &mut objects, false);
        locals(&running, &mut objects, "own_count");
    }
}

#[test]
fn without_symbols_there_is_the_place_in_the_file() {
    for way in ["-O0", "-O2 -no-pie", "-O2 -static"] {
        let Some(with) = Running::start("cc", way, &[]) else { continue };
        let Some(running) = Running::start("cc", &format!("{way} -s"), &[]) else { continue };
        let listing = std::process::Command::new("nm").arg(with.file()).output().unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        let symbol = |name: &str| {
            let line = listing.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        let mut objects = running.objects();
        for name in ["slots", "table"] {
            let found = objects.at(running.said(name).0 + 8, 64);
            assert_eq!((found.kind, found.object.is_none()), (Kind::Global, true), "{found:?}");
            assert_eq!(found.name, format!("program+{:#x}", symbol(name) + 8), "{way}");
        }
        if let Some(&(start, _)) = running.all("shared_table").first() {
            assert_eq!(objects.at(start + 8, 64).name, "shared_table", "a library keeps what it gives to others");
        }
        let found = objects.at(running.said("main_own_count").0, 64);
        assert_eq!(found.kind, Kind::ThreadLocal, "{found:?}");
    }
}
