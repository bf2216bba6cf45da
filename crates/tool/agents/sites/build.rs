//! The agent's constructor has to run before every other, so that it sees what they allocate, and they do not see its
//! variables.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rerun-if-changed=build.rs");
}
