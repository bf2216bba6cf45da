//! The packages: each library, and each crate that it uses, can be packaged with what its user
//! needs.
//!
//! A library is a crate in `crates/lib`. The crates of `crates/model` and `crates/base` can be used
//! alone and follow the same rules. `cargo package --list` prints the files of a package; it needs
//! no network and builds nothing.

use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, Package};

const LAYERS: [&str; 3] = ["crates/lib/", "crates/model/", "crates/base/"];

/// Crates that are only parts of another one.
const PARTS: [&str; 1] = ["crates/lib/stacks/runtime"];

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");

fn workspace() -> Metadata {
    let metadata = cargo_metadata::MetadataCommand::new().manifest_path(MANIFEST).no_deps().exec();
    metadata.expect("cargo metadata reads the workspace")
}

/// The folder of a package below the root.
fn folder(metadata: &Metadata, package: &Package) -> String {
    let folder = package.manifest_path.parent().expect("a manifest is in a folder");
    folder.strip_prefix(&metadata.workspace_root).unwrap_or(folder).to_string()
}

/// The crates that can be packaged, with their folders.
fn packages(metadata: &Metadata) -> Vec<(String, &Package)> {
    let all = metadata.workspace_packages().into_iter().map(|package| (folder(metadata, package), package));
    let is_packaged = |folder: &str| LAYERS.iter().any(|layer| folder.starts_with(layer)) && !PARTS.contains(&folder);
    all.filter(|(folder, _)| is_packaged(folder)).collect()
}

/// The files of a package, as `cargo package` would archive them.
fn files(package: &Package) -> Vec<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["package", "--list", "--allow-dirty", "--offline", "--manifest-path", MANIFEST, "-p", &package.name]);
    let output = cargo.output().expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", package.name);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The fields of its manifest that a package lacks.
fn missing_fields(package: &Package) -> Vec<&'static str> {
    let fields = [
        ("description", package.description.as_deref().is_some_and(|text| text.len() > 20)),
        ("license", package.license.as_deref() == Some("MIT OR Apache-2.0")),
        ("readme", package.readme.is_some()),
        ("keywords", !package.keywords.is_empty()),
        ("categories", !package.categories.is_empty()),
        // `publish = false` is an empty list of registries.
        ("publish", package.publish.is_none()),
    ];
    fields.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
}

#[test]
fn each_package_has_its_fields() {
    let metadata = workspace();
    let packages = packages(&metadata);
    assert!(packages.len() >= 10, "{packages:?}");
    for (folder, package) in packages {
        assert_eq!(missing_fields(package), Vec::<&str>::new(), "{folder}/Cargo.toml");
    }
}

#[test]
fn each_package_has_a_readme_its_licences_an_example_and_its_sources() {
    let metadata = workspace();
    for (folder, package) in packages(&metadata) {
        let files = files(package);
        for required in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "Cargo.toml", "src/lib.rs"] {
            assert!(files.iter().any(|file| file == required), "{folder} is packaged without {required}: {files:?}");
        }
        let has_example = files.iter().any(|file| file.starts_with("examples/"));
        assert!(has_example, "{folder} is packaged without an example: {files:?}");
    }
}

/// A package refers to other crates by version. Cargo removes paths of development dependencies
/// that have none.
#[test]
fn a_package_uses_only_packages_with_a_version() {
    let metadata = workspace();
    let packages = packages(&metadata);
    for (folder, package) in &packages {
        let used = package.dependencies.iter().filter(|used| used.kind != DependencyKind::Development);
        for used in used.filter(|used| used.path.is_some()) {
            let user = format!("{folder} uses {}", used.name);
            assert!(used.req.to_string() != "*", "{user} without a version");
            assert!(packages.iter().any(|(_, package)| package.name == used.name), "{user}, which is not packaged");
            let version = &metadata.workspace_packages().into_iter().find(|other| other.name == used.name);
            assert!(version.is_some_and(|other| used.req.matches(&other.version)), "{user} by another version");
        }
    }
}

/// The README of a package has code, and the tests of the crate compile Rust code in it.
#[test]
fn each_readme_has_code_that_is_tested() {
    let metadata = workspace();
    for (folder, package) in packages(&metadata) {
        let read = |file: &str| {
            let path = Path::new(metadata.workspace_root.as_str()).join(&folder).join(file);
            std::fs::read_to_string(path).expect("the file exists")
        };
        let readme = read("README.md");
        assert!(readme.contains("```rust") || readme.contains("```c"), "{folder}/README.md has no code");
        assert!(!readme.contains("](.."), "{folder}/README.md has a link that breaks outside the repository");
        let is_tested = read("src/lib.rs").contains("include_str!(\"../README.md\")");
        assert!(is_tested || readme.contains("```c"), "{folder}/README.md is not tested: {}", package.name);
    }
}
