//! The cells of a writer beside saves: its speed over time, its pauses, and the memory of a save.
//!
//! ```text
//! process   speed without a save ── save ── save ── …
//! save      warm-up ── begin ── stop ── end ── until the curve ends
//! ```

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fieldstone_checkpoint::Checkpointer;
use fieldstone_pages::Memory;
use fieldstone_report::quantity;
use fieldstone_stats::median;

use super::save::{NullSink, SaveCost, checkpoint, fork, null_file};
use super::writer::{PAGE, Progress, WriteLock, Writer, filled_heap};
use crate::experiment::{Cell, MeasuredValue, Quantity, Row, SampleOutcome};
use crate::trial::Trial;

/// How a heap is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Checkpoint,
    Fork,
}

impl Method {
    pub(super) const ALL: [Self; 2] = [Self::Checkpoint, Self::Fork];

    const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Fork => "fork",
        }
    }
}

/// The pages that the writer writes to, with the tables of their cells.
#[derive(Debug)]
pub(super) struct WorkingSet {
    id: &'static str,
    /// The whole heap is this multiple of the pages.
    part: usize,
    speed: &'static str,
    waits: &'static str,
    pauses: &'static str,
    costs: &'static str,
}

pub(super) const WORKING_SETS: [WorkingSet; 2] = [
    WorkingSet {
        id: "all-pages",
        part: 1,
        speed: "Writes to all pages: speed during a save, relative to no save, over time",
        waits: "Writes to all pages: number of saves by the longest time of 64 writes",
        pauses: "Writes to all pages: number of saves by their stop, or by the time of fork(2)",
        costs: "Writes to all pages: a save",
    },
    WorkingSet {
        id: "few-pages",
        part: 100,
        speed: "Writes to 1 % of the pages: speed during a save, relative to no save, over time",
        waits: "Writes to 1 % of the pages: number of saves by the longest time of 64 writes",
        pauses: "Writes to 1 % of the pages: number of saves by their stop, or by the time of fork(2)",
        costs: "Writes to 1 % of the pages: a save",
    },
];

/// Time of the writer before a save, in which most pages are written.
const WARM_UP: Duration = Duration::from_millis(300);
/// Points of a curve before the begin of the save.
pub(super) const LEAD_INTERVALS: u32 = 10;
/// Points of a curve: 2 s with a heap of 1 GiB. A longer save is cut off.
const POINTS: u32 = 400;

/// Classes of pauses by their lower bounds in milliseconds; the last one has no end.
const CLASSES: [(f64, &str); 11] = [
    (0.0, "0 ms"),
    (0.25, "0.25 ms"),
    (0.5, "0.5 ms"),
    (1.0, "1 ms"),
    (2.0, "2 ms"),
    (4.0, "4 ms"),
    (8.0, "8 ms"),
    (16.0, "16 ms"),
    (32.0, "32 ms"),
    (64.0, "64 ms"),
    (128.0, "128 ms"),
];

const SPEED: &str = "speed of the writer during the save, relative to no save";
const STOP: &str = "stop, or time of fork(2)";
const WAIT: &str = "longest time of 64 writes";
const WORST_WAIT: &str = "longest time of 64 writes, worst save of a process";
const MEMORY: &str = "additional memory, MiB";
const STOPPED: &str = "begin to stop of the writer";
const RESUMED: &str = "begin to end of the stop";
const END: &str = "begin to end of the save";
const COPIED_BEFORE_WRITE: &str = "saves by copy before write";

/// What a cell measures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) set: &'static WorkingSet,
    pub(super) bytes: usize,
    pub(super) method: Method,
    /// Saves of a sample.
    pub(super) saves: usize,
}

