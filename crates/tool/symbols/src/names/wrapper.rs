//! Recognises frames between a program's code and its allocator: wrappers of allocation functions.
//!
//! "100 MiB in `xmalloc`" does not help the user, so the site is the first frame that is not a
//! wrapper. Guesses by the sound of a name would also skip `table_new`. A frame is therefore a
//! wrapper only if
//!
//! 1. its code is in the C or C++ run-time library, the loader, or a library with a file name
//!    `lib…alloc…`,
//! 2. or its name begins with a namespace of [`NAMESPACES`], or its source file belongs to a
//!    standard library (with line tables alone, debug info names `alloc::alloc::alloc` just
//!    `alloc`),
//! 3. or it is `operator new` of a class, one of [`NAMES`], or begins with one of [`PREFIXES`]:
//!    allocation functions and well-known wrappers.
//!
//! A function of the program that maps a pool for many blocks is no wrapper. The caller that
//! happened to find the pool empty does not own its memory. So `_PyObject_ArenaMmap` is a site.
//!
//! Suffixes added by the compiler (`.part.0`) are ignored. The name of the nearest symbol does not
//! identify a function. But a frame without its own name that is called by a wrapper of the same
//! file counts as part of that wrapper. SQLite's static allocator below `sqlite3Malloc` is an
//! example.

use std::path::Path;

use fieldstone_report::translation::names::without_generics;

use super::{FrameName, NameSource};

const LIBRARIES: [&str; 6] = ["libc.so", "libc-", "libstdc++.", "libc++", "libgcc_s.", "ld-linux"];

/// Namespaces of standard libraries.
const NAMESPACES: [&str; 5] = ["std::", "core::", "alloc::", "hashbrown::", "__gnu_cxx::"];

/// Parts of source paths of standard libraries: Rust as installed, hashbrown, LLVM and GCC.
const SOURCES: [&str; 4] = ["/rustlib/src/rust/library/", "/hashbrown-", "/include/c++/", "/libstdc++-v3/"];
/// The path prefix of Rust's standard library in a released toolchain.
const RUSTC_PREFIX: &str = "/rustc/";

/// Names of allocation functions and wrappers.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    // C
    "malloc", "calloc", "realloc", "reallocarray", "memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc",
    "strdup", "strndup", "asprintf", "vasprintf", "mmap", "mmap64",
    // C++
    "operator new", "operator new[]",
    // wrappers that end the program on failure
    "xmalloc", "xcalloc", "xrealloc", "xreallocarray", "xnmalloc", "xnrealloc", "xzalloc", "xcharalloc", "xmemdup",
    "xstrdup", "xstrndup", "xasprintf", "xvasprintf", "xmmap",
    // Python
    "PyObject_Malloc", "PyObject_Calloc", "PyObject_Realloc", "_PyObject_Malloc", "_PyObject_Calloc", "_PyObject_Realloc",
    "_PyObject_New", "_PyObject_NewVar", "_PyObject_GC_New", "_PyObject_GC_NewVar", "_PyObject_GC_Malloc",
    "_PyObject_GC_Calloc", "_PyObject_GC_Resize", "_PyObject_GC_Link", "PyType_GenericAlloc", "_PyType_AllocNoTrack",
    "gc_alloc",
];

