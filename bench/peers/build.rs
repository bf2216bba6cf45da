//! Compiles the C++ deques if there is a C++ compiler, and Boost's deque if its headers are
//! installed. Missing deques are skipped in comparisons.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=src/deque.cpp");
    println!("cargo::rerun-if-env-changed=CXX");
    println!("cargo::rustc-check-cfg=cfg(has_cpp, has_boost)");
    let boost = ["/usr/include", "/usr/local/include"].map(|root| Path::new(root).join("boost/container/deque.hpp"));
    // A header may be installed later: then a folder on the way to it changes. Cargo takes a
    // missing file for changed at each build.
    for path in boost.iter().filter_map(|header| header.ancestors().find(|path| path.exists())) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let has_boost = boost.iter().any(|header| header.exists());
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(3).file("src/deque.cpp").cargo_warnings(false);
    if has_boost {
        build.define("HAS_BOOST", None);
    }
    if build.try_compile("deque").is_ok() {
        println!("cargo::rustc-cfg=has_cpp");
        if has_boost {
            println!("cargo::rustc-cfg=has_boost");
        }
    }
}