impl Setting {
    /// The cell, in the group `group`.
    pub(super) fn cell(self, group: &str) -> Cell {
        let id = format!("checkpoint/{group}/{}/{}", self.column_id(), self.method.name());
        // After a fork, all pages of the heap may be copied. A checkpoint has buffers of 256 MiB at most.
        let memory_bytes = match self.method {
            Method::Fork => 2 * self.bytes as u64,
            Method::Checkpoint => self.bytes as u64 + (256 << 20),
        };
        Cell::new(id, self.column(), memory_bytes, self.rows(), move |trial| {
            Ok(SampleOutcome::measured(self.measure(trial)?))
        })
    }

    fn column_id(self) -> String {
        format!("{}/{}M", self.set.id, self.bytes >> 20)
    }

    fn column(self) -> String {
        format!("{}, {}", self.method.name(), quantity::bytes(self.bytes as u64))
    }

    fn rows(self) -> Vec<Row> {
        let WorkingSet { speed, waits, pauses, costs, .. } = *self.set;
        let points = (0..POINTS).map(|point| {
            let at_s = self.interval().as_secs_f64() * f64::from(point);
            Row::new(Quantity::Share, speed, self.point_name(point)).at(at_s)
        });
        let classes = |table, kind| {
            let name = format!("{}: {kind}", self.column());
            CLASSES.map(|(_, class)| Row::new(Quantity::Sum, table, name.clone()).in_column(class))
        };
        let row = |shows, name| Row::new(shows, costs, name);
        let nanoseconds = |name| row(Quantity::Nanoseconds, name);
        points
            .chain(classes(waits, WAIT))
            .chain(classes(pauses, STOP))
            .chain([row(Quantity::Share, SPEED)])
            .chain([STOP, WAIT, WORST_WAIT, STOPPED, RESUMED, END].map(nanoseconds))
            .chain([row(Quantity::Count, MEMORY), row(Quantity::Sum, COPIED_BEFORE_WRITE)])
            .collect()
    }

    /// The time between two points of a curve: 5 ms for each GiB, which takes about half a second.
    fn interval(self) -> Duration {
        let tenths_ms = (self.bytes * 50) >> 30;
        Duration::from_micros(tenths_ms.max(2) as u64 * 100)
    }

    /// The start of a point's interval. The save begins at the interval [`LEAD_INTERVALS`].
    fn point_name(self, point: u32) -> String {
        format!("{:.1} ms", (self.interval() * point).as_secs_f64() * 1e3)
    }

    fn measure(self, trial: &Trial) -> Result<Vec<MeasuredValue>> {
        let heap = filled_heap(self.bytes)?;
        let lock = WriteLock::default();
        let pages = (self.bytes / PAGE / self.set.part).max(1);
        let writer = Writer { heap: &heap, lock: &lock, pages, seed: trial.layout.seed };
        let ((begin, end), progress) = writer.run_beside(|| {
            sleep(WARM_UP);
            let begin = Instant::now();
            sleep(WARM_UP);
            Ok((begin, Instant::now() - Duration::from_millis(1)))
        })?;
        let unsaved_rate = progress.rate(begin, end).context(
            "the writer did not get a processor while nothing was saved: try again when the machine is idle",
        )?;
        let mut saver = Saver::new(self.method, &heap)?;
        let save = |_| {
            writer.run_beside(|| {
                sleep(WARM_UP + self.interval() * LEAD_INTERVALS);
                let cost = saver.save(&heap, &lock)?;
                // A curve of each save has all points.
                sleep((self.interval() * POINTS).saturating_sub(cost.begin.elapsed()));
                Ok(cost)
            })
        };
        let saves = (0..self.saves).map(save).collect::<Result<Vec<_>>>()?;
        Ok(self.values(unsaved_rate, saves))
    }

