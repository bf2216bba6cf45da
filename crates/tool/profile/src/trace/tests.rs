//! Records written by hand, as the plugin would write them, and what is read out of them.

use std::process::Command;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use fieldstone_translation::{Configuration, Machine, PageSize};
use fieldstone_wire::trace::{BATCHES, Batch, Event, LANES, Phase, Plan, Record, Standing};

use super::{Followed, Follower, Heard, Listener, Origin, Reader, SharedTrace};

const NO_WAIT: Duration = Duration::ZERO;
const BURSTS: Plan = Plan { burst: 100, longest_burst: 100, warm_up: 20, period: 1000, longest: 1000, haste: 0 };

/// A thread of our own process in this lane.
fn begin(trace: &SharedTrace, lane: usize, process: u32) {
    let lane = &trace.record().lanes[lane];
    lane.thread.store(process, Relaxed);
    lane.process.store(process, Release);
}

fn write<'a>(trace: &'a SharedTrace, lane: usize, batch: usize, records: &[Record]) -> &'a Batch {
    let batch = &trace.record().lanes[lane].batches[batch];
    records.iter().zip(&batch.records).for_each(|(record, place)| place.store(record.0, Relaxed));
    batch.filled.store(records.len() as u64, Release);
    batch
}

/// A batch that was handed over, with so many accesses for each record.
fn hand_over(
    trace: &SharedTrace,
    (lane, batch): (usize, usize),
    ticket: u64,
    phase: Phase,
    each: u64,
    records: &[Record],
) {
    let batch = write(trace, lane, batch, records);
    batch.phase.store(phase as u32, Relaxed);
    batch.accesses.store(records.len() as u64 * each, Relaxed);
    batch.instructions.store(records.len() as u64 * each * 2, Relaxed);
    batch.ticket.store(ticket, Relaxed);
    batch.state.store(Standing::Full as u32, Release);
}

/// So many pages, one access each.
fn pages(first: u64, count: u64) -> Vec<Record> {
    (first..first + count).map(|page| Record::data(page << 12)).collect()
}

fn follower(plan: Plan) -> Follower {
    let machine = Machine::preset("zen4").unwrap();
    Follower::new(&[Configuration::paged(&machine, PageSize::Small4k)], plan).unwrap()
}

/// All that is in the record, read and followed.
fn follow(trace: &SharedTrace) -> Followed {
    let (mut reader, mut follower) = (Reader::new(trace), follower(trace.record().plan));
    reader.read(&mut follower, NO_WAIT);
    reader.read_rest(&mut follower);
    follower.finish(trace.record())
}

/// What was heard, in order.
#[derive(Debug, Default)]
struct Noted {
    heard: Vec<(usize, Vec<Record>)>,
    left: Vec<usize>,
}

impl Listener for Noted {
    fn hear(&mut self, origin: Origin, heard: &Heard) -> u64 {
        self.heard.push((origin.lane, heard.records.clone()));
        1
    }

    fn leave(&mut self, origin: Origin) {
        self.left.push(origin.lane);
    }
}

impl Noted {
    fn first_pages(&self) -> Vec<u64> {
        self.heard.iter().filter_map(|(_, records)| records.first().map(|record| record.address() >> 12)).collect()
    }
}

#[test]
fn batches_are_read_in_the_order_in_which_they_were_handed_over() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    (0..3).for_each(|lane| begin(&trace, lane, std::process::id()));
    // (lane, batch) by ticket; a lane has several one after the other.
    for (ticket, place) in (0..).zip([(2, 0), (0, 0), (0, 1), (1, 0), (2, 1), (0, 2)]) {
        hand_over(&trace, place, ticket, Phase::Counted, 1, &pages(ticket, 1));
    }
    let mut noted = Noted::default();
    Reader::new(&trace).read(&mut noted, NO_WAIT);
    assert_eq!(noted.first_pages(), [0, 1, 2, 3, 4, 5]);
    let lanes: Vec<usize> = noted.heard.iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [2, 0, 0, 1, 2, 0]);
    let free = trace.record().lanes[0].batches.iter().all(|batch| batch.state.load(Relaxed) == Standing::Free as u32);
    assert!(free && noted.left.is_empty());
}

