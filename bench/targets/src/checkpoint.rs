//! The section `[checkpoint]`: saves of a heap of 4 GiB by `Checkpointer`, against fork(2) and its
//! copy-on-write.
//!
//! ```text
//! writer     random pages ─────────── N writes, timed ──────────→
//! save             begin ── pause ── the pages are read and hashed, and go to /dev/null ── end
//! ```
//! Both sides read and hash each page and write nothing to a disk, whose speed would hide the rest. A
//! pause is the time of the call of fork(2) on the one side. On the other it is the stop, or the longest
//! wait of one write if that was longer.
//!
//! Two writers: one that writes to all pages, faster than they can be copied, and one that writes to 1 %
//! of them. Each side has a heap of its own, since one that a `Checkpointer` tracks costs its writer more.
//! One `Checkpointer` makes all saves of a case, as in a program.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread::scope;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fieldstone_checkpoint::{Checkpointer, Directory};
use fieldstone_pages::Memory;
use fieldstone_reproduce::checkpoint::{NullSink, WriteLock, fork, null_file};
use fieldstone_stats::{Estimate, Rounds};
use fieldstone_sys::machine::machine;

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::request::Request;
use crate::stop_rule::StopRule;

const SECTION: &str = "checkpoint";
const HEAP_BYTES: usize = 4 << 30;
const PAGE: usize = 4096;
const PAGES: usize = HEAP_BYTES / PAGE;
/// Words of a page.
const WORDS: usize = PAGE / 8;
/// Writes that are timed, more than a save takes.
const WRITES: usize = 24_000_000;
/// Saves of each side whose worst pause counts.
const SAVES: usize = 30;
/// The name of a side, in the order of the rounds.
const SIDES: [&str; 2] = ["Checkpointer", "fork"];

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    let needed = 3 * HEAP_BYTES as u64;
    let wanted: Vec<Goal> = goals.of(SECTION).filter(|goal| goal.name.contains(only)).collect();
    if machine().memory_available_bytes < needed {
        wanted.into_iter().map(|goal| GoalCell::skipped(goal, "12 GiB of memory are not available")).for_each(show);
        return Ok(());
    }
    let heap = Heap::new()?;
    let (increments, saves): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|goal| goal.name.starts_with("incremental"));
    if !saves.is_empty() {
        let forked = Heap::new()?;
        for (case, pages) in [("1 % of the pages written", PAGES / 100), ("all pages written", PAGES)] {
            Heap::compare_with_fork([&heap, &forked], &saves, case, pages, limit, show)?;
        }
    }
    increments.into_iter().try_for_each(|goal| {
        show(heap.compare_increments(goal, limit)?);
        Ok(())
    })
}

/// The heap, all of whose pages have contents.
struct Heap {
    memory: Memory,
}

/// What one save cost.
#[derive(Clone, Copy, Debug)]
struct SaveCost {
    pause_s: f64,
    writer_s: f64,
    extra_bytes: f64,
    /// The longest time of 64 writes.
    gap_s: f64,
    save_s: f64,
}

impl Heap {
    fn new() -> anyhow::Result<Self> {
        let memory = Memory::anonymous(HEAP_BYTES)?;
        let heap = Self { memory };
        for (number, word) in heap.memory.words().iter().step_by(WORDS).enumerate() {
            word.store(number as u64 | 1, Relaxed);
        }
        Ok(heap)
    }

