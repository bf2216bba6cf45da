//! Allocation sites of `fieldstone profile --trace`: programs whose every page walk has a known
//! cause.

use fieldstone_report::translation::{AllocationSite, Translation};

use crate::fixture::Fixture;
use crate::trace::{compile, has_tracer, trace};

/// Pages of each block: four times the entries of the small TLB, so that each access of a round
/// misses.
const PAGES: u64 = 256;
/// Rounds of `sites.c` and `objects.cpp`.
const ROUNDS: u64 = 20;

/// Traces `tests/programs/SOURCE`, compiled with these options.
fn traced(source: &str, options: &[&str]) -> Option<Translation> {
    let fixture = Fixture::new().filter(|_| has_tracer())?;
    let program = compile(&fixture, source, options)?;
    Some(trace(&fixture, "--full", &[&program]).1)
}

/// The site whose function begins with `name`. Checks that it has about `rounds` rounds of walks.
fn site<'a>(translation: &'a Translation, name: &str, rounds: u64) -> &'a AllocationSite {
    let mut sites = translation.sites.iter().filter(|site| site.function.starts_with(name));
    let site = sites.next().unwrap_or_else(|| panic!("no {name}: {:?}", translation.sites));
    assert!(sites.next().is_none(), "{name} is one site: {:?}", translation.sites);
    let expected = rounds * PAGES;
    // One more for the first touch, or one less for a cached page; accesses of the kernel are
    // not traced.
    assert!((expected - 2 * PAGES..=expected + 4 * PAGES).contains(&site.walks), "not {expected}: {site:?}");
    site
}

/// The line of `sites.c` that ends with this comment.
fn line_of(function: &str) -> Option<u32> {
    let source = include_str!("../programs/sites.c");
    let at = source.lines().position(|line| line.ends_with(&format!("/* line of {function} */")));
    at.and_then(|at| u32::try_from(at + 1).ok())
}

/// What is unknown of the sites. On a busy machine, the cost of a walk is unknown as well.
fn unseen(translation: &Translation) -> Vec<&str> {
    let words = translation.unseen.iter().map(String::as_str);
    words.filter(|words| !words.starts_with("the cost of a walk")).collect()
}

#[test]
fn each_allocation_is_attributed_to_its_function() {
    for optimisation in ["-O1", "-O2"] {
        let Some(translation) = traced("sites", &["-g", optimisation]) else { return };
        for (function, rounds) in [("table_new", 1), ("grown", 2), ("load_world", 4)] {
            let site = site(&translation, function, rounds * ROUNDS);
            // At -O2, `table_new` jumps to calloc, and has no frame.
            assert_eq!(site.line, line_of(function), "{optimisation}: {site:?}");
            assert!(site.file.as_ref().is_some_and(|file| file.ends_with("sites.c")), "{site:?}");
        }
        assert_eq!(unseen(&translation), [""; 0]);
    }
}

#[test]
fn a_mapping_is_attributed_to_its_function() {
    let Some(translation) = traced("sites", &["-g"]) else { return };
    let site = site(&translation, "pool_map", 3 * ROUNDS);
    assert_eq!((site.line, site.allocations, site.bytes), (line_of("pool_map"), 1, 1 << 20));
}

#[test]
fn without_debug_info_the_function_and_the_missing_package_are_reported() {
    let Some(translation) = traced("sites", &["-O2"]) else { return };
    for (function, rounds) in [("table_new", 1), ("grown", 2), ("load_world", 4)] {
        assert_eq!(site(&translation, function, rounds * ROUNDS).file, None);
    }
    let words: Vec<&String> = translation.unseen.iter().filter(|words| words.contains("no file and line")).collect();
    assert!(
        words.len() == 1 && words[0].contains("for sites:") && words[0].contains("-dbgsym"),
        "{:?}",
        translation.unseen
    );
}

#[test]
fn operator_new_and_containers_are_attributed_to_their_callers() {
    let Some(translation) = traced("objects.cpp", &["-g", "-O2"]) else { return };
    let table = site(&translation, "Table::Table", 2 * ROUNDS);
    assert!(table.line.is_some() && table.bytes == 1 << 20, "{table:?}");
    assert!(table.stack.iter().any(|frame| frame.starts_with("main ")), "{table:?}");
    site(&translation, "filled", ROUNDS);
}

/// Bytes of each table of `pages.c`, and the number of passes over it.
const TABLE_BYTES: u64 = 16 << 20;
const TABLE_ROUNDS: u64 = 4;

#[test]
fn the_page_kinds_of_each_site_are_reported() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "pages", &["-g"]) else { return };
    let (profile, translation) = trace(&fixture, "--full --pages thp", &[&program]);
    let region = profile.footprint("thp").and_then(|footprint| footprint.region.as_ref());
    let got = region.map_or(&[][..], |region| &region.pages).iter().filter(|of| of.kind == "thp").map(|of| of.bytes);
    if got.sum::<u64>() < TABLE_BYTES / 2 {
        println!("SKIP the kernel gave no transparent huge page: {region:?}");
        return;
    }
    let site = |function: &str| {
        let found = translation.sites.iter().find(|site| site.function == function);
        found.unwrap_or_else(|| panic!("no {function}: {:?}", translation.sites))
    };
    let share = |function: &str| {
        let [pages] = &site(function).pages[..] else { panic!("{:?}, {:?}", site(function), translation.unseen) };
        assert!(pages.kind == "thp" && (8..=16).contains(&pages.samples), "{pages:?}");
        pages.share
    };
    assert!(share("table_new") > 0.9, "{:?}", site("table_new"));
    assert!(share("refused") < 0.1, "{:?}", site("refused"));
    // The pages of the list, which another thread makes, may be of either kind: the first pages
    // of the heap stay small.
    assert!((0.0..=1.0).contains(&share("node_new")), "{:?}", site("node_new"));
    assert_eq!(unseen(&translation), [""; 0]);
    // The models do not depend on that: on 2 MiB pages either table is on eight or nine.
    for table in ["table_new", "refused"] {
        let AllocationSite { walks, walks_large, .. } = *site(table);
        // A page with a word of malloc, or with a neighbour, is in the TLB already.
        assert!(walks >= TABLE_ROUNDS * TABLE_BYTES / 4096 - 16, "{:?}", site(table));
        assert!((6..walks / 50).contains(&walks_large), "{:?}", site(table));
    }
}

#[test]
fn a_run_on_small_pages_only_reports_no_page_kinds() {
    let Some(translation) = traced("sites", &["-g", "-O1"]) else { return };
    assert!(translation.sites.iter().all(|site| site.pages.is_empty()), "{:?}", translation.sites);
    assert_eq!(unseen(&translation), [""; 0]);
}

#[test]
fn a_static_program_has_no_recorder_which_is_reported() {
    let Some(translation) = traced("sites", &["-g", "-static"]) else { return };
    assert!(
        translation.unseen.iter().any(|words| words.contains("recorder was not loaded")),
        "{:?}",
        translation.unseen
    );
    assert!(
        translation.sites.iter().all(|site| site.allocations == 0 && site.line.is_none()),
        "{:?}",
        translation.sites
    );
    let walks: u64 = translation.sites.iter().map(|site| site.walks).sum();
    assert!(walks >= 10 * ROUNDS * PAGES, "they are counted all the same: {walks}");
}
