//! Which programs are held against which, cell by cell. All have two threads, each on a processor of its own.

use fieldstone_repair::Happened;

use super::repair::{Repaired, lines_in_force, was_parted};

/// What the repair is expected to have done when the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expects {
    /// At least one line is parted, in the end or for most of the time.
    Repaired,
    /// No page is moved.
    Untouched,
    /// Pages are moved, and are all back.
    TakenBack,
    /// Whatever there is to do.
    Anything,
}

impl Expects {
    /// Whether that is what was done; and whether anything was looked at: else nothing was done for want of a repairer.
    pub(super) fn is_met_by(self, Repaired { run, stats }: &Repaired) -> bool {
        let moved = stats.events.iter().any(|event| matches!(event.what, Happened::Moved { .. }));
        let in_force = lines_in_force(&stats.events) > 0;
        let is_met = match self {
            Self::Repaired => was_parted(&stats.events, run.threads_s()),
            Self::Untouched => !moved,
            Self::TakenBack => moved && !in_force,
            Self::Anything => true,
        };
        is_met && stats.seen.samples > 0
    }

    /// What runs did that were not as expected.
    pub(super) const fn broken(self) -> &'static str {
        match self {
            Self::Repaired => "without a repaired line",
            Self::Untouched => "unseen, or with pages moved that share nothing falsely",
            Self::TakenBack => "without a page moved and taken back",
            Self::Anything => "unseen",
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
pub(super) const CLEAN: &str = "clean_program_cost";
const NO_GAIN: &str = "no_gain_cost";

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
pub(super) const CONTESTS: [Contest; 14] = [
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
    unrepairable(CLEAN, "counters -O2, padded", "sharing/counters-O2", "--pin --pattern padded"),
    Contest {
        size: PASSES,
        ..unrepairable(CLEAN, "string_match -O2, padded", "sharing/string_match-O2", "--pin --padded")
    },
    Contest {
        size: Size { option: BARE, number: 1000 },
        ..unrepairable(CLEAN, "blackscholes", "blackscholes", "10000")
    },
    Contest { size: Size { option: BARE, number: 10_000_000 }, ..unrepairable(CLEAN, "chase", "chase", "64M") },
    unrepairable(NO_GAIN, "counters -O2, one counter", "sharing/counters-O2", "--pin --pattern same"),
    Contest {
        expects: Expects::TakenBack,
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
