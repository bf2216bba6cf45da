//! What to do about a profile: one advice, and notes. Each names its remedy, and says what to do
//! next.

use crate::quantity::{bytes, count, percent, seconds, share};
use crate::{Difference, shell};
use serde::Serialize;
use std::fmt;

/// A smaller growth of resident memory is not reported with a gain.
const NOTEWORTHY_GROWTH: f64 = 0.05;

/// Something to do, or to know. Fractions are of 1; `command` is ready for a shell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "advice", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Advice {
    /// This page kind is faster.
    Run {
        /// The kind.
        kind: String,
        /// Part of the baseline's time that it saves.
        gain: f64,
        /// What the metric is called.
        metric: String,
        /// How much more memory is resident on it, as a part of the baseline's; none where that is
        /// not known.
        growth: Option<f64>,
        /// The command that runs the program on it.
        command: String,
    },
    /// No page kind is faster.
    NothingToGain {
        /// Whether some are slower, and not only no better.
        some_slower: bool,
    },
    /// The differences are smaller than the noise.
    TooNoisy {
        /// How far two neighbouring baseline runs usually are apart.
        noise: f64,
        /// Runs of each kind that should be enough; `None` if that are too many.
        runs: Option<usize>,
        /// Whether wall-clock time was compared, which other programs make longer.
        by_the_clock: bool,
    },
    /// There are too few runs for an interval.
    NotEnoughRuns {
        /// Pairs there are.
        have: usize,
        /// Pairs that it takes.
        need: usize,
    },
    /// Nothing could be compared: no page kind but the baseline was measured.
    NothingToCompare {
        /// The other kinds, each of which is unavailable; empty if none was requested.
        unavailable: Vec<String>,
    },
    /// The program fails on the baseline.
    BaselineFails {
        /// How it ends.
        outcome: String,
    },
    /// Later runs did not do what the first one did.
    NotRepeatable {
        /// What differed.
        what: Difference,
        /// Number of the first run that differs; the very first run is number 1.
        run: u32,
        /// What the very first run did.
        first: String,
        /// What that later run did.
        later: String,
        /// The command that undoes, before each run, what a run leaves behind.
        remedy: String,
    },
    /// The program fails on this page kind only.
    Fails {
        /// The kind.
        kind: String,
        /// How it ended.
        outcome: String,
        /// How often.
        runs: u32,
        /// How it usually ends.
        usual: String,
    },
    /// Runs were stopped at the time limit.
    TimedOut {
        /// The kind.
        kind: String,
        /// The limit, in seconds.
        limit_s: f64,
        /// How often.
        runs: u32,
    },
    /// The traced run failed.
    NotTraced {
        /// What went wrong.
        why: String,
    },
    /// The same page kind gave different output from run to run.
    OutputVaries {
        /// The kind.
        kind: String,
    },
    /// This page kind gave another output than the baseline.
    OutputDiffers {
        /// The kind.
        kind: String,
    },
    /// The program ends with a failure code on every page kind.
    UnusualEnd {
        /// How it ends.
        outcome: String,
    },
    /// The page kind could not be measured.
    Unavailable {
        /// The kind.
        kind: String,
        /// Why, and the remedy.
        reason: String,
    },
    /// Huge pages were requested, and the kernel gave other pages.
    PagesNotGot {
        /// The requested kind.
        kind: String,
        /// Memory in such pages.
        got_bytes: u64,
        /// Memory altogether.
        of_bytes: u64,
        /// Bytes of the requests for which the pool had too few pages; 0 if it had enough.
        fell_back_bytes: u64,
        /// Most memory that the region had mapped at one time, in bytes, if the pool was too small.
        mapped_bytes: u64,
    },
    /// Memory moved from hugetlb to ordinary pages, because of a fork or a call for a part of a
    /// huge page.
    Demoted {
        /// The kind.
        kind: String,
        /// How much.
        bytes: u64,
    },
    /// The program's memory mostly stayed outside its region.
    OutsideRegion {
        /// The kind.
        kind: String,
        /// Part of the private read-write memory that is inside, or is served in place.
        served: f64,
        /// The reason for which most memory was resident outside.
        reason: String,
    },
    /// The program has switched transparent huge pages off for itself.
    Disabled {
        /// The kind.
        kind: String,
    },
    /// The program was swapped out.
    Swapped {
        /// The kind on which it was swapped most.
        kind: String,
        /// The most at one time.
        bytes: u64,
    },
    /// The page kind takes more memory.
    MoreResident {
        /// The kind.
        kind: String,
        /// How much more, as a part of the baseline's.
        more: f64,
        /// How much more.
        bytes: u64,
    },
    /// Most of the gain is time in the kernel.
    FirstTouch {
        /// The kind.
        kind: String,
        /// Kernel time saved a run, in seconds.
        saved_s: f64,
        /// Part of the gain that it makes.
        part: f64,
        /// Page faults on the baseline.
        faults_before: u64,
        /// Page faults on this kind.
        faults_after: u64,
    },
    /// The runs are too short to say much.
    ShortRuns {
        /// The baseline's median, in seconds.
        value_s: f64,
    },
    /// The machine is virtual.
    VirtualMachine,
}

