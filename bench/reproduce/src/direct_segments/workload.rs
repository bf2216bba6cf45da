//! The paper's six workloads, as large as a quarter of an hour allows.

use crate::experiment::Scale;

/// What runs, and where its numbers stand.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// In the cell's id: the program and its size, since a size is other work.
    pub(super) id: String,
    /// Its column, spelt as in the paper's table of costs.
    pub(super) column: &'static str,
    /// Its line in the paper's tables of permissions, of costs and of misses in the segment: each has its own spelling. None for a
    /// workload that only stands in the scaling of GUPS.
    pub(super) paper: Option<[&'static str; 3]>,
    /// All that is in memory at once.
    pub(super) memory_bytes: u64,
    /// What is started.
    pub(super) job: Job,
}

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A bundled program and its arguments.
    Bundled(Vec<String>),
    /// GUPS with a table of this size in bytes, in its column of the scaling.
    Gups {
        /// Of the scaling.
        column: &'static str,
        bytes: u64,
    },
    /// memcached under memcaslap.
    Memcached {
        /// Gets and sets together.
        operations: u32,
    },
    /// MariaDB under transactions.
    MariaDb {
        /// TPC-C's measure of size, each a tenth of its own.
        warehouses: u32,
        transactions: u32,
    },
}

impl Job {
    /// Updates of GUPS: enough that the walks of filling and checking the table, three passes in order, are 1 in 20 at most.
    pub(super) fn updates(&self) -> Option<u64> {
        if let Self::Gups { bytes, .. } = self { Some(bytes / 64) } else { None }
    }
}

/// The workloads of a scale, in the paper's order, and GUPS once for each size.
pub(super) fn all(scale: Scale) -> Vec<Workload> {
    let full = scale == Scale::Full;
    let of = |full_size, quick_size| if full { full_size } else { quick_size };
    let (graph, cube, matrix) = (of("19", "16"), of("128M", "16M"), of("128M", "16M"));
    let (operations, warehouses, transactions) = if full { (300_000, 20, 1_500) } else { (30_000, 2, 100) };
    let bundled = |words: &[&str]| Job::Bundled(words.iter().map(|&word| word.to_owned()).collect());
    let mut all = vec![
        workload("graph500", "graph500", ["graph500"; 3], 1 << 30, bundled(&["bfs", graph, "--roots", "4"]), graph),
        workload("memcached", "memcached", ["memcached"; 3], 2 << 30, Job::Memcached { operations }, of("300k", "30k")),
        workload(
            "mysql",
            "MySQL",
            ["MySQL", "MySQL", "mySQL"],
            2 << 30,
            Job::MariaDb { warehouses, transactions },
            of("20", "2"),
        ),
        workload("bt", "NPB:BT", ["NPB/BT", "NPB:BT", "NBP:BT"], 1 << 30, bundled(&["bt", cube, "1"]), cube),
        workload("cg", "NPB:CG", ["NPB/CG", "NPB:CG", "NBP:CG"], 1 << 30, bundled(&["cg", matrix, "1"]), matrix),
    ];
    all.extend(sizes(full).iter().map(|&(label, column, bytes, is_in_all)| Workload {
        paper: is_in_all.then_some(["GUPS"; 3]),
        ..workload("gups", "GUPS", ["GUPS"; 3], bytes + (1 << 29), Job::Gups { column, bytes }, label)
    }));
    all
}

/// Tables of GUPS: in the id, as a column, in bytes, and whether it is the one that stands beside the other workloads.
const fn sizes(full: bool) -> &'static [(&'static str, &'static str, u64, bool)] {
    if full {
        &[
            ("64M", "64 MiB", 64 << 20, false),
            ("256M", "256 MiB", 256 << 20, false),
            ("1G", "1 GiB", 1 << 30, true),
            ("2G", "2 GiB", 2 << 30, false),
        ]
    } else {
        &[("16M", "16 MiB", 16 << 20, false), ("128M", "128 MiB", 128 << 20, true)]
    }
}

fn workload(
    name: &str,
    column: &'static str,
    paper: [&'static str; 3],
    memory_bytes: u64,
    job: Job,
    size: &str,
) -> Workload {
    Workload { id: format!("{name}/{size}"), column, paper: Some(paper), memory_bytes, job }
}
