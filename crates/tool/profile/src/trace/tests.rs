//! Traces written by hand, in place of the plugin, and what the reader and the simulator make of
//! them.

use std::process::Command;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use fieldstone_translation::{Configuration, Machine, PageSize};
use fieldstone_wire::trace::{BATCHES, Batch, BatchState, BurstPhase, LANES, MemoryEvent, Record, SamplingPlan};

use super::{BatchConsumer, DecodedBatch, SharedTrace, ThreadOrigin, TraceReader, TraceResults, TraceSimulator};

const NO_WAIT: Duration = Duration::ZERO;
const BURSTS: SamplingPlan =
    SamplingPlan { burst: 100, longest_burst: 100, warm_up: 20, period: 1000, longest: 1000, density: 0 };

/// Makes a thread of `process` take the lane.
fn take_lane(trace: &SharedTrace, lane: usize, process: u32) {
    let lane = &trace.record().lanes[lane];
    lane.thread.store(process, Relaxed);
    lane.process.store(process, Release);
}

fn fill_batch<'a>(trace: &'a SharedTrace, lane: usize, batch: usize, records: &[Record]) -> &'a Batch {
    let batch = &trace.record().lanes[lane].batches[batch];
    records.iter().zip(&batch.records).for_each(|(record, place)| place.store(record.0, Relaxed));
    batch.filled.store(records.len() as u64, Release);
    batch
}

/// Submits a batch in which each record represents `each` accesses.
fn submit(
    trace: &SharedTrace,
    (lane, batch): (usize, usize),
    ticket: u64,
    phase: BurstPhase,
    each: u64,
    records: &[Record],
) {
    let batch = fill_batch(trace, lane, batch, records);
    batch.phase.store(phase as u32, Relaxed);
    batch.accesses.store(records.len() as u64 * each, Relaxed);
    batch.instructions.store(records.len() as u64 * each * 2, Relaxed);
    batch.ticket.store(ticket, Relaxed);
    batch.state.store(BatchState::Full as u32, Release);
}

/// Data accesses to `count` pages.
fn pages(first: u64, count: u64) -> Vec<Record> {
    (first..first + count).map(|page| Record::data(page << 12)).collect()
}

fn simulator(plan: SamplingPlan) -> TraceSimulator {
    let machine = Machine::preset("zen4").unwrap();
    TraceSimulator::new(&[Configuration::paged(&machine, PageSize::Small4k)], plan).unwrap()
}

/// Reads and simulates a whole trace.
fn simulate(trace: &SharedTrace) -> TraceResults {
    let (mut reader, mut simulator) = (TraceReader::new(trace), simulator(trace.record().plan));
    reader.read(&mut simulator, NO_WAIT);
    reader.read_remaining(&mut simulator);
    simulator.finish(trace.record())
}

/// A consumer that keeps what it gets, in order.
#[derive(Debug, Default)]
struct RecordingConsumer {
    batches: Vec<(usize, Vec<Record>)>,
    released: Vec<usize>,
}

impl BatchConsumer for RecordingConsumer {
    fn consume(&mut self, origin: ThreadOrigin, decoded: &DecodedBatch) -> u64 {
        self.batches.push((origin.lane, decoded.records.clone()));
        1
    }

    fn end_thread(&mut self, origin: ThreadOrigin) {
        self.released.push(origin.lane);
    }
}

impl RecordingConsumer {
    fn first_pages(&self) -> Vec<u64> {
        self.batches.iter().filter_map(|(_, records)| records.first().map(|record| record.address() >> 12)).collect()
    }
}

#[test]
fn batches_are_read_in_the_order_of_submission() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    (0..3).for_each(|lane| take_lane(&trace, lane, std::process::id()));
    // (lane, batch) in the order of their tickets; lanes have several batches.
    for (ticket, batch) in (0..).zip([(2, 0), (0, 0), (0, 1), (1, 0), (2, 1), (0, 2)]) {
        submit(&trace, batch, ticket, BurstPhase::Counted, 1, &pages(ticket, 1));
    }
    let mut consumer = RecordingConsumer::default();
    TraceReader::new(&trace).read(&mut consumer, NO_WAIT);
    assert_eq!(consumer.first_pages(), [0, 1, 2, 3, 4, 5]);
    let lanes: Vec<usize> = consumer.batches.iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [2, 0, 0, 1, 2, 0]);
    let free = trace.record().lanes[0].batches.iter().all(|batch| batch.state.load(Relaxed) == BatchState::Free as u32);
    assert!(free && consumer.released.is_empty());
}