impl Advice {
    /// The command that measures `command` again, each run after what undoes the last one.
    pub(crate) fn repeated(command: &[String]) -> String {
        let line = format!("UNDO; exec {}", shell::join(command));
        format!("fieldstone profile -- sh -c {}", shell::quote(&line))
    }

    /// The command that runs `command` with its memory in pages of `kind`.
    ///
    /// What is `reserved` for it is set aside for the run, in whole pieces of 64 MiB.
    pub fn command(kind: &str, reserved: Option<u64>, command: &[String]) -> String {
        let reserve = reserved.map(|bytes| format!(" --reserve {}M", reserved_mib(bytes))).unwrap_or_default();
        format!("fieldstone run --region --pages {}{reserve} -- {}", shell::quote(kind), shell::join(command))
    }

    /// Whether it reports a finding, which sets the exit code of `fieldstone profile`.
    pub const fn is_finding(&self) -> bool {
        matches!(
            self,
            Self::Fails { .. }
                | Self::TimedOut { .. }
                | Self::NotTraced { .. }
                | Self::OutputVaries { .. }
                | Self::OutputDiffers { .. }
        )
    }

    /// The sentence and the command at its end apart, for where a command stands on a line of its
    /// own.
    pub fn parts(&self) -> (String, Option<&str>) {
        let text = self.to_string();
        match self {
            Self::Run { command, .. } | Self::NotRepeatable { remedy: command, .. } => {
                (text.strip_suffix(command.as_str()).unwrap_or(&text).trim_end().to_owned(), Some(command))
            }
            _ => (text, None),
        }
    }
}

