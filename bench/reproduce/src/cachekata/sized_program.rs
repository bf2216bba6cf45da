//! A program with an amount of work for runs of a fixed length, which are compared in alternating
//! order.
//!
//! A run counts only if its threads ran at the same time.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use fieldstone_stats::order;

use crate::experiment::MeasuredValue;
use crate::folder::Folder;
use crate::sibling_programs::{Missing, sharing_program};
use crate::trial::Trial;

use super::ladder_repair;
use super::program::{Form, SharingProgram};
use super::run::{self, TimedRun};

/// Length of a run with one thread. Detection and moving take a few hundredths of a second, which
/// is little of it.
const ALONE: Duration = Duration::from_secs(1);
/// The same in a quick run.
const ALONE_QUICK: Duration = Duration::from_millis(300);

/// Minimum mean number of processors per thread in a run that counts.
const MIN_PROCESSORS_PER_THREAD: f64 = 0.8;
/// Maximum number of attempts of a run that had too few processors.
const MAX_ATTEMPTS: u32 = 3;

/// An amount of work of more than a second in each program.
const MAX_AMOUNT: u64 = 1 << 40;

/// A program with an amount of work.
#[derive(Debug)]
pub(super) struct SizedProgram {
    program: SharingProgram,
    threads: u64,
    amount: u64,
    /// The file of the program.
    pub(super) file: PathBuf,
    /// The folder for files of its runs.
    pub(super) folder: Folder,
}

impl SizedProgram {
    /// Finds the program and the amount of work that takes one thread a second.
    ///
    /// # Errors
    /// [`Missing`] without the program or enough processors; the error of a failed run.
    pub(super) fn new(trial: &Trial, program: SharingProgram, threads: u64) -> Result<Self> {
        check_processors(threads)?;
        let file = sharing_program(program.file)?;
        let alone = if trial.quick { ALONE_QUICK } else { ALONE };
        let amount = find_amount(alone, |amount| run::plain(&file, &program.arguments(Form::Alone, 1, amount)))?;
        Ok(Self { program, threads, amount, file, folder: Folder::new()? })
    }

    /// The arguments of a form.
    pub(super) fn arguments(&self, form: Form) -> Vec<String> {
        self.program.arguments(form, self.threads, self.amount)
    }

    /// Runs the program once in each of these forms. The order alternates from sample to sample.
    ///
    /// # Errors
    /// The error of a failed run; [`Missing`] if the threads have too few processors.
    pub(super) fn round(&self, trial: &Trial, forms: &[Form]) -> Result<Round> {
        // The seeds of consecutive samples are consecutive.
        let round = usize::try_from(trial.layout.seed % 2)?;
        order(forms.len(), round)
            .map(|index| Ok((forms[index], self.run(forms[index])?)))
            .collect::<Result<_>>()
            .map(Round)
    }

    fn run(&self, form: Form) -> Result<TimedRun> {
        let arguments = self.arguments(form);
        match form {
            Form::Repaired | Form::Ladder => {
                let stats = self.folder.path().join("stats.json");
                let command = || match form {
                    Form::Ladder => ladder_repair::command(&stats),
                    _ => Ok(run::repair_command(&stats)),
                };
                repaired_in_parallel(self.threads, || run::repaired(command()?, &self.file, &arguments, &stats))
            }
            Form::Alone => run::plain(&self.file, &arguments),
            Form::Shared | Form::Padded => in_parallel(self.threads, || run::plain(&self.file, &arguments)),
        }
    }
}

/// One run of each form.
#[derive(Debug)]
pub(super) struct Round(pub(super) Vec<(Form, TimedRun)>);

impl Round {
    /// The run of a form, if there is one.
    pub(super) fn of(&self, form: Form) -> Option<&TimedRun> {
        self.0.iter().find(|(own, _)| *own == form).map(|(_, run)| run)
    }

    /// The time of `form` divided by that of `against`.
    pub(super) fn ratio(&self, form: Form, against: Form) -> Option<f64> {
        let [took_s, of_s] = [self.of(form)?, self.of(against)?].map(|run| run.kernel.as_secs_f64());
        (of_s > 0.0).then(|| took_s / of_s)
    }

    /// The same as the value of a row of ratios.
    pub(super) fn times(&self, row: &str, form: Form, against: Form) -> Option<MeasuredValue> {
        let took_ns = self.of(form)?.kernel.as_secs_f64() * 1e9;
        Some(MeasuredValue { ratio: Some(self.ratio(form, against)?), ..MeasuredValue::of(row, took_ns) })
    }
}

