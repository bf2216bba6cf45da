//! The six workloads of the paper, sized for runs of a quarter of an hour.

use crate::experiment::Scale;

/// A program, and the place of its numbers in the tables.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// Its name in ids: the program and its size, because another size is other work.
    pub(super) id: String,
    /// Its column, in the spelling of the paper's table of costs.
    pub(super) column: &'static str,
    /// Its line in the paper's tables of permissions, costs and misses in the segment, in the
    /// spelling of each. `None` for a workload of the scaling of GUPS only.
    pub(super) paper: Option<[&'static str; 3]>,
    /// The memory of all its processes.
    pub(super) memory_bytes: u64,
    /// The program to start.
    pub(super) job: Job,
}

/// The program of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A bundled program and its arguments.
    Bundled(Vec<String>),
    /// GUPS.
    Gups {
        /// Its column in the scaling.
        column: &'static str,
        /// Size of its table.
        bytes: u64,
    },
    /// memcached under memcaslap.
    Memcached {
        /// Number of gets and sets.
        operations: u32,
    },
    /// MariaDB under transactions.
    MariaDb {
        /// The size in warehouses, each a tenth of one of TPC-C.
        warehouses: u32,
        /// Number of transactions.
        transactions: u32,
    },
}

impl Job {
    /// Number of updates of GUPS. Filling and checking the table, three sequential passes, causes
    /// at most 5 % of the walks.
    pub(super) fn updates(&self) -> Option<u64> {
        if let Self::Gups { bytes, .. } = self { Some(bytes / 64) } else { None }
    }
}

/// The workloads of a scale in the order of the paper, and GUPS once per size.
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

/// Tables of GUPS: name in the id, column, bytes, and whether it is listed among the other
/// workloads.
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
