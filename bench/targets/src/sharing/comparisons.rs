//! The compared programs, cell by cell. All have two threads on separate processors.

use fieldstone_repair::RepairEvent;

use super::repair_record::{RepairedRun, separated_lines, was_separated};

/// The expected repair at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedRepair {
    /// At least one line is separated at the end, or for most of the time.
    Separated,
    /// No page is moved.
    NothingMoved,
    /// Pages were moved, and all are restored.
    Restored,
    /// Any repair.
    Any,
}

impl ExpectedRepair {
    /// Whether the repair is as expected, and whether there were any samples: without samples
    /// nothing was tested.
    pub(super) fn is_met_by(self, RepairedRun { run, stats }: &RepairedRun) -> bool {
        let moved = stats.events.iter().any(|event| matches!(event.kind, RepairEvent::PageMoved { .. }));
        let in_force = separated_lines(&stats.events) > 0;
        let is_met = match self {
            Self::Separated => was_separated(&stats.events, run.threads_s()),
            Self::NothingMoved => !moved,
            Self::Restored => moved && !in_force,
            Self::Any => true,
        };
        is_met && stats.sampling.samples > 0
    }

    /// A description of runs that do not meet the expectation.
    pub(super) const fn failure_text(self) -> &'static str {
        match self {
            Self::Separated => "without a repaired line",
            Self::NothingMoved => "without samples, or with pages moved without false sharing",
            Self::Restored => "without a page moved and restored",
            Self::Any => "without samples",
        }
    }
}

/// The compared time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// Time of the threads, as the program prints it, because serial parts would hide the
    /// difference.
    Kernel,
    /// Wall time of the whole run, including start and end of the repair.
    Clock,
}

/// The last arguments of a program, which set the amount of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkSize {
    pub(super) option: &'static str,
    pub(super) number: u64,
}

/// A program under repair against the same program without it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) goal: &'static str,
    pub(super) case: &'static str,
    /// Path below the directory of this program.
    pub(super) program: &'static str,
    /// Arguments of the repaired run.
    pub(super) repaired: &'static str,
    /// Arguments of the plain run.
    pub(super) plain: &'static str,
    /// Initial amount of work; it grows until the plain run is long enough.
    pub(super) size: WorkSize,
    pub(super) time: Time,
    pub(super) expected_repair: ExpectedRepair,
}

const ITERATIONS: WorkSize = WorkSize { option: "--iterations", number: 100_000_000 };
const ROUNDS: WorkSize = WorkSize { option: "--points 20000000 --rounds", number: 10 };
const PASSES: WorkSize = WorkSize { option: "--words 4000000 --rounds", number: 10 };
/// The last argument without an option name.
const BARE: &str = "";

const OPTIMISED: &str = "padded_over_repaired_O1_O2_atomics";
const PLAIN: &str = "padded_over_repaired_O0";
pub(super) const CLEAN: &str = "clean_program_cost";
const NO_GAIN: &str = "no_gain_cost";

/// A program with false sharing against its hand-padded form.
const fn padded(goal: &'static str, case: &'static str, program: &'static str) -> Comparison {
    Comparison {
        goal,
        case,
        program,
        repaired: "--pin",
        plain: "--pin --pattern padded",
        size: ITERATIONS,
        time: Time::Kernel,
        expected_repair: ExpectedRepair::Separated,
    }
}

/// A program without anything to repair, against itself.
const fn unrepairable(
    goal: &'static str,
    case: &'static str,
    program: &'static str,
    arguments: &'static str,
) -> Comparison {
    Comparison {
        repaired: arguments,
        plain: arguments,
        time: Time::Clock,
        expected_repair: ExpectedRepair::NothingMoved,
        ..padded(goal, case, program)
    }
}

/// The cells that are pairs of runs.
pub(super) const COMPARISONS: [Comparison; 14] = [
    padded(OPTIMISED, "counters -O1", "sharing/counters-O1"),
    padded(OPTIMISED, "counters -O2", "sharing/counters-O2"),
    Comparison {
        repaired: "--pin --atomic --globals",
        plain: "--pin --atomic --globals --pattern padded",
        ..padded(OPTIMISED, "counters -O2, lock add, globals", "sharing/counters-O2")
    },
    // At the alignment of malloc; at -O2 the sums stay in registers.
    Comparison {
        repaired: "--pin --shift 16",
        plain: "--pin --padded",
        size: ROUNDS,
        ..padded(OPTIMISED, "linear_regression -O1", "sharing/linear_regression-O1")
    },
    padded(PLAIN, "counters", "sharing/counters-O0"),
    Comparison {
        repaired: "--pin --shift 16",
        plain: "--pin --padded",
        size: ROUNDS,
        ..padded(PLAIN, "linear_regression", "sharing/linear_regression-O0")
    },
    Comparison {
        repaired: "--pin --reenter 100",
        plain: "--pin --reenter 100 --pattern padded",
        ..padded("reentry_100_vs_padded", "counters -O2", "sharing/counters-O2")
    },
    Comparison {
        repaired: "--pin --reenter 10",
        plain: "--pin --reenter 10 --pattern padded",
        ..padded("reentry_10_vs_padded", "counters -O2", "sharing/counters-O2")
    },
    unrepairable(CLEAN, "counters -O2, padded", "sharing/counters-O2", "--pin --pattern padded"),
    Comparison {
        size: PASSES,
        ..unrepairable(CLEAN, "string_match -O2, padded", "sharing/string_match-O2", "--pin --padded")
    },
    Comparison {
        size: WorkSize { option: BARE, number: 1000 },
        ..unrepairable(CLEAN, "blackscholes", "blackscholes", "10000")
    },
    Comparison { size: WorkSize { option: BARE, number: 10_000_000 }, ..unrepairable(CLEAN, "chase", "chase", "64M") },
    unrepairable(NO_GAIN, "counters -O2, one counter", "sharing/counters-O2", "--pin --pattern same"),
    Comparison {
        expected_repair: ExpectedRepair::Restored,
        ..unrepairable(NO_GAIN, "counters -O2, read by the kernel", "sharing/counters-O2", "--pin --save 100000")
    },
];

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn source(path: &str) -> String {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/src").join(path);
        fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Checks that a C program knows these options.
    pub(in crate::sharing) fn check_options(program: &str, words: &[&str]) {
        let built = program.strip_prefix("sharing/").expect("C programs are in this directory");
        let (name, level) = built.split_once("-O").expect("the name has an optimisation level");
        assert!(matches!(level, "0" | "1" | "2" | "3"), "{built}");
        let known = source(&format!("sharing/{name}.c")) + &source("sharing/threads.h");
        for word in words.iter().flat_map(|words| words.split_whitespace()) {
            let is_known = word.parse::<u64>().is_ok() || known.contains(&format!("\"{word}\""));
            assert!(is_known, "{name} does not know {word}");
        }
    }

    #[test]
    fn c_programs_know_their_options() {
        let of_c = || COMPARISONS.iter().filter(|comparison| comparison.program.contains('/'));
        assert!(of_c().count() > 9);
        of_c().for_each(|comparison| {
            check_options(comparison.program, &[comparison.repaired, comparison.plain, comparison.size.option])
        });
    }

    #[test]
    fn cells_of_a_goal_have_different_names() {
        let mut names: Vec<_> = COMPARISONS.iter().map(|comparison| (comparison.goal, comparison.case)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMPARISONS.len());
    }
}