#[test]
fn what_one_thread_maps_is_known_where_another_uses_it() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    (0..2).for_each(|lane| begin(&trace, lane, std::process::id()));
    let map = [Record::event(Event::Map), Record(1 << 20), Record(64 << 12), Record(1), Record(0)];
    hand_over(&trace, (1, 0), 0, Phase::Counted, 0, &map);
    hand_over(&trace, (0, 0), 1, Phase::Counted, 1, &pages(256, 64));
    let followed = follow(&trace);
    assert_eq!(followed.counts[0].data.walks_in_region, 64);
    assert_eq!(followed.sample.addresses().len(), 64, "of a run that is counted whole too");
}

#[test]
fn how_close_together_accesses_lie_is_told_by_those_that_walk() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    begin(&trace, 0, std::process::id());
    let map = [Record::event(Event::Map), Record(1 << 20), Record(64 << 12), Record(1), Record(0)];
    hand_over(&trace, (0, 0), 0, Phase::Counted, 0, &map);
    // Two instructions an access in the region; half of the accesses are outside, and one batch comes back to what is known.
    hand_over(&trace, (0, 1), 1, Phase::Counted, 1, &pages(256, 32));
    hand_over(&trace, (0, 2), 2, Phase::Counted, 5, &pages(256, 32));
    let both: Vec<Record> =
        pages(288, 32).into_iter().zip(pages(5000, 32)).flat_map(|(one, other)| [one, other]).collect();
    hand_over(&trace, (0, 3), 3, Phase::Counted, 1, &both);
    let each = follow(&trace).instructions_each;
    // 32 walks at 2 and 64 at 4.
    assert!((each - (32.0 * 2.0 + 64.0 * 4.0) / 96.0).abs() < 1e-9, "{each}");
}

#[test]
fn walks_far_apart_are_told_as_just_beyond_the_look_ahead() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    begin(&trace, 0, std::process::id());
    hand_over(&trace, (0, 0), 0, Phase::Counted, 1000, &pages(0, 4));
    let each = follow(&trace).instructions_each;
    assert!((each - 256.0).abs() < 1e-9, "{each}");
}

#[test]
fn what_only_warms_up_does_not_count() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    begin(&trace, 0, std::process::id());
    hand_over(&trace, (0, 0), 0, Phase::Warming, 3, &pages(0, 20));
    hand_over(&trace, (0, 1), 1, Phase::Counted, 3, &pages(15, 10));
    let followed = follow(&trace);
    assert_eq!((followed.accesses, followed.counted_accesses, followed.recorded), (90, 30, 10));
    assert_eq!((followed.instructions, followed.counted_instructions), (180, 60));
    let data = followed.counts[0].data;
    assert_eq!(
        (data.accesses, data.walks),
        (30, 5),
        "five of the ten pages were warmed up, and the skipped accesses hit"
    );
    assert!(followed.sample.addresses().is_empty(), "they were not in the region");
}

#[test]
fn what_passes_is_in_the_totals_alone() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    begin(&trace, 0, std::process::id());
    let event = [Record::event(Event::Map), Record(0), Record(4 << 12), Record(1), Record(0)];
    hand_over(&trace, (0, 0), 0, Phase::Passing, 100, &event);
    hand_over(&trace, (0, 1), 1, Phase::Counted, 1, &pages(0, 4));
    let followed = follow(&trace);
    assert_eq!((followed.accesses, followed.instructions), (504, 1008));
    assert_eq!((followed.counted_accesses, followed.counted_instructions), (4, 8));
    assert_eq!((followed.counts[0].data.accesses, followed.counts[0].data.walks_in_region), (4, 4));
    assert_eq!(followed.region_bytes, 4 << 12, "events count wherever they are");
}

#[test]
fn each_run_of_counted_batches_is_a_burst() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    (0..2).for_each(|lane| begin(&trace, lane, std::process::id()));
    let mut ticket = 0..;
    let mut hand = |place, phase, first, count| {
        hand_over(&trace, place, ticket.next().unwrap_or(0), phase, 10, &pages(first, count));
    };
    // 20 walks of 200 accesses in two batches; the other thread's come between them.
    hand((0, 0), Phase::Counted, 0, 10);
    hand((1, 0), Phase::Counted, 0, 30);
    hand((0, 1), Phase::Counted, 10, 10);
    hand((0, 2), Phase::Warming, 20, 20);
    // 10 walks of 400, under way at the end.
    hand((0, 3), Phase::Counted, 10, 40);
    let followed = follow(&trace);
    assert_eq!(followed.bursts, 3);
    // 20, 30 and 10 walks of 200, 300 and 400 accesses, the last with 200 that warmed up before it: it counts 600 / 400 times.
    let mean: f64 = (20.0 + 30.0 + 15.0) / 1100.0;
    let apart = (20.0 - 200.0 * mean).powi(2) + (30.0 - 300.0 * mean).powi(2) + (15.0 - 600.0 * mean).powi(2);
    let expected = (apart * 3.0 / 2.0).sqrt() / 65.0;
    let found = followed.relative_error.unwrap();
    assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
}