#[test]
fn a_mapping_by_one_thread_applies_to_all_threads() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    (0..2).for_each(|lane| take_lane(&trace, lane, std::process::id()));
    let map = [Record::event(MemoryEvent::Map), Record(1 << 20), Record(64 << 12), Record(1), Record(0)];
    submit(&trace, (1, 0), 0, BurstPhase::Counted, 0, &map);
    submit(&trace, (0, 0), 1, BurstPhase::Counted, 1, &pages(256, 64));
    let results = simulate(&trace);
    assert_eq!(results.counts[0].data.walks_in_region, 64);
    assert_eq!(results.sample.addresses().len(), 64, "a fully counted run is sampled too");
}

#[test]
fn instructions_per_access_are_weighted_by_walks() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    take_lane(&trace, 0, std::process::id());
    let map = [Record::event(MemoryEvent::Map), Record(1 << 20), Record(64 << 12), Record(1), Record(0)];
    submit(&trace, (0, 0), 0, BurstPhase::Counted, 0, &map);
    // Two instructions per access in the region. Half of the accesses are outside, and one batch
    // hits.
    submit(&trace, (0, 1), 1, BurstPhase::Counted, 1, &pages(256, 32));
    submit(&trace, (0, 2), 2, BurstPhase::Counted, 5, &pages(256, 32));
    let both: Vec<Record> =
        pages(288, 32).into_iter().zip(pages(5000, 32)).flat_map(|(one, other)| [one, other]).collect();
    submit(&trace, (0, 3), 3, BurstPhase::Counted, 1, &both);
    let each = simulate(&trace).instructions_per_access;
    // 32 walks with 2 instructions and 64 with 4.
    assert!((each - (32.0 * 2.0 + 64.0 * 4.0) / 96.0).abs() < 1e-9, "{each}");
}

#[test]
fn instructions_per_access_are_limited_to_the_reorder_window() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    take_lane(&trace, 0, std::process::id());
    submit(&trace, (0, 0), 0, BurstPhase::Counted, 1000, &pages(0, 4));
    let each = simulate(&trace).instructions_per_access;
    assert!((each - 256.0).abs() < 1e-9, "{each}");
}

#[test]
fn warm_up_accesses_are_not_counted() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    take_lane(&trace, 0, std::process::id());
    submit(&trace, (0, 0), 0, BurstPhase::Warming, 3, &pages(0, 20));
    submit(&trace, (0, 1), 1, BurstPhase::Counted, 3, &pages(15, 10));
    let results = simulate(&trace);
    assert_eq!((results.accesses, results.counted_accesses, results.recorded), (90, 30, 10));
    assert_eq!((results.instructions, results.counted_instructions), (180, 60));
    let data = results.counts[0].data;
    assert_eq!(
        (data.accesses, data.walks),
        (30, 5),
        "five of the ten pages were warmed up, and the unrecorded accesses hit"
    );
    assert!(results.sample.addresses().is_empty(), "they were not in the region");
}

#[test]
fn unrecorded_accesses_are_in_the_totals_only() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    take_lane(&trace, 0, std::process::id());
    let event = [Record::event(MemoryEvent::Map), Record(0), Record(4 << 12), Record(1), Record(0)];
    submit(&trace, (0, 0), 0, BurstPhase::Passing, 100, &event);
    submit(&trace, (0, 1), 1, BurstPhase::Counted, 1, &pages(0, 4));
    let results = simulate(&trace);
    assert_eq!((results.accesses, results.instructions), (504, 1008));
    assert_eq!((results.counted_accesses, results.counted_instructions), (4, 8));
    assert_eq!((results.counts[0].data.accesses, results.counts[0].data.walks_in_region), (4, 4));
    assert_eq!(results.region_bytes, 4 << 12, "events apply in every phase");
}

#[test]
fn each_run_of_counted_batches_is_a_burst() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    (0..2).for_each(|lane| take_lane(&trace, lane, std::process::id()));
    let mut ticket = 0..;
    let mut submit_next = |batch, phase, first, count| {
        submit(&trace, batch, ticket.next().unwrap_or(0), phase, 10, &pages(first, count));
    };
    // 20 walks in 200 accesses of two batches, with a batch of the other thread between them.
    submit_next((0, 0), BurstPhase::Counted, 0, 10);
    submit_next((1, 0), BurstPhase::Counted, 0, 30);
    submit_next((0, 1), BurstPhase::Counted, 10, 10);
    submit_next((0, 2), BurstPhase::Warming, 20, 20);
    // 10 walks in 400 accesses, unfinished at the end.
    submit_next((0, 3), BurstPhase::Counted, 10, 40);
    let results = simulate(&trace);
    assert_eq!(results.bursts, 3);
    // 20, 30 and 10 walks in 200, 300 and 400 accesses. The last burst has 200 warm-up accesses:
    // its weight is 600 / 400.
    let mean: f64 = (20.0 + 30.0 + 15.0) / 1100.0;
    let apart = (20.0 - 200.0 * mean).powi(2) + (30.0 - 300.0 * mean).powi(2) + (15.0 - 600.0 * mean).powi(2);
    let expected = (apart * 3.0 / 2.0).sqrt() / 65.0;
    let found = results.relative_error.unwrap();
    assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
}