    /// Saves while a thread writes to the first `pages` pages, by turns by both sides.
    fn compare_with_fork(
        heaps: [&Self; 2],
        goals: &[Goal],
        case: &str,
        pages: usize,
        limit: Duration,
        show: &mut dyn FnMut(GoalCell),
    ) -> anyhow::Result<()> {
        let mut costs = [Vec::new(), Vec::new()];
        let end = Instant::now() + limit * 2;
        let mut saver = Checkpointer::builder([&heaps[0].memory]).build()?;
        let run = |side: usize| {
            let cost = heaps[side].save_beside_writer(pages, (side == 0).then_some(&mut saver))?;
            costs[side].push(cost);
            Ok::<_, anyhow::Error>(cost.pause_s)
        };
        Rounds::run(2, run, |rounds| rounds.count() == SAVES || rounds.count() >= 8 && Instant::now() > end)?;
        let ratios = |value: fn(&SaveCost) -> f64| -> Vec<f64> {
            costs[0].iter().zip(&costs[1]).map(|(own, fork)| value(own) / value(fork)).collect()
        };
        for goal in goals {
            let estimate = match goal.name.as_str() {
                "pause_vs_fork" => Estimate::of_median(&ratios(|cost| cost.pause_s)),
                "writer_time_vs_fork" => Estimate::of_median(&ratios(|cost| cost.writer_s)),
                "extra_memory_vs_fork" => Estimate::of_median(&ratios(|cost| cost.extra_bytes)),
                "worst_pause_vs_fork" => {
                    let worst = |side: usize| costs[side].iter().map(|cost| cost.pause_s).fold(0.0, f64::max);
                    let ratio = worst(0) / worst(1);
                    Some(Estimate { n: 1, median: ratio, low: ratio, high: ratio, confidence: Some(1.0) })
                }
                other => anyhow::bail!("{SECTION}.{other} has no measurement"),
            };
            let mut cell =
                GoalCell::measured(goal.clone(), case, estimate, &format!("{} saves a side", costs[0].len()));
            let pauses = |side: usize| costs[side].iter().map(|cost| cost.pause_s).collect();
            cell.samples = SIDES.iter().enumerate().map(|(side, name)| ((*name).to_owned(), pauses(side))).collect();
            show(cell);
        }
        for (side, name) in SIDES.iter().enumerate() {
            let median = |value: fn(&SaveCost) -> f64| {
                fieldstone_stats::median(&costs[side].iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            println!(
                "# {case}, {name}: pause {:.2} ms, longest time of 64 writes {:.2} ms, {WRITES} writes {:.2} s, save {:.2} s, {:.0} MiB more memory",
                median(|cost| cost.pause_s) * 1e3,
                median(|cost| cost.gap_s) * 1e3,
                median(|cost| cost.writer_s),
                median(|cost| cost.save_s),
                median(|cost| cost.extra_bytes) / f64::from(1 << 20),
            );
        }
        Ok(())
    }

    /// One save, while a thread writes to the first `pages` pages; without a `Checkpointer`, by fork(2).
    fn save_beside_writer(&self, pages: usize, saver: Option<&mut Checkpointer>) -> anyhow::Result<SaveCost> {
        let (begins, has_begun) = (AtomicBool::new(false), channel());
        scope(|threads| {
            let writer = threads.spawn(|| self.write(pages, &begins, &has_begun.0));
            has_begun.1.recv().context("the writer has begun")?;
            begins.store(true, Relaxed);
            let begun = Instant::now();
            let saved = match saver {
                Some(saver) => Self::save(saver),
                None => self.fork(),
            };
            let save_s = begun.elapsed().as_secs_f64();
            let (writer_s, gap_s) = writer.join().expect("the writer does not panic");
            let (pause_s, extra_bytes) = saved?;
            Ok(SaveCost { pause_s, writer_s, extra_bytes, gap_s, save_s })
        })
    }

    /// Writes until the save begins, and then a fixed number of times. Returns the time of these, and the
    /// longest time of 64 of them.
    fn write(&self, pages: usize, begins: &AtomicBool, has_begun: &std::sync::mpsc::Sender<()>) -> (f64, f64) {
        let words = self.memory.words();
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut write = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let place = (u128::from(state) * (pages * WORDS) as u128) >> 64;
            words[usize::try_from(place).unwrap_or(0)].store(state, Relaxed);
        };
        (0..100_000).for_each(|_| write());
        let _ = has_begun.send(());
        while !begins.load(Relaxed) {
            write();
        }
        let start = Instant::now();
        let (mut before, mut gap) = (start, Duration::ZERO);
        for _ in 0..WRITES / 64 {
            (0..64).for_each(|_| write());
            let now = Instant::now();
            gap = gap.max(now - before);
            before = now;
        }
        (start.elapsed().as_secs_f64(), gap.as_secs_f64())
    }

    /// A save by the library; its pause, and the bytes of its buffers.
    fn save(saver: &mut Checkpointer) -> anyhow::Result<(f64, f64)> {
        let report = saver.save(&NullSink, || ((), 0))?;
        ensure!(report.pages >= PAGES as u64, "all pages are saved: {report}");
        Ok((report.stop.max(report.longest_wait).as_secs_f64(), report.peak_buffer_bytes as f64))
    }

    /// A save by a forked child; the time of the call, and the bytes that this process has copied.
    fn fork(&self) -> anyhow::Result<(f64, f64)> {
        // The writer of this measurement takes no lock.
        let cost = fork(&self.memory, &null_file()?, &WriteLock::default(), &|| ())?;
        Ok((cost.pause.as_secs_f64(), cost.extra_bytes as f64))
    }

    /// The time of an increment with 1 % of the pages over that of a complete save, both to memory.
    fn compare_increments(&self, goal: Goal, limit: Duration) -> anyhow::Result<GoalCell> {
        let folder = tempfile::tempdir_in("/dev/shm").context("there is no /dev/shm")?;
        let mut rule = StopRule::new(goal.limit, limit);
        let mut ratios = Vec::new();
        while !rule.is_met(ratios.len(), &ratios) {
            let saves = Directory::open(folder.path().join("saves"))?;
            let mut saver = Checkpointer::builder([&self.memory]).build()?;
            let complete = saver.save(&saves, || ((), 0))?;
            let step = WORDS * 100;
            let dirty = self.memory.words().iter().skip(ratios.len() % 100 * WORDS).step_by(step);
            dirty.for_each(|word| _ = word.fetch_add(1, Relaxed));
            let increment = saver.save(&saves, || ((), 0))?;
            ensure!(
                !complete.is_increment && increment.is_increment && increment.pages >= PAGES as u64 / 100,
                "{complete}\n{increment}"
            );
            ratios.push(increment.total.as_secs_f64() / complete.total.as_secs_f64());
            std::fs::remove_dir_all(folder.path().join("saves"))?;
        }
        let estimate = Estimate::of_median(&ratios);
        Ok(GoalCell::measured(goal, "1 % of the pages written", estimate, "complete save = 1, to /dev/shm"))
    }
}