/// A thread's later bursts stand for more of the run: they count more, and the sums are still those of the accesses that were counted.
#[test]
fn bursts_count_by_what_they_stand_for() {
    let plan = Plan { burst: 10, longest_burst: 20, warm_up: 0, period: 20, longest: 60, haste: 3 };
    assert_eq!([0, 63, 64, 95, 96, 500].map(|burst| plan.period_of(burst)), [20, 20, 40, 40, 60, 60]);
    let warmed = Plan { warm_up: 2, ..plan };
    assert_eq!([0, 63, 64, 500].map(|burst| warmed.burst_of(burst)), [(2, 8), (2, 8), (4, 16), (4, 16)]);
    assert_eq!((Plan::default().period_of(1000), Plan { longest: 3, ..plan }.period_of(1000)), (0, 20));
    let trace = SharedTrace::create(plan).unwrap();
    begin(&trace, 0, std::process::id());
    let (mut reader, mut follower) = (Reader::new(&trace), follower(plan));
    let mut hastes = Vec::new();
    // The first 64 bursts never miss again, the next 32 always do.
    for ticket in 0..2 * 96_u64 {
        let burst = ticket / 2;
        let first = if burst < 64 { 0 } else { (1 << 20) + burst * 10 };
        let passing = if burst < 64 { 10 } else { 30 };
        let (phase, records) =
            if ticket % 2 == 0 { (Phase::Counted, pages(first, 10)) } else { (Phase::Passing, pages(0, passing)) };
        hand_over(&trace, (0, usize::try_from(ticket).unwrap() % BATCHES), ticket, phase, 1, &records);
        reader.read(&mut follower, NO_WAIT);
        hastes.push(trace.record().lanes[0].haste.load(Relaxed));
    }
    assert_eq!(
        [1, 2 * 64, 2 * 64 + 1, 2 * 65, 2 * 65 + 1, 2 * 95].map(|ticket: usize| hastes[ticket]),
        [1, 1, 1, 3, 3, 2]
    );
    let followed = follower.finish(trace.record());
    assert_eq!((followed.bursts, followed.counted_accesses), (96, 960));
    // They stand for 15, 63 times 20, 30, 30 times 40, and 55 accesses, of which all of the first and of those from the 65th walk: as many
    // of the 960 as 1300 are of 2560.
    let data = followed.counts[0].data;
    assert_eq!((data.accesses, data.walks), (960, 488));
    assert_eq!(followed.blame.values().map(|blame| blame.walks).sum::<u64>(), 488);
}

#[test]
fn a_whole_run_has_no_bursts() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    begin(&trace, 0, std::process::id());
    hand_over(&trace, (0, 0), 0, Phase::Counted, 1, &pages(0, 10));
    hand_over(&trace, (0, 1), 1, Phase::Passing, 1, &[]);
    hand_over(&trace, (0, 2), 2, Phase::Counted, 1, &pages(5, 20));
    let followed = follow(&trace);
    assert_eq!((followed.bursts, followed.relative_error, followed.counts[0].data.walks), (0, None, 25));
}

#[test]
fn threads_without_a_lane_are_told() {
    let trace = SharedTrace::create(BURSTS).unwrap();
    trace.record().laneless.store(3, Relaxed);
    trace.record().execs.store(2, Relaxed);
    let followed = follow(&trace);
    assert_eq!((followed.laneless, followed.execs, followed.threads), (3, 2, 0));
}

