//! Builds the region agent and hands its bytes to the command, so that there is one file to install.
//!
//! The agent is built with a target directory of its own: cargo holds a lock on the one that this script runs under.
//! A foreign target without a linker (as when CI only checks that everything compiles there) gets a command without an
//! agent, which says so when it is asked for a region.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    for input in ["crates/agents/region", "crates/wire", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    let agent = out.join("region-agent.so");
    if let Err(why) = build(&root, &out, &agent) {
        assert!(env::var("TARGET") != env::var("HOST"), "the region agent cannot be built: {why}");
        println!("cargo:warning=no region agent for this target: {why}");
        fs::write(&agent, []).expect("OUT_DIR can be written");
    }
    println!("cargo:rustc-env=REGION_AGENT={}", agent.display());
}

fn build(root: &Path, out: &Path, agent: &Path) -> Result<(), String> {
    let target = env::var("TARGET").map_err(|error| error.to_string())?;
    let directory = out.join("agent");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--profile", "agent", "--package", "fieldstone-agent-region"]);
    cargo.args(["--target", &target, "--target-dir"]).arg(&directory);
    // What cargo told this script about the outer build does not hold for the inner one.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_CFG_") || name.starts_with("CARGO_FEATURE_") || name == "CARGO_ENCODED_RUSTFLAGS" {
            cargo.env_remove(name);
        }
    }
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("RUSTC_WRAPPER").env_remove("CLIPPY_ARGS");
    let output = cargo.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let built = directory.join(target).join("agent/libfieldstone_agent_region.so");
    fs::copy(&built, agent).map(|_| ()).map_err(|error| format!("{}: {error}", built.display()))
}
