//! Links the agent so that its constructor runs before any other: libc's allocator is unused then.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
