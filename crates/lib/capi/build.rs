//! Sets the shared library's soname, so that a program loads the version that it was linked with.
//! Before 1.0 each minor version may break the ABI.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let soname = concat!("libfieldstone.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
}
