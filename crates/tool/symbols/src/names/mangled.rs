//! Symbols as their language writes them.

use addr2line::{demangle_auto, gimli};

/// How a mangled name begins, in C++ and in Rust.
const PREFIXES: [&str; 3] = ["_Z", "__Z", "_R"];

/// A symbol as its language writes it. Only what is mangled is taken so: a variable `w` of C is no `wchar_t`, which a mangled type would be.
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
    fn what_is_not_mangled_stays() {
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
