//! Links the recorder so that its constructor runs before any other: it records what they allocate,
//! and they do not see its variables.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
