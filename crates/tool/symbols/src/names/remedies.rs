//! Advice for reports of allocation sites whose names are imprecise: one sentence each, with the
//! remedy.

use std::ops::RangeInclusive;

use fieldstone_report::translation::AllocationSite;
use fieldstone_wire::sites::Sites;

/// The name of the row for memory without a recorded allocation site.
pub const UNATTRIBUTED: &str = "(mapped by the program, or an allocator's own)";

/// Share of the walks from which unattributed memory causes advice.
const UNATTRIBUTED_SHARE: f64 = 0.2;
/// Share of a site's walks below which its module causes no advice.
const MINIMUM_SHARE: f64 = 0.01;
/// Average length of the blocks at a site that maps Python's arenas. An arena has 256 KiB up to
/// Python 3.9 and 1 MiB later; the range allows for some other blocks.
const ARENA_BYTES: RangeInclusive<u64> = 128 << 10..=1 << 20;

/// Advice for the rows `sites`, measured on a program that filled `record`; empty if there is none.
#[must_use]
pub fn remedies(sites: &[AllocationSite], record: &Sites) -> Vec<String> {
    let all: u64 = sites.iter().map(|site| site.walks).sum();
    let has = |walks: u64, share: f64| all > 0 && walks as f64 >= share * all as f64;
    let mut remedies = Vec::new();
    let without_lines = without_lines(sites, |site| has(site.walks, MINIMUM_SHARE));
    if !without_lines.is_empty() {
        remedies.push(format!(
            "no file and line for {}: compile your own program with -g, or install the debug symbols of a package (on Debian: NAME-dbgsym); until then NAME+0x… is the distance \
             from the nearest named function, and may belong to another function",
            without_lines.join(", ")
        ));
    }
    let shared = |site: &&AllocationSite| site.function == UNATTRIBUTED || is_arena(site);
    if has(sites.iter().filter(shared).map(|site| site.walks).sum(), UNATTRIBUTED_SHARE) && is_python(record) {
        remedies.push(
            "Python keeps objects in its own arenas, so their allocation sites are unknown: run it with PYTHONMALLOC=malloc to see them"
                .to_owned(),
        );
    }
    remedies
}

/// Whether a site of a Python interpreter maps arenas. In a stripped interpreter, the average block
/// length and the caller's name identify them.
fn is_arena(site: &AllocationSite) -> bool {
    let allocates =
        |frame: &String| ["Malloc", "Calloc", "Realloc"].iter().any(|call| frame.contains(&format!("Object_{call}")));
    let average = site.bytes / site.allocations.max(1);
    site.function.starts_with("_PyObject_Arena")
        || ARENA_BYTES.contains(&average) && site.stack.get(1).is_some_and(allocates)
}

/// The modules without line numbers that have a site for which `matters` is true; each once.
fn without_lines(sites: &[AllocationSite], matters: impl Fn(&AllocationSite) -> bool) -> Vec<&str> {
    let mut modules: Vec<&str> = Vec::new();
    for site in sites.iter().filter(|site| !site.module.is_empty() && matters(site)) {
        let has_lines = sites.iter().any(|other| other.module == site.module && other.file.is_some());
        if !has_lines && !modules.contains(&site.module.as_str()) {
            modules.push(&site.module);
        }
    }
    modules
}

/// Whether a Python interpreter is among the recorded modules.
fn is_python(record: &Sites) -> bool {
    let modules = (0..=u16::MAX).map_while(|number| record.module(number));
    modules.into_iter().any(|module| {
        let path: Vec<u8> = module.path().collect();
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        name.starts_with(b"python") || name.starts_with(b"libpython")
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    fn site(function: &str, module: &str, file: Option<&str>, walks: u64) -> AllocationSite {
        let (function, module) = (function.to_owned(), module.to_owned());
        AllocationSite { function, module, file: file.map(str::to_owned), walks, ..AllocationSite::default() }
    }

    #[test]
    fn a_module_without_lines_is_reported_once_and_only_if_it_matters() {
        let sites = [
            site("a", "redis-server", None, 500),
            site("b", "redis-server", None, 300),
            site("c", "app", Some("c.c"), 100),
            site("d", "app", None, 50),
            site("e", "libsmall.so", None, 2),
            site(UNATTRIBUTED, "", None, 100),
        ];
        let advice = remedies(&sites, &record());
        assert_eq!(advice.len(), 1, "{advice:?}");
        assert!(
            advice[0].starts_with("no file and line for redis-server: compile your own program with -g, or install"),
            "{advice:?}"
        );
        assert_eq!(remedies(&sites[2..4], &record()), [""; 0]);
        assert_eq!(remedies(&[], &record()), [""; 0]);
    }

    #[test]
    fn python_is_reported_if_its_arenas_have_a_large_share() {
        let python = record();
        python.intern_module(0x1000, 0x1000..0x2000, b"/lib/libc.so.6");
        let much = [site("a", "", None, 80), site(UNATTRIBUTED, "", None, 20)];
        assert_eq!(remedies(&much, &python), [""; 0], "it is no Python yet");
        python.intern_module(0x4000, 0x4000..0x5000, b"/usr/bin/python3.11");
        assert!(remedies(&much, &python)[0].contains("PYTHONMALLOC=malloc"));
        let little = [site("a", "", None, 81), site(UNATTRIBUTED, "", None, 19)];
        assert_eq!(remedies(&little, &python), [""; 0]);
        let mut arenas = [site("a", "", None, 50), site("PyThread_init_thread+0x108", "", None, 50)];
        (arenas[1].allocations, arenas[1].bytes) = (3, (2 << 20) + 4096);
        assert_eq!(remedies(&arenas, &python), [""; 0], "nothing identifies them as arenas");
        arenas[1].stack =
            ["PyThread_init_thread+0x108 (python3)", "PyObject_Malloc+0x3b6 (python3)"].map(str::to_owned).into();
        assert!(remedies(&arenas, &python)[0].contains("PYTHONMALLOC=malloc"));
        let named = [site("a", "", None, 50), site("_PyObject_ArenaMmap", "", None, 50)];
        assert_eq!(remedies(&named, &python), remedies(&arenas, &python));
    }
}
