//! Builds the agents and embeds their bytes in the command, so that one file is installed.
//!
//! ```text
//!   crates/tool/agents/NAME ── inner cargo ──> PROFILE/agents/TARGET/agent/libfieldstone_agent_NAME.so
//!                                              └─ copy ──> OUT_DIR/NAME-agent.so ── include_bytes! ──> command
//! ```
//! The inner cargo uses a separate target directory: the outer cargo holds a lock on its own. It is in the
//! directory of the outer profile, so builds of the command with other features share it. A
//! cross build without a linker for the target gets empty agents; the command then reports the
//! missing agent when an option needs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Each agent, and the environment variable that holds the path of its file at compile time.
const AGENTS: [(&str, &str); 5] = [
    ("region", "REGION_AGENT"),
    ("trace", "TRACE_AGENT"),
    ("sites", "SITES_AGENT"),
    ("guard", "GUARD_AGENT"),
    ("paging", "PAGING_AGENT"),
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../..");
    for input in [
        "crates/tool/agents",
        "crates/tool/preload",
        "crates/base/wire",
        "crates/base/syscall",
        "crates/lib/guard",
        "crates/lib/paging",
        "Cargo.toml",
        "Cargo.lock",
    ] {
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
            assert!(env::var("TARGET") != env::var("HOST"), "cannot build the {name} agent: {why}");
            println!("cargo:warning=no {name} agent for this target: {why}");
            fs::write(&agent, []).expect("OUT_DIR is writable");
        }
        println!("cargo:rustc-env={variable}={}", agent.display());
    }
}

/// Builds all agents and returns the directory of their files.
fn build(root: &Path, out: &Path) -> Result<PathBuf, String> {
    let target = env::var("TARGET").map_err(|error| error.to_string())?;
    // Cargo names the linker that is set for the target; for the host none need be set.
    if env::var("HOST").as_ref() != Ok(&target) && env::var_os("RUSTC_LINKER").is_none() {
        return Err(format!("no linker is set for {target}"));
    }
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let profile = out.ancestors().nth(3).ok_or_else(|| format!("{} is in no profile", out.display()))?;
    let directory = profile.join("agents");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--quiet", "--profile", "agent"]);
    for (name, _) in AGENTS {
        cargo.args(["--package", &format!("fieldstone-agent-{name}")]);
    }
    cargo.args(["--target", &target, "--target-dir"]).arg(&directory);
    // These variables describe the outer build. The inner build must not inherit them.
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