impl fmt::Display for Advice {
    #[allow(clippy::too_many_lines, reason = "one arm a variant, and each only words")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { kind, gain, metric, growth, command } => {
                write!(f, "{} less {metric} on {kind} pages", percent(*gain))?;
                if let Some(growth) = growth.filter(|growth| *growth >= NOTEWORTHY_GROWTH) {
                    write!(f, ", for {} more resident memory", percent(growth))?;
                }
                write!(f, ". Run it like this: {command}")
            }
            Self::NothingToGain { some_slower: false } => write!(
                f,
                "There is nothing to gain: no page kind changes its time by more than 2 %. Leave it on 4 KiB pages."
            ),
            Self::NothingToGain { some_slower: true } => write!(
                f,
                "There is nothing to gain: no page kind is faster, and some are slower. Leave it on 4 KiB pages."
            ),
            Self::TooNoisy { noise, runs, by_the_clock } => write_too_noisy(f, *noise, *runs, *by_the_clock),
            Self::NotEnoughRuns { have, need } => write!(
                f,
                "Too few runs for an interval ({have} of {need} pairs): measure again with --runs {need} or more."
            ),
            Self::NothingToCompare { unavailable } if !unavailable.is_empty() => write!(
                f,
                "Nothing could be compared: {} could not be measured here. The notes have the reason and the remedy; `fieldstone doctor` lists the kinds that work.",
                unavailable.join(", ")
            ),
            Self::NothingToCompare { .. } => write!(
                f,
                "Nothing could be compared: only 4 KiB pages were measured. Name another kind, such as --pages thp; `fieldstone doctor` prints what each needs."
            ),
            Self::BaselineFails { outcome } => write!(
                f,
                "The program itself fails ({outcome} on plain 4 KiB pages): fix that first; the times of a failing program mean nothing."
            ),
            Self::NotRepeatable { what, run, first, later, remedy } => {
                let differs = match what {
                    Difference::End => format!("Run {run} ended with {later}, and run 1 with {first}"),
                    Difference::Output => format!("Run {run} and all later ones printed something else than run 1"),
                    Difference::Time => format!("Run {run} took {later} of processor time, and run 1 {first}"),
                };
                write!(
                    f,
                    "No verdict: {differs}. The program does not repeat the same work, so its times cannot be compared. \
                     Undo before each run what a run leaves behind (files, a database), and measure again: {remedy}"
                )
            }
            Self::Fails { kind, outcome, runs, usual } => write!(
                f,
                "On {kind} the program ended with {outcome} in {}, and usually ends with {usual}: do not run it on {kind}.",
                times(*runs)
            ),
            Self::TimedOut { kind, limit_s, runs } => write!(
                f,
                "On {kind}, {} took longer than {} and {} stopped: give more with --timeout, or a smaller job.",
                times(*runs),
                seconds(*limit_s),
                if *runs == 1 { "was" } else { "were" }
            ),
            Self::NotTraced { why } => write!(f, "No page walks are reported: {why}"),
            Self::OutputVaries { kind } => write!(
                f,
                "Its output differs from run to run on the same pages ({kind}), so the output cannot be compared between page kinds: fix its seed, or leave out --check-output."
            ),
            Self::OutputDiffers { kind } => write!(
                f,
                "On {kind} it printed something else than on 4 KiB pages: do not run it on {kind} before you know why; compare the two outputs."
            ),
            Self::UnusualEnd { outcome } => write!(
                f,
                "The program usually ends with {outcome}: if that does not mean success here, fix the command; the times of a failing program mean nothing."
            ),
            Self::Unavailable { kind, reason } => write!(f, "{kind} could not be measured: {reason}"),
            Self::PagesNotGot { kind, got_bytes, of_bytes, fell_back_bytes, mapped_bytes } => {
                write_not_got(f, kind, *got_bytes, *of_bytes)?;
                write_why_not_got(f, *fell_back_bytes, *mapped_bytes)
            }
            Self::Demoted { kind, bytes: moved } => write!(
                f,
                "On {kind}, {} moved from hugetlb to ordinary pages, because a fork or a call for a part of a huge page (munmap, mprotect) needs those. Try --pages thp: there all memory stays on huge pages.",
                bytes(*moved)
            ),
            Self::OutsideRegion { kind, served, reason } => write!(
                f,
                "On {kind} only {} of its read-write memory was in the region or served in place; the reason for most of the rest: {reason}. Other memory gains nothing; `fieldstone run --region --stats FILE` lists the reasons.",
                share(*served)
            ),
            Self::Disabled { kind } => write!(
                f,
                "On {kind} the program has switched transparent huge pages off for itself (PR_SET_THP_DISABLE), so it was on small pages: --also disabled switches them on again, --pages hugetlb is not affected."
            ),
            Self::Swapped { kind, bytes: swapped } => write!(
                f,
                "Up to {} was swapped out ({kind}): memory is short, and huge pages do not change that. Give it more memory or a smaller working set, and measure again.",
                bytes(*swapped)
            ),
            Self::MoreResident { kind, more, bytes: extra } => write!(
                f,
                "On {kind} it takes {} more memory ({}): huge pages are filled only in part. Check that there is memory for this and for all else that runs.",
                percent(*more),
                bytes(*extra)
            ),
            Self::FirstTouch { kind, saved_s, part, faults_before, faults_after } => write!(
                f,
                "{} of the gain on {kind} is first touch: {} less in the kernel, {} page faults instead of {}. Memory is touched for the first time only once, so a program that runs longer gains a smaller share; the user times show the rest of the gain.",
                percent(*part),
                seconds(*saved_s),
                count(*faults_after),
                count(*faults_before)
            ),
            Self::ShortRuns { value_s } => write!(
                f,
                "A run takes only {}, so starting it weighs as much as its memory: give it more work.",
                seconds(*value_s)
            ),
            Self::VirtualMachine => write!(
                f,
                "This is a virtual machine: the host's page size has an effect that cannot be measured from inside. Measure again on the machine where it will run."
            ),
        }
    }
}

fn write_too_noisy(f: &mut fmt::Formatter<'_>, noise: f64, runs: Option<usize>, by_the_clock: bool) -> fmt::Result {
    write!(f, "Too noisy to decide: two runs on the same pages usually differ by {}. ", percent(noise))?;
    match runs {
        Some(runs) => write!(f, "Try --runs {runs} on a quiet machine.")?,
        None => write!(
            f,
            "More runs are not enough: measure on a quiet machine, or give the program more work in each run."
        )?,
    }
    if by_the_clock {
        write!(f, " --metric cpu does not count the time in which it waits for a processor.")
    } else {
        Ok(())
    }
}

fn write_not_got(f: &mut fmt::Formatter<'_>, kind: &str, got: u64, of: u64) -> fmt::Result {
    write!(f, "On {kind}, only {} of {} really were in such pages", bytes(got), bytes(of))
}

fn write_why_not_got(f: &mut fmt::Formatter<'_>, fell_back: u64, mapped: u64) -> fmt::Result {
    if fell_back == 0 {
        return write!(
            f,
            ": memory was fragmented or its pieces too small. Free memory, or try --reserve and --prefault."
        );
    }
    write!(
        f,
        ", so this kind has no verdict: requests of {} found too few free pages in the pool. A pool of {} MiB is enough; `fieldstone doctor` prints how to fill it.",
        bytes(fell_back),
        reserved_mib(mapped)
    )
}

/// Bytes in whole pieces of 64 MiB, in MiB.
fn reserved_mib(bytes: u64) -> u64 {
    bytes.div_ceil(64 << 20) * 64
}

fn times(runs: u32) -> String {
    if runs == 1 { "one run".to_owned() } else { format!("{runs} runs") }
}
