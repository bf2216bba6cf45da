//! Variables of programs with debug info, with symbols alone, and without both.

use fieldstone_sharing::{Member, ObjectLayout};

use super::super::{AddressInfo, AddressKind, Objects};
use super::program::{TestProgram, compilers};

const OPTIONS: [&str; 5] = ["-O0", "-O2", "-O0 -no-pie", "-O2 -static", "-O2 -gdwarf-4"];

/// The description of a variable, which is the same for each of its bytes.
fn description(running: &TestProgram, objects: &mut Objects, name: &str) -> AddressInfo {
    let (start, bytes) = running.reported(name);
    let info = objects.describe(start, 1);
    for at in 1..bytes {
        let other = objects.describe(start + at, 1);
        assert_eq!((&other.name, other.offset), (&info.name, info.offset + at), "{name}+{at}");
    }
    info
}

fn declarations(object: &ObjectLayout) -> Vec<(&str, &str)> {
    object.members.iter().map(|member| (member.name.as_str(), member.declaration.as_str())).collect()
}

#[test]
fn debug_info_gives_members() {
    for compiler in compilers() {
        for options in OPTIONS {
            let Some(running) = TestProgram::start(compiler, &format!("-g {options}"), &[]) else { continue };
            let mut objects = running.objects();
            slots(&running, &mut objects);
            simple(&running, &mut objects);
            line(&running, &mut objects, true);
            locals(&running, &mut objects, "own_count");
        }
    }
}

/// The array of structures: each member has the offset that the compiler chose.
fn slots(running: &TestProgram, objects: &mut Objects) {
    let found = description(running, objects, "slots");
    let (start, bytes) = running.reported("slots");
    assert_eq!(
        (found.kind, found.name.as_str(), found.range.clone()),
        (AddressKind::Global, "slots", start..start + bytes)
    );
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
    let declared: Vec<(String, String)> = declarations(&object)
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.replace("long int", "long").replace("short int", "short")))
        .collect();
    assert_eq!(declared.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>(), expected);
    for Member { name, offset, bytes, .. } in &object.members {
        let [first, ..] = name.split(['.', ',']).collect::<Vec<_>>()[..] else { panic!("{name}") };
        match running.all(&format!("struct slot.{first}")).first() {
            Some(&reported) if first == "at" => assert_eq!((offset & !7, *bytes), (reported.0, reported.1 / 2)),
            Some(&reported) => assert_eq!((*offset, *bytes), reported, "{name}"),
            None => assert_eq!((name.as_str(), *bytes), ("low, high", 1)),
        }
    }
    let alignments: Vec<u64> = object.members.iter().map(|member| member.alignment).collect();
    assert_eq!(alignments, [8, 4, 4, 0, 1, 8, 8, 8, 2, 2, 8, 8], "bit fields have none");
    let (behind, _) = running.reported("tight");
    assert_ne!(objects.describe(start + bytes, 64).name, "slots", "{behind:#x}");
}

fn simple(running: &TestProgram, objects: &mut Objects) {
    // Name, offset and alignment of the type. Debug info does not show that the structure is
    // packed.
    let object = description(running, objects, "tight").object.unwrap();
    let values =
        |member: &Member| (member.name.clone(), member.offset, member.alignment, member.crosses(object.address, 64));
    let expected =
        [("before", 0, 1, false), ("first", 60, 8, true), ("second.x", 68, 4, false), ("second.y", 72, 4, false)];
    let expected = expected.map(|(name, offset, alignment, crosses)| (name.to_owned(), offset, alignment, crosses));
    assert_eq!(object.members.iter().map(values).collect::<Vec<_>>(), expected);
    let object = description(running, objects, "together").object.unwrap();
    assert_eq!((object.name.as_str(), object.elements, object.stride), ("partial", 1, 16), "a typedef's name");
    let object = description(running, objects, "table").object.unwrap();
    assert_eq!((object.name.as_str(), object.elements, object.stride), ("table", 16, 8));
    assert_eq!(object.members.len(), 1, "{object:?}");
    assert!(object.members[0].declaration.starts_with("long") && object.members[0].declaration.ends_with(" value"));
    assert_eq!(description(running, objects, "calls").name, "calls", "a static of a function");
    if !running.all("shared_table").is_empty() {
        let found = description(running, objects, "shared_table");
        assert_eq!((found.name.as_str(), found.module.as_deref()), ("shared_table", Some("libshared.so")));
        let object = found.object.unwrap();
        assert_eq!((object.name.as_str(), object.elements, object.stride), ("pair", 5, 8));
        assert_eq!(declarations(&object), [("left", "int left"), ("right", "int right")]);
    }
}

