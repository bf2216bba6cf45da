//! Sets `FIELDSTONE_COMMIT` for the program: the commit as git describes it, or the version where
//! there is no git.

use std::process::Command;

fn main() {
    // Both change with each commit and checkout. The index changes whenever git looks at the files,
    // so it is not watched.
    for path in ["../../.git/HEAD", "../../.git/logs/HEAD"] {
        if std::fs::exists(path).unwrap_or(false) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    let described =
        Command::new("git").args(["--no-optional-locks", "describe", "--always", "--dirty", "--tags"]).output();
    let described = described.ok().filter(|output| output.status.success());
    let commit = described.and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let version = concat!("version ", env!("CARGO_PKG_VERSION"));
    println!("cargo::rustc-env=FIELDSTONE_COMMIT={}", commit.as_deref().unwrap_or(version));
}
