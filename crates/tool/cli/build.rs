//! Builds the agents and hands their bytes to the command, so that there is one file to install.
//!
//! They are built with a target directory of its own: cargo holds a lock on the one that this script runs under.
//! A foreign target without a linker (as when CI only checks that everything compiles there) gets a command without
//! agents, which says so when it is asked for what they do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Each agent, and the variable that leads the command's source to its bytes.
const AGENTS: [(&str, &str); 3] = [("region", "REGION_AGENT"), ("trace", "TRACE_AGENT"), ("sites", "SITES_AGENT")];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../..");
    for input in ["crates/tool/agents", "crates/base/wire", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    let built = build(&root, &out);
    for (name, variable) in AGENTS {
        let agent = out.join(format!("{name}-agent.so"));
        let copied = built.clone().and_then(|from| {
            let file = from.join(format!("libfieldstone_agent_{name}.so"));
            fs::copy(&file, &agent).map_err(|error| format!("{}: {error}", file.display()))
        });
        if let Err(why) = copied {
            assert!(env::var("TARGET") != env::var("HOST"), "the {name} agent cannot be built: {why}");
            println!("cargo:warning=no {name} agent for this target: {why}");
            fs::write(&agent, []).expect("OUT_DIR can be written");
        }
        println!("cargo:rustc-env={variable}={}", agent.display());
    }
}

/// Builds them all; the directory that they are in.
fn build(root: &Path, out: &Path) -> Result<PathBuf, String> {
    let target = env::var("TARGET").map_err(|error| error.to_string())?;
    let directory = out.join("agent");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--profile", "agent"]);
    for (name, _) in AGENTS {
        cargo.args(["--package", &format!("fieldstone-agent-{name}")]);
    }
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
    Ok(directory.join(target).join("agent"))
}
