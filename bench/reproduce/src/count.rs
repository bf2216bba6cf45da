//! Instructions of kernels, counted by the hardware or, without such a counter, by callgrind.
//!
//! Callgrind runs a process per kernel. It counts inside the function that calls the kernel, which
//! it finds by its symbol. Counts depend neither on the layout nor on other programs.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fieldstone_sys::perf;
use perf_event::Builder;
use perf_event::events::Hardware;

use crate::child;
use crate::comparison::{COUNTED, Kernel, Side, compare_sides};
use crate::experiment::{MeasuredValue, SampleOutcome};
use crate::trial::{Task, Trial};

/// Number of counted calls.
const CALLS: u64 = 8;

/// Instructions per operation of the kernels `baseline` and `others`. `sides` creates their sides.
/// Without a hardware counter and without valgrind the outcome is a skip.
///
/// # Errors
/// If a side cannot be built, if there is no such kernel, or if counting fails.
pub fn instructions(
    trial: &Trial,
    baseline: &str,
    others: &[&str],
    sides: impl Fn() -> Vec<Side<'static>>,
) -> Result<SampleOutcome> {
    if let Task::Call { .. } = trial.task {
        return compare_sides(trial, sides());
    }
    let counter = perf::counters().instructions.is_available();
    if !counter && Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        let reason = "no hardware counter of instructions, and no valgrind; install the package valgrind".to_owned();
        return Ok(SampleOutcome::Skipped { reason });
    }
    let mut values = Vec::new();
    for side in sides() {
        for mut kernel in (side.build)()?.kernels {
            let counted = if counter { by_counter(&mut kernel)? } else { by_callgrind(trial, &kernel.row)? };
            values.push((kernel.row, counted as f64 / (CALLS * kernel.operations.max(1)) as f64));
        }
    }
    let value_of = |row: &str| values.iter().find(|(name, _)| name == row).map(|(_, value)| *value);
    let of = value_of(baseline).with_context(|| format!("there is no kernel {baseline:?}"))?;
    let mut figures = vec![MeasuredValue::of(baseline, of)];
    for row in others {
        let value = value_of(row).with_context(|| format!("there is no kernel {row:?}"))?;
        figures.push(MeasuredValue { ratio: Some(value / of), ..MeasuredValue::of(*row, value) });
    }
    Ok(SampleOutcome::measured(figures))
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
    let program = std::env::current_exe().context("cannot find the file of this program")?;
    let task = Task::Call { row: row.to_owned(), calls: CALLS };
    let child = child::command(&program, &Trial { task, ..trial.clone() });
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &format!("--toggle-collect=*{COUNTED}*")]);
    let output = valgrind.arg(child.get_program()).args(child.get_args()).stdin(Stdio::null()).output();
    let output = output.context("cannot start valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    match read_collected(&text) {
        Some(0) => {
            bail!("cannot count instructions: valgrind found no function {COUNTED} (a stripped program has none)")
        }
        Some(count) if output.status.success() => Ok(count),
        _ => bail!("cannot count instructions: {}; {}", text.trim(), output.status),
    }
}

/// Reads the line `==123== Collected : 456` of callgrind's output.
fn read_collected(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("Collected : "))?;
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