/// Later bursts of a thread represent more of the run and have more weight. The totals are those of
/// the counted accesses.
#[test]
fn bursts_are_weighted_by_what_they_represent() {
    let plan = SamplingPlan { burst: 10, longest_burst: 20, warm_up: 0, period: 20, longest: 60, density: 3 };
    assert_eq!([0, 63, 64, 95, 96, 500].map(|burst| plan.period_of(burst)), [20, 20, 40, 40, 60, 60]);
    let warmed = SamplingPlan { warm_up: 2, ..plan };
    assert_eq!([0, 63, 64, 500].map(|burst| warmed.burst_of(burst)), [(2, 8), (2, 8), (4, 16), (4, 16)]);
    assert_eq!((SamplingPlan::default().period_of(1000), SamplingPlan { longest: 3, ..plan }.period_of(1000)), (0, 20));
    let trace = SharedTrace::create(plan).unwrap();
    take_lane(&trace, 0, std::process::id());
    let (mut reader, mut simulator) = (TraceReader::new(&trace), simulator(plan));
    let mut factors = Vec::new();
    // The first 64 bursts use the same pages, and the next 32 always miss.
    for ticket in 0..2 * 96_u64 {
        let burst = ticket / 2;
        let first = if burst < 64 { 0 } else { (1 << 20) + burst * 10 };
        let passing = if burst < 64 { 10 } else { 30 };
        let (phase, records) = if ticket % 2 == 0 {
            (BurstPhase::Counted, pages(first, 10))
        } else {
            (BurstPhase::Passing, pages(0, passing))
        };
        submit(&trace, (0, usize::try_from(ticket).unwrap() % BATCHES), ticket, phase, 1, &records);
        reader.read(&mut simulator, NO_WAIT);
        factors.push(trace.record().lanes[0].density.load(Relaxed));
    }
    assert_eq!(
        [1, 2 * 64, 2 * 64 + 1, 2 * 65, 2 * 65 + 1, 2 * 95].map(|ticket: usize| factors[ticket]),
        [1, 1, 1, 3, 3, 2]
    );
    let results = simulator.finish(trace.record());
    assert_eq!((results.bursts, results.counted_accesses), (96, 960));
    // The bursts represent 15, 63 times 20, 30, 30 times 40, and 55 accesses. All accesses of the
    // first and of those from the 65th walk: 1300 of 2560, scaled to 960.
    let data = results.counts[0].data;
    assert_eq!((data.accesses, data.walks), (960, 488));
    assert_eq!(results.walks_by_owner.values().map(|owner| owner.walks).sum::<u64>(), 488);
}

#[test]
fn a_fully_counted_run_has_no_bursts() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    take_lane(&trace, 0, std::process::id());
    submit(&trace, (0, 0), 0, BurstPhase::Counted, 1, &pages(0, 10));
    submit(&trace, (0, 1), 1, BurstPhase::Passing, 1, &[]);
    submit(&trace, (0, 2), 2, BurstPhase::Counted, 1, &pages(5, 20));
    let results = simulate(&trace);
    assert_eq!((results.bursts, results.relative_error, results.counts[0].data.walks), (0, None, 25));
}

#[test]
fn threads_without_a_lane_are_counted() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    trace.record().threads_without_lane.store(3, Relaxed);
    trace.record().execs.store(2, Relaxed);
    let results = simulate(&trace);
    assert_eq!((results.untraced_threads, results.execs, results.threads), (3, 2, 0));
}

