//! Which programs are held against which, cell by cell. All have two threads, each on a processor of its own.

/// What the repair is expected to have done when the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expects {
    /// At least one line is parted.
    Repaired,
    /// No line is.
    Untouched,
}

impl Expects {
    /// Whether `lines` parted lines are as expected.
    pub(super) const fn is_met_by(self, lines: usize) -> bool {
        match self {
            Self::Repaired => lines > 0,
            Self::Untouched => lines == 0,
        }
    }

    /// What runs did that were not as expected.
    pub(super) const fn broken(self) -> &'static str {
        match self {
            Self::Repaired => "without a repaired line",
            Self::Untouched => "with lines parted that are not shared falsely",
        }
    }
}

/// Which time is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// That of the threads, as the program prints it: what it does before and after in one thread would hide the difference.
    Kernel,
    /// That of the whole run, with what starting and ending the repair takes.
    Clock,
}

/// A program's last arguments, which say how much it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) option: &'static str,
    pub(super) number: u64,
}

/// A program under repair against the same program without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    pub(super) goal: &'static str,
    pub(super) part: &'static str,
    /// Below the directory of this program.
    pub(super) program: &'static str,
    /// What makes the repaired run.
    pub(super) repaired: &'static str,
    /// What makes the run without repair.
    pub(super) plain: &'static str,
    /// Where to begin; it grows until the run without repair takes long enough.
    pub(super) size: Size,
    pub(super) time: Time,
    pub(super) expects: Expects,
}

const ITERATIONS: Size = Size { option: "--iterations", number: 100_000_000 };
const ROUNDS: Size = Size { option: "--points 20000000 --rounds", number: 10 };
const PASSES: Size = Size { option: "--words 4000000 --rounds", number: 10 };
/// The last argument has no name.
const BARE: &str = "";

const OPTIMISED: &str = "padded_over_repaired_O1_O2_atomics";
const PLAIN: &str = "padded_over_repaired_O0";

/// One that fights against the same one padded by hand.
const fn padded(goal: &'static str, part: &'static str, program: &'static str) -> Contest {
    Contest {
        goal,
        part,
        program,
        repaired: "--pin",
        plain: "--pin --pattern padded",
        size: ITERATIONS,
        time: Time::Kernel,
        expects: Expects::Repaired,
    }
}

/// One that has nothing to repair against itself.
const fn unrepairable(goal: &'static str, part: &'static str, program: &'static str, words: &'static str) -> Contest {
    Contest {
        repaired: words,
        plain: words,
        time: Time::Clock,
        expects: Expects::Untouched,
        ..padded(goal, part, program)
    }
}

/// The cells but those that are no pairs of runs.
pub(super) const CONTESTS: [Contest; 13] = [
    padded(OPTIMISED, "counters -O1", "sharing/counters-O1"),
    padded(OPTIMISED, "counters -O2", "sharing/counters-O2"),
    Contest {
        repaired: "--pin --atomic --globals",
        plain: "--pin --atomic --globals --pattern padded",
        ..padded(OPTIMISED, "counters -O2, lock add, globals", "sharing/counters-O2")
    },
    // Where malloc puts it; at -O2 the sums stay in registers.
    Contest {
        repaired: "--pin --shift 16",
        plain: "--pin --padded",
        size: ROUNDS,
        ..padded(OPTIMISED, "linear_regression -O1", "sharing/linear_regression-O1")
    },
    padded(PLAIN, "counters", "sharing/counters-O0"),
    Contest {
        repaired: "--pin --shift 16",
        plain: "--pin --padded",
        size: ROUNDS,
        ..padded(PLAIN, "linear_regression", "sharing/linear_regression-O0")
    },
    Contest {
        repaired: "--pin --reenter 100",
        plain: "--pin --reenter 100 --pattern padded",
        ..padded("reentry_100_vs_padded", "counters -O2", "sharing/counters-O2")
    },
    Contest {
        repaired: "--pin --reenter 10",
        plain: "--pin --reenter 10 --pattern padded",
        ..padded("reentry_10_vs_padded", "counters -O2", "sharing/counters-O2")
    },
    unrepairable("clean_program_cost", "counters -O2, padded", "sharing/counters-O2", "--pin --pattern padded"),
    Contest {
        size: PASSES,
        ..unrepairable("clean_program_cost", "string_match -O2, padded", "sharing/string_match-O2", "--pin --padded")
    },
    Contest {
        size: Size { option: BARE, number: 1000 },
        ..unrepairable("clean_program_cost", "blackscholes", "blackscholes", "10000")
    },
    Contest {
        size: Size { option: BARE, number: 10_000_000 },
        ..unrepairable("clean_program_cost", "chase", "chase", "64M")
    },
    unrepairable("no_gain_cost", "counters -O2, one counter", "sharing/counters-O2", "--pin --pattern same"),
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

    /// That a program of C, built at some level, knows these words.
    pub(in crate::sharing) fn check_words(program: &str, words: &[&str]) {
        let built = program.strip_prefix("sharing/").expect("it lies where programs of C do");
        let (name, level) = built.split_once("-O").expect("it is built at a level of optimisation");
        assert!(matches!(level, "0" | "1" | "2" | "3"), "{built}");
        let known = source(&format!("sharing/{name}.c")) + &source("sharing/threads.h");
        for word in words.iter().flat_map(|words| words.split_whitespace()) {
            let is_known = word.parse::<u64>().is_ok() || known.contains(&format!("\"{word}\""));
            assert!(is_known, "{name} does not know {word}");
        }
    }

    #[test]
    fn the_programs_of_c_know_their_words() {
        let of_c = || CONTESTS.iter().filter(|contest| contest.program.contains('/'));
        assert!(of_c().count() > 9);
        of_c()
            .for_each(|contest| check_words(contest.program, &[contest.repaired, contest.plain, contest.size.option]));
    }

    #[test]
    fn cells_of_a_goal_have_names_of_their_own() {
        let mut names: Vec<_> = CONTESTS.iter().map(|contest| (contest.goal, contest.part)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CONTESTS.len());
    }
}