    /// The values of a sample.
    fn values(self, unsaved_rate: f64, mut saves: Vec<(SaveCost, Progress)>) -> Vec<MeasuredValue> {
        saves.sort_by_key(|(cost, _)| cost.end - cost.begin);
        let waits: Vec<f64> = saves.iter().map(|(cost, of)| of.longest(cost.begin, cost.end).as_secs_f64()).collect();
        let of = |value: fn(&SaveCost) -> f64| saves.iter().map(|(cost, _)| value(cost)).collect::<Vec<f64>>();
        let pauses = of(|cost| cost.pause.as_secs_f64());
        let since_begin = [
            (STOPPED, of(|cost| (cost.stopped - cost.begin).as_secs_f64())),
            (RESUMED, of(|cost| (cost.resumed - cost.begin).as_secs_f64())),
            (END, of(|cost| (cost.end - cost.begin).as_secs_f64())),
        ];
        let speeds: Vec<f64> = saves.iter().filter_map(|(cost, of)| of.rate(cost.begin, cost.end)).collect();
        let speeds: Vec<f64> = speeds.into_iter().map(|rate| rate / unsaved_rate).collect();
        let mebibytes = of(|cost| cost.extra_bytes as f64 / f64::from(1 << 20));
        let copied = saves.iter().filter(|(cost, _)| cost.is_copied_before_write).count();
        let middle = |name: &str, values: &[f64], unit: f64| Some(MeasuredValue::of(name, median(values)? * unit));
        let worst = waits.iter().copied().fold(0.0, f64::max);

        let mut all = self.curve(unsaved_rate, &saves);
        all.extend(self.classes(WAIT, &waits));
        all.extend(self.classes(STOP, &pauses));
        all.extend(middle(SPEED, &speeds, 1.0));
        all.extend(middle(STOP, &pauses, 1e9));
        all.extend(middle(WAIT, &waits, 1e9));
        all.push(MeasuredValue::of(WORST_WAIT, worst * 1e9));
        all.extend(since_begin.iter().filter_map(|(name, times)| middle(name, times, 1e9)));
        all.extend(middle(MEMORY, &mebibytes, 1.0));
        all.push(MeasuredValue::of(COPIED_BEFORE_WRITE, copied as f64));
        all
    }

    /// The speed over time of the save whose duration is the median.
    fn curve(self, unsaved_rate: f64, saves: &[(SaveCost, Progress)]) -> Vec<MeasuredValue> {
        let Some((cost, progress)) = saves.get(saves.len() / 2) else { return Vec::new() };
        let interval = self.interval();
        let Some(first) = cost.begin.checked_sub(interval * LEAD_INTERVALS) else { return Vec::new() };
        let points = (0..POINTS).map_while(|point| {
            let from = first + interval * point;
            Some(MeasuredValue::of(self.point_name(point), progress.rate(from, from + interval)? / unsaved_rate))
        });
        points.collect()
    }

    /// The number of saves in each class.
    fn classes(self, kind: &str, pauses_s: &[f64]) -> Vec<MeasuredValue> {
        let mut counts = [0_u32; CLASSES.len()];
        for pause_s in pauses_s {
            let above = CLASSES.iter().filter(|(bound_ms, _)| *bound_ms <= pause_s * 1e3).count();
            counts[above.saturating_sub(1)] += 1;
        }
        let value = |((_, class), count): (&(f64, &str), u32)| {
            MeasuredValue::of(format!("{}: {kind}: {class}", self.column()), f64::from(count))
        };
        CLASSES.iter().zip(counts).map(value).collect()
    }
}

/// Saves to `/dev/null`, so that no disk limits the speed.
enum Saver {
    Checkpoint(Checkpointer),
    Fork,
}

impl Saver {
    fn new(method: Method, heap: &Memory) -> Result<Self> {
        Ok(match method {
            Method::Checkpoint => Self::Checkpoint(Checkpointer::builder([heap]).build()?),
            Method::Fork => Self::Fork,
        })
    }

    fn save(&mut self, heap: &Memory, lock: &WriteLock) -> Result<SaveCost> {
        match self {
            Self::Checkpoint(saver) => checkpoint(saver, &NullSink, lock, &|| ()),
            Self::Fork => fork(heap, &null_file()?, lock, &|| ()),
        }
    }
}
