//! The layer check: a crate uses only crates that stand before it in the table, and no crate links an agent.
//!
//! The table is that of ARCHITECTURE.md as code, from low to high: a folder is a layer, and inside a folder
//! the order is the one written. Cargo refuses cycles between crates, but not a crate that uses a higher layer. Normal,
//! build and test dependencies count alike. A crate that is missing in the table fails the test.

use std::collections::BTreeMap;

/// The crates, low to high. `agents/*` is any folder in there.
const ORDER: &[&str] = &[
    "crates/base/syscall",
    "crates/base/wire",
    "crates/base/sys",
    "crates/base/stats",
    "crates/model/translation",
    "crates/model/sharing",
    "crates/model/rewrite",
    "crates/lib/pages",
    "crates/lib/blocks",
    "crates/lib/stacks",
    "crates/lib/stacks/runtime",
    "crates/lib/guard",
    "crates/lib/paging",
    "crates/lib/checkpoint",
    "crates/lib/store",
    "crates/lib/capi",
    "crates/tool/preload",
    "crates/tool/agents/*",
    "crates/tool/report",
    "crates/tool/remap",
    "crates/tool/launch",
    "crates/tool/symbols",
    "crates/tool/heap-errors",
    "crates/tool/profile",
    "crates/tool/repair",
    "crates/tool/cli",
    "bench/workloads",
    "bench/peers",
    "bench/reproduce",
    "bench/targets",
    "tests/system",
    "tests/layers",
];

/// The folder of each crate, with the folders of the workspace's crates that it uses.
type CrateGraph = BTreeMap<String, Vec<String>>;

/// The place of a crate in [`ORDER`]; `None` if it has none.
fn position(folder: &str) -> Option<usize> {
    ORDER.iter().position(|pattern| match pattern.strip_suffix('*') {
        Some(start) => folder.starts_with(start),
        None => folder == *pattern,
    })
}

/// What is wrong when `user` uses `used`; `None` if that is allowed.
fn violation(user: &str, used: &str) -> Option<String> {
    if used.starts_with("crates/tool/agents/") {
        return Some(format!("{user} links {used}: agents are carried as bytes"));
    }
    match (position(user), position(used)) {
        (Some(user_position), Some(used_position)) if used_position < user_position => None,
        (Some(_), Some(_)) => Some(format!("{user} uses {used}, which is not below it")),
        _ => None, // `violations` reports a crate without a place once.
    }
}

fn violations(graph: &CrateGraph) -> Vec<String> {
    let unplaced = graph
        .keys()
        .filter(|folder| position(folder).is_none())
        .map(|folder| format!("{folder} has no layer: add it to ORDER in tests/layers/tests/layers.rs"));
    let uses = graph.iter().flat_map(|(user, all)| all.iter().map(move |used| (user, used)));
    unplaced.chain(uses.filter_map(|(user, used)| violation(user, used))).collect()
}

/// The graph that the manifests of the workspace declare.
fn workspace() -> CrateGraph {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
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
        graph.contains_key("crates/base/wire") && graph.contains_key("crates/tool/cli"),
        "the workspace was not read: {graph:?}"
    );
    let uses_something = graph.values().any(|uses| uses.iter().any(|used| used == "crates/base/wire"));
    assert!(uses_something, "the dependencies were not read: {graph:?}");
    assert_eq!(violations(&graph), Vec::<String>::new());
}

#[test]
fn every_place_in_the_table_has_its_crate() {
    let graph = workspace();
    let empty = ORDER.iter().filter(|pattern| {
        let start = pattern.trim_end_matches('*');
        !graph.keys().any(|folder| folder == *pattern || start != **pattern && folder.starts_with(start))
    });
    assert_eq!(empty.collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn each_model_crate_forbids_unsafe_code() {
    let models = ORDER.iter().filter(|folder| folder.starts_with("crates/model/"));
    let is_without = |folder: &&&str| {
        let root = format!("{}/../../{folder}/src/lib.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(root).expect("a crate has a root");
        !source.lines().any(|line| line == "#![forbid(unsafe_code)]")
    };
    assert_eq!(models.filter(is_without).collect::<Vec<_>>(), Vec::<&&str>::new());
}

fn graph(uses: &[(&str, &[&str])]) -> CrateGraph {
    uses.iter().map(|(user, used)| ((*user).to_owned(), used.iter().map(|u| (*u).to_owned()).collect())).collect()
}

#[test]
fn a_good_graph_passes() {
    let good = graph(&[
        ("crates/base/wire", &[]),
        ("crates/base/sys", &["crates/base/wire"]),
        ("crates/tool/agents/region", &["crates/base/wire"]),
        ("crates/tool/launch", &["crates/base/sys", "crates/base/wire"]),
        ("crates/tool/cli", &["crates/tool/launch", "crates/tool/report"]),
        ("bench/workloads", &[]),
    ]);
    assert_eq!(violations(&good), Vec::<String>::new());
}

#[test]
fn each_kind_of_wrong_use_is_named() {
    for (user, used, complaint) in [
        ("crates/base/wire", "crates/base/sys", "not below it"),
        ("crates/base/sys", "crates/tool/report", "not below it"),
        ("crates/model/rewrite", "crates/lib/pages", "not below it"),
        ("crates/lib/blocks", "crates/tool/report", "not below it"),
        ("crates/tool/launch", "crates/tool/cli", "not below it"),
        ("crates/tool/cli", "bench/targets", "not below it"),
        ("crates/tool/cli", "crates/tool/agents/region", "carried as bytes"),
        ("crates/tool/launch", "crates/tool/agents/repair", "carried as bytes"),
        ("crates/lib/blocks", "bench/peers", "not below it"),
        ("crates/tool/cli", "tests/layers", "not below it"),
    ] {
        let found = violations(&graph(&[(user, &[used])]));
        assert!(found.len() == 1 && found[0].contains(complaint), "{user}, {used}: {found:?}");
    }
    let found = violations(&graph(&[("crates/new", &["crates/base/wire"])]));
    assert!(found.len() == 1 && found[0].contains("has no layer"), "{found:?}");
}