#[test]
fn the_rest_of_a_dead_process_is_read_at_the_end() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    begin(&trace, 5, std::process::id());
    hand_over(&trace, (5, 0), 0, Phase::Counted, 1, &pages(0, 3));
    write(&trace, 5, 1, &pages(3, 7));
    let mut noted = Noted::default();
    let mut reader = Reader::new(&trace);
    reader.read(&mut noted, NO_WAIT);
    assert_eq!((noted.heard.len(), noted.left.len()), (1, 0), "it lives, as far as anyone knows");
    reader.read_rest(&mut noted);
    assert_eq!(noted.heard[1], (5, pages(3, 7)));
    assert_eq!(noted.left, [5]);
    assert_eq!(trace.record().lanes[5].process.load(Relaxed), 0);
}

#[test]
fn the_rest_counts_where_everything_does() {
    for (plan, counted) in [(Plan::default(), 7), (BURSTS, 0)] {
        let trace = SharedTrace::create(plan).unwrap();
        begin(&trace, 0, std::process::id());
        write(&trace, 0, 0, &pages(0, 7));
        let followed = follow(&trace);
        assert_eq!((followed.accesses, followed.counted_accesses), (7, counted), "{plan:?}");
        assert_eq!(followed.counts[0].data.walks, counted);
    }
}

/// Reads until so many lanes were left, or it takes too long.
fn read_until_left(trace: &SharedTrace, lanes: usize) -> Noted {
    let (mut noted, mut reader) = (Noted::default(), Reader::new(trace));
    let late = Instant::now() + Duration::from_secs(20);
    while noted.left.len() < lanes && Instant::now() < late {
        reader.read(&mut noted, Duration::from_millis(1));
    }
    noted
}

#[test]
fn lanes_of_killed_processes_are_taken_back() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    let mut killed = Command::new("sleep").arg("1000").spawn().unwrap();
    let dead = killed.id();
    // Two lanes are of a living process, all others of one that is no more.
    (0..LANES).for_each(|lane| begin(&trace, lane, if lane < 2 { std::process::id() } else { dead }));
    hand_over(&trace, (7, 0), 1, Phase::Counted, 1, &pages(7, 1));
    write(&trace, 7, 1, &pages(8, 1));
    hand_over(&trace, (0, 0), 2, Phase::Counted, 1, &pages(9, 1));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let noted = read_until_left(&trace, LANES - 2);
    assert_eq!(noted.left, (2..LANES).collect::<Vec<_>>());
    assert_eq!(noted.first_pages()[..3], [7, 9, 8], "what was handed over comes in its turn, and then what was not");
    let taken = trace.record().lanes.iter().filter(|lane| lane.process.load(Relaxed) != 0).count();
    assert_eq!(taken, 2, "the living keep theirs");
    // The lane is as new: its next thread begins with the first batch.
    begin(&trace, 7, std::process::id());
    hand_over(&trace, (7, 0), 3, Phase::Counted, 1, &pages(10, 1));
    let mut again = Noted::default();
    Reader::new(&trace).read(&mut again, NO_WAIT);
    assert_eq!(again.heard, [(7, pages(10, 1))]);
}

#[test]
fn what_a_killed_process_handed_over_at_last_is_not_taken_for_its_rest() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    begin(&trace, 0, std::process::id());
    begin(&trace, 1, ended.id());
    // As if they had been handed over after the reader looked: by the dead first and third, by another second.
    hand_over(&trace, (1, 0), 0, Phase::Counted, 2, &pages(0, 1));
    hand_over(&trace, (0, 0), 1, Phase::Counted, 2, &pages(1, 1));
    hand_over(&trace, (1, 1), 2, Phase::Counted, 2, &pages(2, 1));
    write(&trace, 1, 2, &pages(3, 1));
    let (mut noted, mut reader) = (Noted::default(), Reader::new(&trace));
    reader.reclaim(&mut noted);
    assert_eq!((noted.first_pages(), noted.left), (vec![0, 1, 2, 3], vec![1]));
}

#[test]
fn a_zombie_has_left_its_lane_too() {
    let trace = SharedTrace::create(Plan::default()).unwrap();
    let mut killed = Command::new("sleep").arg("1000").spawn().unwrap();
    begin(&trace, 0, killed.id());
    let mut noted = Noted::default();
    Reader::new(&trace).read(&mut noted, NO_WAIT);
    assert!(noted.left.is_empty(), "it lives");
    killed.kill().unwrap();
    let noted = read_until_left(&trace, 1);
    assert_eq!(noted.left, [0], "nobody has waited for it");
    killed.wait().unwrap();
}
