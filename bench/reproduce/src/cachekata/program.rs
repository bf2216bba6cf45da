//! The C programs: file, forms and size of each.

/// How a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One thread, the reference for linear speedup.
    Alone,
    /// All threads, unchanged.
    Shared,
    /// The same under `run --repair`.
    Repaired,
    /// The same under repair by a single ladder per access instead of clones.
    Ladder,
    /// Padded by hand: the element of each thread has its own lines.
    Padded,
}

/// A program at a level of optimisation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharingProgram {
    /// Its name in ids.
    pub(super) id: &'static str,
    /// Its name as a column.
    pub(super) column: &'static str,
    /// The name of its file.
    pub(super) file: &'static str,
    /// The arguments for false sharing, in addition to those below.
    pub(super) shared: &'static [&'static str],
    /// The arguments for padding, instead of `shared`; `None` if it has no padded form.
    pub(super) padded: Option<&'static [&'static str]>,
    /// The option for the size of its data, and the size per thread.
    pub(super) size: Option<(&'static str, u64)>,
    /// The option for the amount of work.
    pub(super) amount: &'static str,
    /// Whether the paper counts it among the known examples of false sharing.
    pub(super) is_known: bool,
}

impl SharingProgram {
    /// The arguments for a form, a number of threads and an amount of work.
    pub(super) fn arguments(&self, form: Form, threads: u64, amount: u64) -> Vec<String> {
        let threads = if form == Form::Alone { 1 } else { threads };
        let own = if form == Form::Padded { self.padded.unwrap_or_default() } else { self.shared };
        let size = self.size.map(|(option, a_thread)| (option, a_thread * threads));
        let numbers = [("--threads", threads), (self.amount, amount)].into_iter().chain(size);
        let numbers = numbers.flat_map(|(option, number)| [option.to_owned(), number.to_string()]);
        own.iter().map(|&word| word.to_owned()).chain(["--pin".to_owned()]).chain(numbers).collect()
    }
}

/// An upper bound of the memory of a run: data, stacks, tables of the kernel.
pub(super) const fn memory_bytes(threads: u64) -> u64 {
    (16 << 20) + threads * (8 << 20)
}

/// The column of a number of threads.
pub(super) fn threads_column(threads: u64) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

const fn synthetic(id: &'static str, column: &'static str, file: &'static str) -> SharingProgram {
    SharingProgram {
        id,
        column,
        file,
        shared: &["--pattern", "own"],
        padded: Some(&["--pattern", "padded"]),
        size: None,
        amount: "--iterations",
        is_known: true,
    }
}

const fn padded(
    id: &'static str,
    column: &'static str,
    file: &'static str,
    option: &'static str,
    a_thread: u64,
) -> SharingProgram {
    SharingProgram {
        id,
        column,
        file,
        shared: &[],
        padded: Some(&["--padded"]),
        size: Some((option, a_thread)),
        amount: "--rounds",
        is_known: false,
    }
}

const fn regression(id: &'static str, column: &'static str, file: &'static str) -> SharingProgram {
    padded(id, column, file, "--points", 500_000)
}

/// The program of Figures 4.2, 6.1 and 6.2. Its array begins at byte 16 of a line, as in Figure
/// 4.1.
pub(super) const LINEAR_REGRESSION: SharingProgram = SharingProgram {
    shared: &["--shift", "16"],
    is_known: true,
    ..regression("linear-regression-O0", "linear regression -O0", "linear_regression-O0")
};

/// The programs of Figure 6.3, one per optimisation level.
pub(super) const ALL: [SharingProgram; 12] = [
    synthetic("synthetic-O0", "synthetic -O0", "counters-O0"),
    synthetic("synthetic-O2", "synthetic -O2", "counters-O2"),
    SharingProgram { shared: &[], ..LINEAR_REGRESSION },
    regression("linear-regression-O1", "linear regression -O1", "linear_regression-O1"),
    regression("linear-regression-O2", "linear regression -O2", "linear_regression-O2"),
    regression("linear-regression-O3", "linear regression -O3", "linear_regression-O3"),
    SharingProgram {
        shared: &["--shift", "24"],
        is_known: true,
        ..regression("linear-regression-O0-24", "linear regression -O0, 24 bytes on", "linear_regression-O0")
    },
    SharingProgram {
        shared: &["--shift", "24"],
        ..regression("linear-regression-O1-24", "linear regression -O1, 24 bytes on", "linear_regression-O1")
    },
    SharingProgram { padded: None, ..padded("histogram-O2", "histogram -O2", "histogram-O2", "--pixels", 500_000) },
    padded("string-match-O2", "string match -O2", "string_match-O2", "--words", 125_000),
    padded("word-count-O2", "word count -O2", "word_count-O2", "--words", 125_000),
    padded("streamcluster-O2", "streamcluster -O2", "streamcluster-O2", "--points", 200_000),
];