/// Prefixes of the names of allocation functions.
#[rustfmt::skip]
const PREFIXES: &[&str] = &[
    // Rust
    "__rust_alloc", "__rust_realloc", "__rdl_", "__rg_", "__rustc::__r",
    // Redis and its forks
    "zmalloc", "zcalloc", "zrealloc", "zstrdup", "ztrymalloc", "ztrycalloc", "ztryrealloc",
    // GLib
    "g_malloc", "g_try_malloc", "g_realloc", "g_try_realloc", "g_aligned_alloc", "g_slice_alloc", "g_slice_copy",
    "g_strdup", "g_strndup", "g_memdup",
    // SQLite
    "sqlite3Malloc", "sqlite3MemMalloc", "sqlite3Realloc", "sqlite3MemRealloc", "sqlite3DbMalloc", "sqlite3DbRealloc",
    "sqlite3DbStr", "sqlite3_malloc", "sqlite3_realloc",
    // Python
    "PyMem_", "_PyMem_",
    // OpenSSL
    "CRYPTO_malloc", "CRYPTO_zalloc", "CRYPTO_realloc", "CRYPTO_strdup", "CRYPTO_strndup", "CRYPTO_memdup",
    // V8's functions that map heap pages
    "v8::base::OS::", "v8::base::PageAllocator::", "v8::internal::VirtualMemory::", "v8::internal::MemoryAllocator::",
    // HotSpot
    "os::malloc", "os::realloc", "os::strdup", "os::commit_memory", "os::pd_commit_memory", "os::reserve_memory",
    "os::pd_reserve_memory", "AllocateHeap", "ReallocateHeap",
];

/// The allocation site of a stack: its first frame that is not a wrapper. If all frames are
/// wrappers (in a library's constructor), the innermost one. `None` for an empty stack.
pub(super) fn site(stack: &[FrameName]) -> Option<&FrameName> {
    let callers = stack.iter().skip(1).map(Some).chain([None]);
    let is_site = |(frame, caller): &(&FrameName, Option<&FrameName>)| {
        let is_part = |caller: &&FrameName| caller.module == frame.module && is_wrapper(caller);
        !is_wrapper(frame) && (is_named(frame) || caller.filter(is_part).is_none())
    };
    stack.iter().zip(callers).find(is_site).map(|(frame, _)| frame).or(stack.first())
}

/// Whether the frame's own module, source file or name make it a wrapper.
fn is_wrapper(frame: &FrameName) -> bool {
    is_library(&frame.module)
        || frame.file.as_deref().is_some_and(is_library_source)
        || is_named(frame) && is_wrapper_name(&frame.function)
}

fn is_library_source(file: &Path) -> bool {
    let file = file.to_string_lossy();
    file.starts_with(RUSTC_PREFIX) || SOURCES.iter().any(|source| file.contains(source))
}

fn is_named(frame: &FrameName) -> bool {
    matches!(frame.source, NameSource::DebugInfo | NameSource::Symbol)
}

fn is_library(module: &str) -> bool {
    LIBRARIES.iter().any(|library| module.starts_with(library)) || module.starts_with("lib") && module.contains("alloc")
}

fn is_wrapper_name(function: &str) -> bool {
    let path = function_path(function);
    // `xmalloc.part.0` is a part of `xmalloc` that the compiler split off.
    let name = path.split('.').next().unwrap_or_default();
    let is_operator = ["::operator new", "::operator new[]"].iter().any(|operator| name.ends_with(operator));
    is_operator || NAMES.contains(&name) || NAMESPACES.iter().chain(PREFIXES).any(|prefix| name.starts_with(prefix))
}

