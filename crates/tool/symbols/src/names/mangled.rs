//! Demangles C++ and Rust symbols.

use addr2line::{demangle_auto, gimli};

/// Prefixes of mangled names in C++ and Rust.
const PREFIXES: [&str; 3] = ["_Z", "__Z", "_R"];

/// The demangled name. A name without a prefix of [`PREFIXES`] is returned unchanged: the demangler
/// would turn a C variable `w` into the type `wchar_t`.
pub(crate) fn demangled(name: &str, language: Option<gimli::DwLang>) -> String {
    if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        demangle_auto(name.into(), language).into_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_mangled_is_unchanged() {
        for (symbol, name) in [
            ("w", "w"),
            ("i", "i"),
            ("main", "main"),
            ("_ZN3app5queueE", "app::queue"),
            ("_Z3addii", "add(int, int)"),
            ("_RNvC3app4main", "app::main"),
        ] {
            assert_eq!(demangled(symbol, None), name);
        }
        assert_eq!(demangled("f", Some(gimli::DW_LANG_C_plus_plus)), "f");
    }
}