/// Checks that the machine has at least `threads` processors.
///
/// # Errors
/// [`Missing`] if it has fewer.
pub(super) fn check_processors(threads: u64) -> Result<()> {
    let available = std::thread::available_parallelism()?.get() as u64;
    if available < threads {
        return Err(Missing(format!("needs {threads} processors, and there are {available}")).into());
    }
    Ok(())
}

/// The amount of work that takes `wanted`. Starts with little and multiplies it by four until the
/// time is measurable.
///
/// # Errors
/// The error of a failed run.
pub(super) fn find_amount(wanted: Duration, run: impl Fn(u64) -> Result<TimedRun>) -> Result<u64> {
    let mut amount = 1;
    loop {
        let kernel = run(amount)?.kernel;
        if kernel >= wanted / 8 || amount >= MAX_AMOUNT {
            let scaled = u128::from(amount) * wanted.as_nanos() / kernel.as_nanos().max(1);
            return Ok(u64::try_from(scaled)?.clamp(1, MAX_AMOUNT));
        }
        // Larger steps while the time is very short.
        amount *= if kernel < wanted / 1000 { 64 } else { 4 };
    }
}

/// A run whose threads ran at the same time.
///
/// # Errors
/// The error of a failed run; [`Missing`] after [`MAX_ATTEMPTS`] runs with too few processors.
pub(super) fn in_parallel(threads: u64, run: impl Fn() -> Result<TimedRun>) -> Result<TimedRun> {
    first(threads, run, |_| false)
}

/// The same for a repaired run. It counts in any case if a page was moved, because then the repair
/// itself may have delayed the threads.
///
/// # Errors
/// Those of [`in_parallel`].
pub(super) fn repaired_in_parallel(threads: u64, run: impl Fn() -> Result<TimedRun>) -> Result<TimedRun> {
    first(threads, run, |run| run.count("moved") > 0)
}

/// The first run whose threads ran at the same time, or that `counts` without.
fn first(threads: u64, run: impl Fn() -> Result<TimedRun>, counts: impl Fn(&TimedRun) -> bool) -> Result<TimedRun> {
    let mut most: f64 = 0.0;
    for _ in 0..MAX_ATTEMPTS {
        let run = run()?;
        if run.processors >= MIN_PROCESSORS_PER_THREAD * threads as f64 || counts(&run) {
            return Ok(run);
        }
        most = most.max(run.processors);
    }
    Err(Missing(format!("{threads} threads did not run at the same time: {most:.2} processors at work")).into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::run::Event;
    use super::*;

    fn ran(kernel: Duration, processors: f64) -> TimedRun {
        TimedRun { kernel, processors, events: Vec::new(), errors: String::new() }
    }

    #[test]
    fn the_amount_of_work_takes_the_wanted_time() {
        for each_ns in [1, 700, 40_000_000, 5_000_000_000] {
            let runs = Cell::new(0);
            let took = |amount: u64| Duration::from_nanos(amount * each_ns + 1000);
            let found = find_amount(Duration::from_secs(1), |amount| {
                runs.set(runs.get() + 1);
                Ok(ran(took(amount), 1.0))
            });
            let found = found.unwrap();
            let took = took(found).as_secs_f64();
            assert!((0.95..1.05).contains(&took) || (found == 1 && took > 1.0), "{each_ns} ns: {found} took {took} s");
            assert!(runs.get() <= 12, "{} runs", runs.get());
        }
    }

    #[test]
    fn a_run_without_processors_is_repeated_and_then_skipped() {
        let tries = Cell::new(0);
        let busy = |processors: [f64; 3]| {
            let tries = &tries;
            tries.set(0);
            move || {
                tries.set(tries.get() + 1);
                Ok(ran(Duration::from_secs(1), processors[tries.get() - 1]))
            }
        };
        assert_eq!(in_parallel(2, busy([1.2, 1.9, 0.0])).unwrap().processors, 1.9);
        assert_eq!(tries.get(), 2);
        let error = in_parallel(2, busy([1.2, 1.4, 1.3])).unwrap_err().downcast::<Missing>().unwrap();
        assert_eq!(error.0, "2 threads did not run at the same time: 1.40 processors at work");
        assert!(
            repaired_in_parallel(2, busy([1.2, 1.4, 1.3])).is_err(),
            "nothing was moved, so the repair did not delay it"
        );
        let at = Cell::new(0);
        let delayed = || {
            at.set(at.get() + 1);
            let moved = Event { at_ms: 1.0, kind: "moved".into() };
            Ok(TimedRun { events: vec![moved], ..ran(Duration::from_secs(1), 1.0 + 0.1 * f64::from(at.get())) })
        };
        assert_eq!(
            repaired_in_parallel(2, delayed).unwrap().processors,
            1.1,
            "the first counts, although the next has more processors"
        );
    }
}
