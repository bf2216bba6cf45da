//! Writes of a program to a page that it has protected: through a second view, by a system call, or
//! by unprotecting the page for the write.
//!
//! Source: "When User mode service routines need to access a protected page, allow them by: …
//! multiple mapping of the same page at different addresses with different protection levels …; Use
//! a separate system call".
//!
//! The second view is of shared memory; the other methods use private memory. Each method leaves
//! the page protected. If a system call waits for the handler, which unprotects the page, the page
//! is protected again. If a call is refused, its errno replaces the number.

#![allow(unsafe_code, reason = "writes to protected pages by each method")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fieldstone_pages::{Mechanism, Memory, Outcome, Trapping, Watch};
use fieldstone_workloads::random::SplitMix64;

use super::test_memory::{TestMemory, UNITS, Units, median_of_rounds, shuffled};
use super::{ACCESS, PAGE, Setting, rounds};
use crate::experiment::{MeasuredValue, Quantity, Row};
use crate::trial::Trial;

const VIEW: &str = "through a second view (MAP2)";
const OPENED: &str = "opened, written, protected";
const PREAD: &str = "pread(2) into it";
const VM_WRITE: &str = "process_vm_writev(2)";
const MEM: &str = "write to /proc/self/mem";

pub(super) fn rows() -> Vec<Row> {
    [VIEW, OPENED, PREAD, VM_WRITE, MEM].map(|name| Row::new(Quantity::Microseconds, ACCESS, name)).into()
}

/// Writes a byte to an address of this process.
type Call<'a> = Box<dyn Fn(*mut u8, u8) -> io::Result<()> + 'a>;

