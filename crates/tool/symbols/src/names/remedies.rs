//! What would make a report of sites say more: a sentence each, with the remedy.

use std::ops::RangeInclusive;

use fieldstone_report::translation::Site;
use fieldstone_wire::sites::Sites;

/// What the row is called of memory that no site that is seen asked for.
pub const MAPPED: &str = "(mapped by the program, or an allocator's own)";

/// A row of this share of the walks is a dead end that is worth a word.
const MUCH: f64 = 0.2;
/// The module of a site with less of the walks is not worth installing anything.
const LITTLE: f64 = 0.01;
/// What Python's arenas are long on average, with other blocks among them: 256 KiB up to 3.9, later 1 MiB.
const ARENA_BYTES: RangeInclusive<u64> = 128 << 10..=1 << 20;

/// What to do about rows of `sites` that tell too little, of a program that filled `record`.
#[must_use]
pub fn remedies(sites: &[Site], record: &Sites) -> Vec<String> {
    let all: u64 = sites.iter().map(|site| site.walks).sum();
    let has = |walks: u64, share: f64| all > 0 && walks as f64 >= share * all as f64;
    let mut remedies = Vec::new();
    let without_lines = without_lines(sites, |site| has(site.walks, LITTLE));
    if !without_lines.is_empty() {
        remedies.push(format!(
            "no file and line for {}: compile your own program with -g, or install the debug symbols of a package (on Debian: NAME-dbgsym); until then NAME+0x… is so far behind \
             the nearest function that has a name, and may be another one",
            without_lines.join(", ")
        ));
    }
    let shared = |site: &&Site| site.function == MAPPED || is_arena(site);
    if has(sites.iter().filter(shared).map(|site| site.walks).sum(), MUCH) && is_python(record) {
        remedies.push(
            "who allocates the objects that Python keeps in arenas of its own: run it with PYTHONMALLOC=malloc to see that"
                .to_owned(),
        );
    }
    remedies
}

/// Whether a site of a Python maps the arenas of its allocator. Where it is stripped, they are known by their length, most of the
/// blocks being arenas, and by who calls for them.
fn is_arena(site: &Site) -> bool {
    let allocates =
        |frame: &String| ["Malloc", "Calloc", "Realloc"].iter().any(|call| frame.contains(&format!("Object_{call}")));
    let average = site.bytes / site.allocations.max(1);
    site.function.starts_with("_PyObject_Arena")
        || ARENA_BYTES.contains(&average) && site.stack.get(1).is_some_and(allocates)
}

/// The modules of sites that matter, none of whose sites has a file; each once.
fn without_lines(sites: &[Site], matters: impl Fn(&Site) -> bool) -> Vec<&str> {
    let mut modules: Vec<&str> = Vec::new();
    for site in sites.iter().filter(|site| !site.module.is_empty() && matters(site)) {
        let has_lines = sites.iter().any(|other| other.module == site.module && other.file.is_some());
        if !has_lines && !modules.contains(&site.module.as_str()) {
            modules.push(&site.module);
        }
    }
    modules
}

/// Whether frames lie in a Python interpreter.
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

    fn site(function: &str, module: &str, file: Option<&str>, walks: u64) -> Site {
        let (function, module) = (function.to_owned(), module.to_owned());
        Site { function, module, file: file.map(str::to_owned), walks, ..Site::default() }
    }

    #[test]
    fn a_module_without_lines_is_told_once_and_only_if_it_matters() {
        let sites = [
            site("a", "redis-server", None, 500),
            site("b", "redis-server", None, 300),
            site("c", "app", Some("c.c"), 100),
            site("d", "app", None, 50),
            site("e", "libsmall.so", None, 2),
            site(MAPPED, "", None, 100),
        ];
        let words = remedies(&sites, &record());
        assert_eq!(words.len(), 1, "{words:?}");
        assert!(
            words[0].starts_with("no file and line for redis-server: compile your own program with -g, or install"),
            "{words:?}"
        );
        assert_eq!(remedies(&sites[2..4], &record()), [""; 0]);
        assert_eq!(remedies(&[], &record()), [""; 0]);
    }

    #[test]
    fn python_is_told_where_much_is_its_own() {
        let python = record();
        python.intern_module(0x1000, 0x1000..0x2000, b"/lib/libc.so.6");
        let much = [site("a", "", None, 80), site(MAPPED, "", None, 20)];
        assert_eq!(remedies(&much, &python), [""; 0], "it is no Python yet");
        python.intern_module(0x4000, 0x4000..0x5000, b"/usr/bin/python3.11");
        assert!(remedies(&much, &python)[0].contains("PYTHONMALLOC=malloc"));
        let little = [site("a", "", None, 81), site(MAPPED, "", None, 19)];
        assert_eq!(remedies(&little, &python), [""; 0]);
        let mut arenas = [site("a", "", None, 50), site("PyThread_init_thread+0x108", "", None, 50)];
        (arenas[1].allocations, arenas[1].bytes) = (3, (2 << 20) + 4096);
        assert_eq!(remedies(&arenas, &python), [""; 0], "nothing says that these are arenas");
        arenas[1].stack =
            ["PyThread_init_thread+0x108 (python3)", "PyObject_Malloc+0x3b6 (python3)"].map(str::to_owned).into();
        assert!(remedies(&arenas, &python)[0].contains("PYTHONMALLOC=malloc"));
        let named = [site("a", "", None, 50), site("_PyObject_ArenaMmap", "", None, 50)];
        assert_eq!(remedies(&named, &python), remedies(&arenas, &python));
    }
}
