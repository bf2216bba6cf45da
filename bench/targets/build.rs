//! Compiles the hand-written system calls for the section [pages]. They are skipped without a C
//! compiler.

fn main() {
    println!("cargo::rerun-if-changed=src/pages/bare.c");
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rustc-check-cfg=cfg(has_c)");
    let mut build = cc::Build::new();
    build.file("src/pages/bare.c").std("c11").opt_level(2).define("_GNU_SOURCE", None).cargo_warnings(false);
    if build.try_compile("bare").is_ok() {
        println!("cargo::rustc-cfg=has_c");
    }
}
