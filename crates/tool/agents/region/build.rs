//! The agent's constructor has to run before every other, so that libc's allocator has not been used yet.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