/// A demangled name without its arguments, template arguments and return type:
/// `std::vector::push_back` for `void std::vector<int, std::allocator<int> >::push_back(int
/// const&)`.
fn function_path(function: &str) -> String {
    let (mut depth, mut kept) = (0_u32, String::new());
    for sign in without_generics(function).chars() {
        match sign {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(sign),
            _ => {}
        }
    }
    let kept = kept.strip_suffix(" const").unwrap_or(&kept).trim_start_matches(['&', '*']);
    // `operator new` is the only name with a space. Before any other space is the return type.
    let start = kept.find("operator ").or_else(|| kept.rfind(' ').map(|space| space + 1)).unwrap_or(0);
    kept[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_recognised_by_name() {
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
            "g_slice_alloc",
            "PyObject_Malloc",
            "_PyMem_DebugRawAlloc",
            "gc_alloc.isra.0",
            "CRYPTO_zalloc",
            "ResourceObj::operator new(unsigned long, MEMFLAGS)",
            "os::malloc(unsigned long, MEMFLAGS, NativeCallStack const&)",
            "v8::internal::MemoryAllocator::AllocateUninitializedPage(v8::internal::Space*)",
            "xstrdup",
            "xmalloc.part.0",
            "hashbrown::raw::RawTable<T,A>::reserve_rehash",
        ] {
            assert!(is_wrapper_name(name), "{name}");
        }
    }

    #[test]
    fn functions_of_programs_are_no_wrappers() {
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
            "table_new",
            "new_node",
            "matrix::Matrix::new",
            "arena::Arena::alloc::{{closure}}",
            "alloc_world",
            "get_or_alloc_page",
            "PyUnicode_New",
            "PyObject_Call",
            "g_slice_free_chain_with_offset",
            "mallocate",
            "stdx::grow",
            "Pool::malloc(unsigned long)",
            "_PyObject_ArenaMmap",
            "new_arena",
            "v8::internal::NewSpace::EnsureCapacity()",
        ] {
            assert!(!is_wrapper_name(name), "{name}: {:?}", function_path(name));
        }
    }

    fn frame(module: &str, function: &str) -> FrameName {
        let source = if function.contains('+') { NameSource::NearestSymbol } else { NameSource::Symbol };
        FrameName { function: function.to_owned(), file: None, line: None, module: module.to_owned(), source }
    }

    #[test]
    fn the_site_is_the_first_frame_that_is_no_wrapper() {
        for (stack, expected) in [
            (&[("app", "zmalloc"), ("app", "createObject"), ("app", "main")][..], "createObject"),
            (&[("libstdc++.so.6", "operator new(unsigned long)"), ("app", "fill")], "fill"),
            (&[("lib.so", "exit+0xd3"), ("lib.so", "sqlite3Malloc"), ("lib.so", "open+0x9")], "open+0x9"),
            (&[("app", "compare+0x10"), ("libc.so.6", "qsort"), ("app", "sort")], "compare+0x10"),
            (&[("app", "GenericAlloc+0xa2f"), ("app", "eval")], "GenericAlloc+0xa2f"),
            (&[("libc.so.6", "fopen"), ("ld-linux-x86-64.so.2", "call_init")], "fopen"),
            (&[("app", "last+0x1")], "last+0x1"),
            (&[("app", "table_new"), ("app", "main")], "table_new"),
            (&[("app", "operator new[](unsigned long)"), ("app", "Table::Table()"), ("app", "main")], "Table::Table()"),
        ] {
            let stack: Vec<FrameName> = stack.iter().map(|(module, function)| frame(module, function)).collect();
            assert_eq!(site(&stack).map(|site| site.function.as_str()), Some(expected), "{stack:?}");
        }
        assert_eq!(site(&[]), None);
    }

    #[test]
    fn functions_in_sources_of_standard_libraries_are_wrappers() {
        let of = |file: &str, function: &str| FrameName { file: Some(file.into()), ..frame("app", function) };
        let stack = [
            of("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/alloc/src/alloc.rs", "alloc"),
            of("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/alloc/src/vec/mod.rs", "with_capacity<u64>"),
            of("/usr/include/c++/12/bits/new_allocator.h", "allocate"),
            of("/home/user/app/src/world.rs", "grow"),
        ];
        assert_eq!(site(&stack).map(|site| site.function.as_str()), Some("grow"));
        assert!(!is_library_source(Path::new("/home/user/rustc/src/main.rs")));
    }

    #[test]
    fn all_functions_of_run_time_libraries_are_wrappers() {
        assert!(
            ["libc.so.6", "libc-2.31.so", "libstdc++.so.6", "ld-linux-x86-64.so.2", "libjemalloc.so.2"].map(is_library)
                == [true; 5]
        );
        assert!(["libcrypto.so.3", "libpython3.11.so", "program", "alloc-bench"].map(is_library) == [false; 4]);
    }
}
