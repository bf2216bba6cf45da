//! Instructions of kernels: by a hardware counter where there is one, else by callgrind.
//!
//! Callgrind runs a process for each kernel and counts within the one function that calls it, which it finds by its symbol. Counts
//! do not depend on the layout, nor on what else runs.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fieldstone_sys::perf;
use perf_event::Builder;
use perf_event::events::Hardware;

use crate::child;
use crate::contest::{COUNTED, Kernel, Side, contest};
use crate::experiment::{Figure, Outcome};
use crate::trial::{Task, Trial};

/// Calls that are counted.
const CALLS: u64 = 8;

/// Instructions an operation of the kernels in the rows `baseline` and `others` of the sides that `sides` makes.
///
/// # Errors
/// When a side cannot be built, when there is no such row, or when the counting fails. A machine that has neither a counter nor valgrind
/// is a skip, not an error.
pub fn instructions(
    trial: &Trial,
    baseline: &str,
    others: &[&str],
    sides: impl Fn() -> Vec<Side<'static>>,
) -> Result<Outcome> {
    if let Task::Call { .. } = trial.task {
        return contest(trial, sides());
    }
    let counter = perf::counters().instructions.is_available();
    if !counter && Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        let reason = "no hardware counter of instructions, and no valgrind: install the package valgrind".to_owned();
        return Ok(Outcome::Skipped { reason });
    }
    let mut values = Vec::new();
    for side in sides() {
        for mut kernel in (side.build)()?.kernels {
            let counted = if counter { by_counter(&mut kernel)? } else { by_callgrind(trial, &kernel.row)? };
            values.push((kernel.row, counted as f64 / (CALLS * kernel.operations.max(1)) as f64));
        }
    }
    let value_of = |row: &str| values.iter().find(|(name, _)| name == row).map(|(_, value)| *value);
    let of = value_of(baseline).with_context(|| format!("no kernel is called {baseline:?}"))?;
    let mut figures = vec![Figure::of(baseline, of)];
    for row in others {
        let value = value_of(row).with_context(|| format!("no kernel is called {row:?}"))?;
        figures.push(Figure { ratio: Some(value / of), ..Figure::of(*row, value) });
    }
    Ok(Outcome::Measured { figures, alternately: true })
}

fn by_counter(kernel: &mut Kernel) -> Result<u64> {
    let mut counter = Builder::new(Hardware::INSTRUCTIONS).build().context("perf_event_open for instructions")?;
    (kernel.call)();
    counter.enable()?;
    let sum = (0..CALLS).fold(0_u64, |sum, _| sum.wrapping_add((kernel.call)()));
    counter.disable()?;
    std::hint::black_box(sum);
    Ok(counter.read()?)
}

fn by_callgrind(trial: &Trial, row: &str) -> Result<u64> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let task = Task::Call { row: row.to_owned(), calls: CALLS };
    let child = child::command(&program, &Trial { task, ..trial.clone() });
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &format!("--toggle-collect=*{COUNTED}*")]);
    let output = valgrind.arg(child.get_program()).args(child.get_args()).stdin(Stdio::null()).output();
    let output = output.context("cannot start valgrind")?;
    let words = String::from_utf8_lossy(&output.stderr);
    match read_collected(&words) {
        Some(0) => bail!("valgrind found no function {COUNTED}: was this program stripped of its symbols?"),
        Some(count) if output.status.success() => Ok(count),
        _ => bail!("valgrind counted nothing ({}): {}", output.status, words.trim()),
    }
}

/// `==123== Collected : 456` among what callgrind says.
fn read_collected(words: &str) -> Option<u64> {
    let line = words.lines().find(|line| line.contains("Collected : "))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        assert_eq!(read_collected("==7== Events    : Ir\n==7== Collected : 4512\n==7==\n"), Some(4512));
        assert_eq!(read_collected("==7== Process terminating\n"), None);
    }
}