#[test]
fn the_unfinished_batch_of_a_dead_process_is_read_at_the_end() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    take_lane(&trace, 5, std::process::id());
    submit(&trace, (5, 0), 0, BurstPhase::Counted, 1, &pages(0, 3));
    fill_batch(&trace, 5, 1, &pages(3, 7));
    let mut consumer = RecordingConsumer::default();
    let mut reader = TraceReader::new(&trace);
    reader.read(&mut consumer, NO_WAIT);
    assert_eq!((consumer.batches.len(), consumer.released.len()), (1, 0), "the process is alive");
    reader.read_remaining(&mut consumer);
    assert_eq!(consumer.batches[1], (5, pages(3, 7)));
    assert_eq!(consumer.released, [5]);
    assert_eq!(trace.record().lanes[5].process.load(Relaxed), 0);
}

#[test]
fn an_unfinished_batch_counts_only_without_bursts() {
    for (plan, counted) in [(SamplingPlan::default(), 7), (BURSTS, 0)] {
        let trace = SharedTrace::create(plan).unwrap();
        take_lane(&trace, 0, std::process::id());
        fill_batch(&trace, 0, 0, &pages(0, 7));
        let results = simulate(&trace);
        assert_eq!((results.accesses, results.counted_accesses), (7, counted), "{plan:?}");
        assert_eq!(results.counts[0].data.walks, counted);
    }
}

/// Reads until `lanes` lanes are released, or for 20 s.
fn read_until_released(trace: &SharedTrace, lanes: usize) -> RecordingConsumer {
    let (mut consumer, mut reader) = (RecordingConsumer::default(), TraceReader::new(trace));
    let late = Instant::now() + Duration::from_secs(20);
    while consumer.released.len() < lanes && Instant::now() < late {
        reader.read(&mut consumer, Duration::from_millis(1));
    }
    consumer
}

#[test]
fn lanes_of_killed_processes_are_reclaimed() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    let mut killed = Command::new("sleep").arg("1000").spawn().unwrap();
    let dead = killed.id();
    // Two lanes belong to a living process, all others to a dead one.
    (0..LANES).for_each(|lane| take_lane(&trace, lane, if lane < 2 { std::process::id() } else { dead }));
    submit(&trace, (7, 0), 1, BurstPhase::Counted, 1, &pages(7, 1));
    fill_batch(&trace, 7, 1, &pages(8, 1));
    submit(&trace, (0, 0), 2, BurstPhase::Counted, 1, &pages(9, 1));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let consumer = read_until_released(&trace, LANES - 2);
    assert_eq!(consumer.released, (2..LANES).collect::<Vec<_>>());
    assert_eq!(consumer.first_pages()[..3], [7, 9, 8], "submitted batches in order, then the unfinished one");
    let taken = trace.record().lanes.iter().filter(|lane| lane.process.load(Relaxed) != 0).count();
    assert_eq!(taken, 2, "the living process keeps its lanes");
    // The next thread of the lane starts with the first batch.
    take_lane(&trace, 7, std::process::id());
    submit(&trace, (7, 0), 3, BurstPhase::Counted, 1, &pages(10, 1));
    let mut again = RecordingConsumer::default();
    TraceReader::new(&trace).read(&mut again, NO_WAIT);
    assert_eq!(again.batches, [(7, pages(10, 1))]);
}

#[test]
fn late_submissions_of_a_killed_process_are_not_its_unfinished_batch() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    take_lane(&trace, 0, std::process::id());
    take_lane(&trace, 1, ended.id());
    // As if submitted after the reader's scan: the first and third by the dead process, the second
    // by the living one.
    submit(&trace, (1, 0), 0, BurstPhase::Counted, 2, &pages(0, 1));
    submit(&trace, (0, 0), 1, BurstPhase::Counted, 2, &pages(1, 1));
    submit(&trace, (1, 1), 2, BurstPhase::Counted, 2, &pages(2, 1));
    fill_batch(&trace, 1, 2, &pages(3, 1));
    let (mut consumer, mut reader) = (RecordingConsumer::default(), TraceReader::new(&trace));
    reader.reclaim(&mut consumer);
    assert_eq!((consumer.first_pages(), consumer.released), (vec![0, 1, 2, 3], vec![1]));
}

#[test]
fn the_lane_of_a_zombie_is_reclaimed() {
    let trace = SharedTrace::create(SamplingPlan::default()).unwrap();
    let mut killed = Command::new("sleep").arg("1000").spawn().unwrap();
    take_lane(&trace, 0, killed.id());
    let mut consumer = RecordingConsumer::default();
    TraceReader::new(&trace).read(&mut consumer, NO_WAIT);
    assert!(consumer.released.is_empty(), "the process is alive");
    killed.kill().unwrap();
    let consumer = read_until_released(&trace, 1);
    assert_eq!(consumer.released, [0], "the zombie has not been waited for");
    killed.wait().unwrap();
}