pub(super) fn measure(trial: &Trial, setting: Setting) -> Result<Vec<MeasuredValue>> {
    let rounds = rounds(trial);
    let mut random = SplitMix64::new(trial.layout.seed);
    let test_memory = TestMemory::new(PAGE)?;
    let (units, trapping) = (test_memory.units, trapped(test_memory.memory, setting.mechanism)?);
    trapping.protect(units.all())?;
    let mut figures = vec![
        MeasuredValue::of(VIEW, view_ns(rounds, setting.mechanism, &mut random)?),
        MeasuredValue::of(OPENED, opened_ns(rounds, &trapping, units, &mut random)?),
    ];
    let memory = File::options().write(true).open("/proc/self/mem").context("/proc/self/mem")?;
    let bytes = File::from(rustix::fs::memfd_create("fieldstone-bytes", rustix::fs::MemfdFlags::CLOEXEC)?);
    bytes.write_all_at(&std::array::from_fn::<u8, 256, _>(|at| u8::try_from(at).unwrap_or(0)), 0)?;
    let calls: [(&str, Call<'_>); 3] = [
        (PREAD, Box::new(|to, value| pread(&bytes, to, value))),
        (VM_WRITE, Box::new(vm_write)),
        (MEM, Box::new(|to, value| memory.write_all_at(&[value], to.expose_provenance() as u64))),
    ];
    for (row, call) in calls {
        figures.push(match called_ns(rounds, &trapping, units, &mut random, &call)? {
            Ok(ns) => MeasuredValue::of(row, ns),
            Err(error) => MeasuredValue::word(row, errno(&error)),
        });
    }
    Ok(figures)
}

/// Memory whose handler unprotects the page of a fault.
fn trapped(memory: Memory, mechanism: Mechanism) -> Result<Trapping> {
    // SAFETY: the handler makes one system call, which is async-signal-safe.
    let trapping = unsafe {
        Trapping::with(memory, Watch::Writes, mechanism, |fault| {
            if fault.unprotect().is_ok() { Outcome::Resolved } else { Outcome::Chain }
        })
    };
    Ok(trapping?)
}

fn view_ns(rounds: usize, mechanism: Mechanism, random: &mut SplitMix64) -> Result<f64> {
    let memory = Memory::shared(UNITS * PAGE.bytes)?;
    memory.populate()?;
    let view = memory.alias()?;
    // SAFETY: the callers pass units below UNITS, so the address is inside the view.
    let write = |unit, value| unsafe { view.as_ptr().add(unit * PAGE.bytes).write_volatile(value) };
    (0..UNITS).for_each(|unit| write(unit, 0));
    let trapping = trapped(memory, mechanism)?;
    trapping.protect(0..UNITS * PAGE.bytes)?;
    median_of_rounds(rounds, None, || {
        let (order, value) = (shuffled(random), 1 + random.draw().to_le_bytes()[0] % 255);
        let since = Instant::now();
        order.iter().for_each(|&unit| write(unit, value));
        let took_ns = since.elapsed().as_secs_f64() * 1e9;
        // SAFETY: `unit` is below UNITS, so the byte is inside the memory, which can be read.
        let read = |unit| unsafe { trapping.memory().as_ptr().add(unit * PAGE.bytes).read_volatile() };
        ensure!((0..UNITS).all(|unit| read(unit) == value), "a write through the second view is lost");
        Ok(took_ns / UNITS as f64)
    })
}

fn opened_ns(rounds: usize, trapping: &Trapping, units: Units, random: &mut SplitMix64) -> Result<f64> {
    median_of_rounds(rounds, None, || {
        let order = shuffled(random);
        let since = Instant::now();
        for &unit in &order {
            trapping.unprotect(units.of(unit))?;
            units.write(trapping.memory(), unit, 1);
            trapping.protect(units.of(unit))?;
        }
        Ok(since.elapsed().as_secs_f64() * 1e9 / UNITS as f64)
    })
}

/// Nanoseconds of a call, or the error if it is refused.
fn called_ns(
    rounds: usize,
    trapping: &Trapping,
    units: Units,
    random: &mut SplitMix64,
    call: &Call<'_>,
) -> Result<io::Result<f64>> {
    // Only a handler thread can unprotect a page for the kernel. Only then the page must be
    // protected again.
    let opens = trapping.mechanism() == Mechanism::UserfaultThread;
    let to = |unit| trapping.memory().as_ptr().wrapping_add(units.of(unit).start);
    if let Err(error) = call(to(0), 1) {
        return Ok(Err(error));
    }
    let each = median_of_rounds(rounds, None, || {
        trapping.protect(units.all())?;
        let (order, value) = (shuffled(random), 1 + random.draw().to_le_bytes()[0] % 255);
        let since = Instant::now();
        for &unit in &order {
            call(to(unit), value)?;
            if opens {
                trapping.protect(units.of(unit))?;
            }
        }
        let took_ns = since.elapsed().as_secs_f64() * 1e9;
        ensure!(
            (0..UNITS).all(|unit| units.read(trapping.memory(), unit) == value),
            "a write by a system call is lost"
        );
        Ok(took_ns / UNITS as f64)
    });
    each.map(Ok)
}

/// Reads the byte `value` into `to`, from a file whose byte at each offset is the offset.
fn pread(bytes: &File, to: *mut u8, value: u8) -> io::Result<()> {
    // SAFETY: the callers pass a byte of their own memory. If it is protected, the kernel refuses
    // the call or waits for the handler.
    match unsafe { libc::pread(bytes.as_raw_fd(), to.cast(), 1, i64::from(value)) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn vm_write(to: *mut u8, value: u8) -> io::Result<()> {
    let (from, to) = (
        libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: 1 },
        libc::iovec { iov_base: to.cast(), iov_len: 1 },
    );
    // SAFETY: the callers pass a byte of their own memory; the source is a live local that is only
    // read.
    match unsafe { libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn errno(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EFAULT) => "EFAULT".to_owned(),
        Some(libc::EIO) => "EIO".to_owned(),
        Some(libc::EPERM) => "EPERM".to_owned(),
        Some(libc::EACCES) => "EACCES".to_owned(),
        Some(other) => format!("errno {other}"),
        None => error.kind().to_string(),
    }
}
