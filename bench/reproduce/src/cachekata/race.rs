//! Runs that are compared with each other: as long as is asked for, on processors of their own, in an order that turns round.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use fieldstone_stats::order;

use crate::beside::{Missing, sharing_program};
use crate::experiment::Figure;
use crate::folder::Folder;
use crate::trial::Trial;

use super::program::{Form, Program};
use super::run::{self, Ran};

/// How long one thread alone runs: so long that finding and moving, some hundredths of a second, do not hide what they bring.
const ALONE: Duration = Duration::from_secs(1);
/// In a quick run.
const ALONE_QUICK: Duration = Duration::from_millis(300);

/// Processors that each thread has at least, on the average, in a run that counts.
const LEAST_A_THREAD: f64 = 0.8;
/// How often a run is tried that had to wait for processors.
const TRIES: u32 = 3;

/// Work that no program takes longer than a second for, alone.
const MOST_AMOUNT: u64 = 1 << 40;

/// A program, and how much it is to do.
#[derive(Debug)]
pub(super) struct Race {
    program: Program,
    threads: u64,
    amount: u64,
    /// Its file.
    pub(super) file: PathBuf,
    /// For what its runs write.
    pub(super) folder: Folder,
}

impl Race {
    /// Finds the program, and how much makes one of its threads busy for a second.
    ///
    /// # Errors
    /// [`Missing`] where there is no such program, or are too few processors; when it fails.
    pub(super) fn new(trial: &Trial, program: Program, threads: u64) -> Result<Self> {
        processors(threads)?;
        let file = sharing_program(program.file)?;
        let alone = if trial.quick { ALONE_QUICK } else { ALONE };
        let amount = amount(alone, |amount| run::plain(&file, &program.arguments(Form::Alone, 1, amount)))?;
        Ok(Self { program, threads, amount, file, folder: Folder::new()? })
    }

    /// Its arguments in this form.
    pub(super) fn arguments(&self, form: Form) -> Vec<String> {
        self.program.arguments(form, self.threads, self.amount)
    }

    /// Runs the program once in each of these forms: there, and in the next sample back.
    ///
    /// # Errors
    /// As the run; [`Missing`] where its threads do not get their processors.
    pub(super) fn round(&self, trial: &Trial, forms: &[Form]) -> Result<Round> {
        // Seeds of a cell's samples are consecutive.
        let round = usize::try_from(trial.layout.seed % 2)?;
        order(forms.len(), round)
            .map(|index| Ok((forms[index], self.run(forms[index])?)))
            .collect::<Result<_>>()
            .map(Round)
    }

    fn run(&self, form: Form) -> Result<Ran> {
        let arguments = self.arguments(form);
        match form {
            Form::Repaired | Form::Ladder => {
                let stats = self.folder.path().join("stats.json");
                let more = if form == Form::Ladder { &["--ladder"][..] } else { &[] };
                repaired_at_once(self.threads, || run::repaired(&self.file, &arguments, &stats, more))
            }
            Form::Alone => run::plain(&self.file, &arguments),
            Form::Shared | Form::Apart => at_once(self.threads, || run::plain(&self.file, &arguments)),
        }
    }
}

/// A run of each form.
#[derive(Debug)]
pub(super) struct Round(pub(super) Vec<(Form, Ran)>);

impl Round {
    /// The run in this form, if there was one.
    pub(super) fn of(&self, form: Form) -> Option<&Ran> {
        self.0.iter().find(|(own, _)| *own == form).map(|(_, ran)| ran)
    }

    /// How long one form took, times the other.
    pub(super) fn ratio(&self, form: Form, against: Form) -> Option<f64> {
        let [took_s, of_s] = [self.of(form)?, self.of(against)?].map(|ran| ran.kernel.as_secs_f64());
        (of_s > 0.0).then(|| took_s / of_s)
    }

    /// The same as the figure of a row of ratios.
    pub(super) fn times(&self, row: &str, form: Form, against: Form) -> Option<Figure> {
        let took_ns = self.of(form)?.kernel.as_secs_f64() * 1e9;
        Some(Figure { ratio: Some(self.ratio(form, against)?), ..Figure::of(row, took_ns) })
    }
}

