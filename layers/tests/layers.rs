//! The layer check: a crate uses lower ones only, and nobody links what is injected.
//!
//! Cargo refuses cycles, not crates that skip or climb. The table below is the design's drawing of the house; a crate that
//! is not in it has no layer, and the test says so. Dependencies count whether normal, for building or for tests.

use std::collections::BTreeMap;

/// Low to high, by folder; `agents/*` is any folder in there.
const LAYERS: [&[&str]; 7] = [
    &["crates/wire", "crates/sharing", "workloads"],
    &["crates/sys", "crates/report", "crates/translation", "crates/rewrite"],
    &["crates/blocks", "crates/pages", "crates/remap"],
    &["crates/agents/*", "crates/supervise", "crates/capi", "crates/stacks"],
    &["crates/cli", "reproduce/peers", "crates/stacks/runtime"],
    &["reproduce"],
    &["targets"],
];

/// Those that use no crate of ours, and that none uses.
const APART: [&str; 1] = ["layers"];

/// Folder of each crate, and the folders of those of ours that it uses.
type Graph = BTreeMap<String, Vec<String>>;

fn layer(folder: &str) -> Option<usize> {
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => folder.starts_with(start),
        None => folder == *pattern,
    };
    LAYERS.iter().position(|layer| layer.iter().any(matches))
}

/// What is wrong with one use, if something is.
fn violation(user: &str, used: &str) -> Option<String> {
    if APART.contains(&user) || APART.contains(&used) {
        return Some(format!("{user} uses {used}, one of which stands apart"));
    }
    if used.starts_with("crates/agents/") {
        return Some(format!("{user} links {used}: agents are carried as bytes"));
    }
    match (layer(user), layer(used)) {
        (Some(user_layer), Some(used_layer)) if used_layer < user_layer => None,
        (Some(_), Some(_)) => Some(format!("{user} uses {used}, which is not below it")),
        _ => None, // reported once, by `violations`
    }
}

fn violations(graph: &Graph) -> Vec<String> {
    let homeless = graph
        .keys()
        .filter(|folder| layer(folder).is_none() && !APART.contains(&folder.as_str()))
        .map(|folder| format!("{folder} has no layer: give it one in layers/tests/layers.rs"));
    let uses = graph.iter().flat_map(|(user, all)| all.iter().map(move |used| (user, used)));
    homeless.chain(uses.filter_map(|(user, used)| violation(user, used))).collect()
}

/// The workspace as its manifests declare it.
fn workspace() -> Graph {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace");
    let root = &metadata.workspace_root;
    let folder = |path: &cargo_metadata::camino::Utf8Path| path.strip_prefix(root).unwrap_or(path).to_string();
    let crates = metadata.workspace_packages().into_iter().map(|package| {
        let manifest = package.manifest_path.parent().expect("a manifest lies in a folder");
        let uses = package.dependencies.iter().filter_map(|used| used.path.as_deref()).map(folder).collect();
        (folder(manifest), uses)
    });
    crates.collect()
}

#[test]
fn each_crate_uses_lower_ones_only() {
    let graph = workspace();
    assert!(
        graph.contains_key("crates/wire") && graph.contains_key("crates/cli"),
        "the workspace was not read: {graph:?}"
    );
    let uses_something = graph.values().any(|uses| uses.iter().any(|used| used == "crates/wire"));
    assert!(uses_something, "the dependencies were not read: {graph:?}");
    assert_eq!(violations(&graph), Vec::<String>::new());
}

fn graph(uses: &[(&str, &[&str])]) -> Graph {
    uses.iter().map(|(user, used)| ((*user).to_owned(), used.iter().map(|u| (*u).to_owned()).collect())).collect()
}

#[test]
fn a_good_graph_passes() {
    let good = graph(&[
        ("crates/wire", &[]),
        ("crates/sys", &["crates/wire"]),
        ("crates/agents/region", &["crates/wire"]),
        ("crates/supervise", &["crates/sys", "crates/wire"]),
        ("crates/cli", &["crates/supervise", "crates/report"]),
        ("workloads", &[]),
    ]);
    assert_eq!(violations(&good), Vec::<String>::new());
}

#[test]
fn each_kind_of_wrong_use_is_named() {
    for (user, used, complaint) in [
        ("crates/wire", "crates/sys", "not below it"),
        ("crates/sys", "crates/report", "not below it"),
        ("crates/supervise", "crates/cli", "not below it"),
        ("crates/cli", "targets", "not below it"),
        ("crates/cli", "crates/agents/region", "carried as bytes"),
        ("crates/supervise", "crates/agents/repair", "carried as bytes"),
        ("workloads", "crates/sys", "not below it"),
        ("crates/blocks", "reproduce/peers", "not below it"),
        ("crates/cli", "layers", "stands apart"),
    ] {
        let found = violations(&graph(&[(user, &[used])]));
        assert!(found.len() == 1 && found[0].contains(complaint), "{user}, {used}: {found:?}");
    }
    let found = violations(&graph(&[("crates/new", &["crates/wire"])]));
    assert!(found.len() == 1 && found[0].contains("has no layer"), "{found:?}");
}
