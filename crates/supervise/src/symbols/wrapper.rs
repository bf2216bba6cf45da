//! Which frames stand between a program's code and its allocator.
//!
//! A report that says "a hundred megabytes in `xmalloc`" helps nobody: the site is who called it. A frame is a wrapper if
//!
//! 1. its code lies in the C or C++ run-time library, the loader, or a library with `alloc` in its name;
//! 2. or it belongs to a language's standard library: `std::`, `core::`, `alloc::`, `__gnu_cxx::`;
//! 3. or its last name has a word with `alloc`, `strdup`, `strndup` or `memdup` in it, or begins or ends with the word
//!    `new`: `zmalloc`, `sqlite3MemMalloc`, `g_malloc`, `__rust_alloc`, `operator new`, `PyUnicode_New`, `Matrix::new`.
//!
//! Words are split where a name is: at every sign that is no letter and no digit, and before a capital letter. So `renew`
//! is no wrapper. A name that is only a neighbour's says nothing about a function; but what has no name of its own and is
//! called by a wrapper of the same file is a part of that wrapper, as SQLite's static allocator below `sqlite3Malloc` is. A function that is a wrapper by its name and yet does the work (`alloc_world`) is passed over too; the
//! whole stack is kept beside the site.

use super::{FrameName, Known};

const LIBRARIES: [&str; 6] = ["libc.so", "libc-", "libstdc++.", "libc++", "libgcc_s.", "ld-linux"];
const NAMESPACES: [&str; 4] = ["std::", "core::", "alloc::", "__gnu_cxx::"];
const PARTS: [&str; 4] = ["alloc", "strdup", "strndup", "memdup"];

/// The frame of a stack that is the site: the first that is no wrapper. Of wrappers alone (a library's constructor), the
/// innermost.
pub(super) fn site(stack: &[FrameName]) -> Option<&FrameName> {
    let callers = stack.iter().skip(1).map(Some).chain([None]);
    let works = |(frame, caller): &(&FrameName, Option<&FrameName>)| {
        let is_part = |caller: &&FrameName| caller.module == frame.module && is_wrapper(caller);
        !is_wrapper(frame) && (is_named(frame) || caller.filter(is_part).is_none())
    };
    stack.iter().zip(callers).find(works).map(|(frame, _)| frame).or(stack.first())
}

/// Whether a frame only passes an allocation on, as far as its own name tells.
fn is_wrapper(frame: &FrameName) -> bool {
    is_library(&frame.module) || is_named(frame) && is_wrapper_name(&frame.function)
}

fn is_named(frame: &FrameName) -> bool {
    matches!(frame.known, Known::DebugInfo | Known::Symbol)
}

fn is_library(module: &str) -> bool {
    LIBRARIES.iter().any(|library| module.starts_with(library)) || module.starts_with("lib") && module.contains("alloc")
}

fn is_wrapper_name(function: &str) -> bool {
    let path = path(function);
    if NAMESPACES.iter().any(|namespace| path.starts_with(namespace)) {
        return true;
    }
    // What a closure or a clone of a function is called begins with a sign: the function is the one before.
    let name = path.rsplit("::").find(|name| !name.starts_with('{')).unwrap_or_default();
    let words = words(name);
    words.iter().any(|word| PARTS.iter().any(|part| word.contains(part)))
        || [words.first(), words.last()].into_iter().flatten().any(|word| word == "new")
}

/// A demangled name without its arguments, template arguments and result: `std::vector::push_back` for
/// `void std::vector<int, std::allocator<int> >::push_back(int const&)`. Of `<alloc::vec::Vec<T> as Trait>::f` it keeps
/// the type: `alloc::vec::Vec::f`.
fn path(function: &str) -> String {
    let (mut depth, mut kept) = (0_u32, String::new());
    // The bracket that such a name opens with is no argument list; its trait, from ` as ` on, is.
    let qualified = function.starts_with('<');
    for (place, sign) in function.char_indices().skip(usize::from(qualified)) {
        match sign {
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && qualified && function[place..].starts_with(" as ") => depth = 1,
            _ if depth == 0 => kept.push(sign),
            _ => {}
        }
    }
    let kept = kept.strip_suffix(" const").unwrap_or(&kept).trim_start_matches(['&', '*']);
    // `operator new` is the one name with a space in it; what is before any other space is the result.
    let start = kept.find("operator ").or_else(|| kept.rfind(' ').map(|space| space + 1)).unwrap_or(0);
    kept[start..].to_owned()
}

fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    let mut small = false;
    for sign in name.chars() {
        if !sign.is_alphanumeric() || sign.is_uppercase() && small {
            words.push(String::new());
        }
        if sign.is_alphanumeric() {
            words.last_mut().expect("there is always one").extend(sign.to_lowercase());
        }
        small = sign.is_lowercase() || sign.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_known_by_their_names() {
        for name in [
            "malloc",
            "operator new(unsigned long)",
            "operator new[](unsigned long, std::align_val_t)",
            "__rust_alloc",
            "__rdl_alloc_zeroed",
            "alloc::raw_vec::RawVec<T,A>::grow_one",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "void std::vector<int, std::allocator<int> >::_M_realloc_insert<int>(int*, int&&)",
            "std::__cxx11::basic_string<char>::reserve(unsigned long)",
            "__gnu_cxx::new_allocator<int>::allocate(unsigned long, void const*)",
            "zmalloc",
            "ztrymalloc_usable",
            "sqlite3MemMalloc",
            "g_malloc0",
            "g_slice_new",
            "PyObject_Malloc",
            "_PyMem_DebugRawAlloc",
            "PyUnicode_New",
            "new_node",
            "xstrdup",
            "matrix::Matrix::new",
            "arena::Arena::alloc::{{closure}}",
        ] {
            assert!(is_wrapper_name(name), "{name}");
        }
    }

    #[test]
    fn working_functions_are_not() {
        for name in [
            "main",
            "load_world(int)",
            "renew",
            "news_feed",
            "get_new_line",
            "<game::World as core::default::Default>::default",
            "int parse<std::vector<int> >(std::vector<int> const&)",
            "std_out",
            "game::World::grow::{{closure}}",
            "coreutils_main",
            "(anonymous namespace)::fill(unsigned long)",
            "operator+(Big const&, Big const&)",
            "Table::find(std::string const&) const",
        ] {
            assert!(!is_wrapper_name(name), "{name}: {:?}", path(name));
        }
    }

    fn frame(module: &str, function: &str) -> FrameName {
        let known = if function.contains('+') { Known::Nearby } else { Known::Symbol };
        FrameName { function: function.to_owned(), file: None, line: None, module: module.to_owned(), known }
    }

    #[test]
    fn the_site_is_the_first_frame_that_works() {
        for (stack, expected) in [
            (&[("app", "zmalloc"), ("app", "createObject"), ("app", "main")][..], "createObject"),
            (&[("libstdc++.so.6", "operator new(unsigned long)"), ("app", "fill")], "fill"),
            (&[("lib.so", "exit+0xd3"), ("lib.so", "sqlite3Malloc"), ("lib.so", "open+0x9")], "open+0x9"),
            (&[("app", "compare+0x10"), ("libc.so.6", "qsort"), ("app", "sort")], "compare+0x10"),
            (&[("app", "GenericAlloc+0xa2f"), ("app", "eval")], "GenericAlloc+0xa2f"),
            (&[("libc.so.6", "fopen"), ("ld-linux-x86-64.so.2", "call_init")], "fopen"),
            (&[("app", "last+0x1")], "last+0x1"),
        ] {
            let stack: Vec<FrameName> = stack.iter().map(|(module, function)| frame(module, function)).collect();
            assert_eq!(site(&stack).map(|site| site.function.as_str()), Some(expected), "{stack:?}");
        }
        assert_eq!(site(&[]), None);
    }

    #[test]
    fn the_run_time_libraries_are_wrappers_whatever_their_functions_are_called() {
        assert!(
            ["libc.so.6", "libc-2.31.so", "libstdc++.so.6", "ld-linux-x86-64.so.2", "libjemalloc.so.2"].map(is_library)
                == [true; 5]
        );
        assert!(["libcrypto.so.3", "libpython3.11.so", "program", "alloc-bench"].map(is_library) == [false; 4]);
    }
}