/// Checks that there are at least `threads` processors.
///
/// # Errors
/// [`Missing`].
pub(super) fn processors(threads: u64) -> Result<()> {
    let there_are = std::thread::available_parallelism()?.get() as u64;
    if there_are < threads {
        return Err(Missing(format!("needs {threads} processors, and there are {there_are}")).into());
    }
    Ok(())
}

/// The amount of work that takes this long: tried with little, then with four times as much, until it is measurable.
///
/// # Errors
/// As the run.
pub(super) fn amount(wanted: Duration, run: impl Fn(u64) -> Result<Ran>) -> Result<u64> {
    let mut amount = 1;
    loop {
        let kernel = run(amount)?.kernel;
        if kernel >= wanted / 8 || amount >= MOST_AMOUNT {
            let scaled = u128::from(amount) * wanted.as_nanos() / kernel.as_nanos().max(1);
            return Ok(u64::try_from(scaled)?.clamp(1, MOST_AMOUNT));
        }
        // From nothing at all, larger steps.
        amount *= if kernel < wanted / 1000 { 64 } else { 4 };
    }
}

/// A run whose threads ran at the same time.
///
/// # Errors
/// As the run; [`Missing`] if they did not, however often it is tried.
pub(super) fn at_once(threads: u64, run: impl Fn() -> Result<Ran>) -> Result<Ran> {
    first(threads, run, |_| false)
}

/// The same for a repaired run, which counts in any case if something was moved: then it may be the repair that held its threads up.
///
/// # Errors
/// As [`at_once`].
pub(super) fn repaired_at_once(threads: u64, run: impl Fn() -> Result<Ran>) -> Result<Ran> {
    first(threads, run, |ran| ran.count("moved") > 0)
}

/// The first run whose threads ran at the same time, or that counts without.
fn first(threads: u64, run: impl Fn() -> Result<Ran>, counts: impl Fn(&Ran) -> bool) -> Result<Ran> {
    let mut most: f64 = 0.0;
    for _ in 0..TRIES {
        let ran = run()?;
        if ran.processors >= least(threads) || counts(&ran) {
            return Ok(ran);
        }
        most = most.max(ran.processors);
    }
    Err(Missing(format!("{threads} threads did not run at the same time: {most:.2} processors at work")).into())
}

fn least(threads: u64) -> f64 {
    LEAST_A_THREAD * threads as f64
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::run::Event;
    use super::*;

    fn ran(kernel: Duration, processors: f64) -> Ran {
        Ran { kernel, processors, events: Vec::new(), words: String::new() }
    }

    #[test]
    fn work_is_found_that_takes_as_long_as_wanted() {
        for each_ns in [1, 700, 40_000_000, 5_000_000_000] {
            let runs = Cell::new(0);
            let took = |amount: u64| Duration::from_nanos(amount * each_ns + 1000);
            let found = amount(Duration::from_secs(1), |amount| {
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
    fn a_run_that_had_to_wait_is_tried_again_and_then_missing() {
        let tries = Cell::new(0);
        let busy = |processors: [f64; 3]| {
            let tries = &tries;
            tries.set(0);
            move || {
                tries.set(tries.get() + 1);
                Ok(ran(Duration::from_secs(1), processors[tries.get() - 1]))
            }
        };
        assert_eq!(at_once(2, busy([1.2, 1.9, 0.0])).unwrap().processors, 1.9);
        assert_eq!(tries.get(), 2);
        let error = at_once(2, busy([1.2, 1.4, 1.3])).unwrap_err().downcast::<Missing>().unwrap();
        assert_eq!(error.0, "2 threads did not run at the same time: 1.40 processors at work");
        assert!(repaired_at_once(2, busy([1.2, 1.4, 1.3])).is_err(), "nothing was moved, so it is not the repair");
        let at = Cell::new(0);
        let held_up = || {
            at.set(at.get() + 1);
            let moved = Event { at_ms: 1.0, what: "moved".into() };
            Ok(Ran { events: vec![moved], ..ran(Duration::from_secs(1), 1.0 + 0.1 * f64::from(at.get())) })
        };
        assert_eq!(repaired_at_once(2, held_up).unwrap().processors, 1.1, "the first, though the next runs better");
    }
}