/// Three variables on one cache line are one object, for a query of any of them.
fn line(running: &TestProgram, objects: &mut Objects, declared: bool) {
    let start = ["counter", "flag", "corner"].map(|name| running.reported(name).0).into_iter().min().unwrap();
    for name in ["counter", "flag", "corner"] {
        let found = objects.describe(running.reported(name).0, 64);
        assert_eq!(found.name, name);
        let object = found.object.unwrap();
        object.check().unwrap();
        assert_eq!((object.address, object.elements), (start, 1), "{object:?}");
        for member in ["counter", "flag", "corner"] {
            let (at, bytes) = running.reported(member);
            let found = object.members.iter().find(|found| found.name == member).unwrap();
            assert_eq!((found.offset, found.bytes), (at - start, bytes), "{object:?}");
            assert_ne!(found.declaration.is_empty(), declared, "{found:?}");
        }
        assert_eq!(objects.describe(running.reported("counter").0, 1).object.unwrap().name, "counter", "alone");
    }
}

/// The thread-local variables of each thread.
fn locals(running: &TestProgram, objects: &mut Objects, name: &str) {
    for reported in ["main_own_count", "own_count"] {
        for (start, bytes) in running.all(reported) {
            let found = objects.describe(start, 64);
            assert_eq!((found.kind, found.name.as_str()), (AddressKind::ThreadLocal, name), "{reported}: {found:?}");
            assert_eq!((found.range, found.offset), (start..start + bytes, 0));
        }
    }
    assert_eq!(objects.describe(running.reported("own_place").0 + 4, 64).kind, AddressKind::ThreadLocal);
}

#[test]
fn symbols_give_names_and_sizes() {
    for options in ["-O0", "-O2 -no-pie", "-O2 -static"] {
        let Some(running) = TestProgram::start("cc", options, &[]) else { continue };
        let mut objects = running.objects();
        for name in ["slots", "together", "table"] {
            let found = description(&running, &mut objects, name);
            let (start, bytes) = running.reported(name);
            let object = found.object.unwrap();
            assert_eq!((found.name.as_str(), found.range, object.members), (name, start..start + bytes, vec![]));
        }
        line(&running, &mut objects, false);
        locals(&running, &mut objects, "own_count");
    }
}

#[test]
fn without_symbols_the_name_is_the_address_in_the_file() {
    for options in ["-O0", "-O2 -no-pie", "-O2 -static"] {
        let Some(with) = TestProgram::start("cc", options, &[]) else { continue };
        let Some(running) = TestProgram::start("cc", &format!("{options} -s"), &[]) else { continue };
        let listing = std::process::Command::new("nm").arg(with.file()).output().unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        let symbol = |name: &str| {
            let line = listing.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        let mut objects = running.objects();
        for name in ["slots", "table"] {
            let found = objects.describe(running.reported(name).0 + 8, 64);
            assert_eq!((found.kind, found.object.is_none()), (AddressKind::Global, true), "{found:?}");
            assert_eq!(found.name, format!("program+{:#x}", symbol(name) + 8), "{options}");
        }
        if let Some(&(start, _)) = running.all("shared_table").first() {
            assert_eq!(objects.describe(start + 8, 64).name, "shared_table", "a library keeps its exported symbols");
        }
        let found = objects.describe(running.reported("main_own_count").0, 64);
        assert_eq!(found.kind, AddressKind::ThreadLocal, "{found:?}");
    }
}
