//! Tests of descriptions: parsing, and errors with the line or field.

use super::Mmu;
use crate::error::Error;
use crate::page::PageSize;

const SMALL: &str = r#"
name = "small"
source = "made up"
walkers = 1
l2_hit_cycles = 7
shared_last = true
data = [
    { arrays = [{ name = "L1", entries = 60, ways = 5, pages = ["4K"] }, { name = "L1 large", entries = 3, pages = ["2M", "1G"] }] },
    { arrays = [{ name = "L2", entries = 84, ways = 7, pages = ["4K", "2M"], pieces = ["1G"] }] },
]
instruction = [{ arrays = [{ name = "I", entries = 9, pages = ["4K", "2M", "1G"] }] }]
walk_caches = { pml4e = 0, pdpte = 2, pde = 5, pte_lines = 6 }
"#;

fn refused(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "{old}");
    let error = Mmu::from_toml(&SMALL.replacen(old, new, 1)).unwrap_err();
    assert!(matches!(error, Error::Mmu { .. } | Error::Text { .. }));
    error.to_string()
}

#[test]
fn a_description_is_read() {
    let machine = Mmu::from_toml(SMALL).unwrap();
    assert_eq!((machine.data.len(), machine.instruction_levels().len()), (2, 2));
    assert_eq!(machine.data[0].arrays[1].set_ways(), 3, "no ways: fully associative");
    assert_eq!(machine.data[1].arrays[0].holds(PageSize::Huge1g), Some(PageSize::Large2m));
    assert_eq!(machine.walk_caches.nested, 0);
}

#[test]
fn parse_errors_name_the_line() {
    assert!(refused("walkers = 1", "walkers = one").starts_with("line 4 "));
    assert!(refused("walkers = 1", "walkers = -1").starts_with("line 4 "));
    let unknown = refused("entries = 84", "entires = 84");
    assert!(unknown.contains("entires") && unknown.contains("line 9 "), "{unknown}");
    let size = refused(r#"pages = ["4K", "2M", "1G"]"#, r#"pages = ["4K", "3M"]"#);
    assert!(size.contains("3M") && size.contains("line 11 "), "{size}");
}

#[test]
fn inconsistent_descriptions_are_refused_with_field_and_remedy() {
    for (old, new, field, remedy) in [
        ("entries = 84, ways = 7", "entries = 84, ways = 8", "data[1].arrays[0].ways", "ways divide entries"),
        ("entries = 60", "entries = 0", "data[0].arrays[0].entries", "use 1 to"),
        ("ways = 5", "ways = 1", "data[0].arrays[0].ways", "2 ways or more"),
        ("entries = 9", "entries = 1", "instruction[0].arrays[0].entries", "2 entries or more"),
        ("entries = 3", "entries = 1", "data[0].arrays[1].entries", "2 entries or more"),
        ("entries = 84, ways = 7", "entries = 84, ways = 1", "data[1].arrays[0].ways", "2 ways or more"),
        (r#"["2M", "1G"]"#, r#"["4K", "2M", "1G"]"#, "data[0]", "belongs to one array"),
        (r#"pieces = ["1G"]"#, r#"pieces = ["4K"]"#, "data[1].arrays[0].pieces", "only pages larger"),
        (r#"pages = ["4K"]"#, r#"pages = []"#, "data[0].arrays[0].pages", "at least one"),
        (r#"ways = 5, pages = ["4K"]"#, r#"ways = 5, pages = ["2M"]"#, "data[0]", "one array"),
        (r#"["4K", "2M", "1G"]"#, r#"["4K"]"#, "instruction[0]", "add it to `pages`"),
        ("pdpte = 2", "pdpte = 70000", "walk_caches.pdpte", "at most"),
        (r#"name = "small""#, r#"name = """#, "name", "give the machine a name"),
    ] {
        let message = refused(old, new);
        assert!(message.contains(field) && message.contains(remedy), "{new}: {message}");
    }
}

#[test]
fn informational_fields_are_optional() {
    let text = SMALL.replace("walkers = 1\n", "").replace("l2_hit_cycles = 7\n", "");
    let machine = Mmu::from_toml(&text).unwrap();
    assert_eq!((machine.walkers, machine.l2_hit_cycles), (0, 0));
    let full = Mmu::from_toml(SMALL).unwrap();
    assert_eq!((full.walkers, full.l2_hit_cycles), (1, 7));
    assert_eq!(Mmu { walkers: 1, l2_hit_cycles: 7, ..machine }, full);
}

#[test]
fn too_many_levels_are_refused() {
    let mut machine = Mmu::from_toml(SMALL).unwrap();
    let level = machine.data[1].clone();
    machine.data.extend([level.clone(), level]);
    assert!(machine.check().unwrap_err().to_string().contains("data has 4 levels"));
    machine.data.truncate(1);
    assert!(machine.check().unwrap_err().to_string().contains("only a level behind the first can be shared"));
    (machine.shared_last, machine.data) = (false, Vec::new());
    assert!(machine.check().unwrap_err().to_string().contains("data has 0 levels"));
}
