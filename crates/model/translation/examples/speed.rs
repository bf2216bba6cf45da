//! Measures the time to simulate an access: `cargo run --release -p fieldstone-translation
//! --example speed`.
//!
//! Access patterns: GUPS (every access to another page), a sequential walk, and a few hot pages.
//! Through each of four configurations, through all four together, and through a miss-ratio curve.

use std::time::Instant;

use fieldstone_translation::{Configuration, MissRatioCurve, Mmu, PageSize, PlacedAccess, Simulator};

const BATCH: usize = 4096;
const ACCESSES: u64 = 1000 * BATCH as u64;
const FOOTPRINT: u64 = 512 << 20;

fn main() {
    let machine = Mmu::preset("zen4").unwrap_or_else(|| unreachable!("a preset"));
    let mut all: Vec<Configuration> = PageSize::ALL.map(|size| Configuration::paged(&machine, size)).to_vec();
    all.push(Configuration::direct_segment(&machine));
    for (name, pattern) in [("random", random as fn(u64) -> u64), ("sequential", sequential), ("hot", hot)] {
        for configuration in &all {
            report(name, &configuration.name, std::slice::from_ref(configuration), pattern);
        }
        report(name, "all four", &all, pattern);
        let mut curve = MissRatioCurve::new(PageSize::Small4k);
        let ns = time(pattern, |batch| curve.run(batch));
        println!("{name:>12} {:>16} {ns:6.1} ns per access", "miss ratio");
    }
}

fn report(pattern_name: &str, name: &str, configurations: &[Configuration], pattern: fn(u64) -> u64) {
    let Ok(mut simulator) = Simulator::new(configurations) else { return };
    let ns = time(pattern, |batch| simulator.run(batch));
    let side = simulator.counts()[0].data;
    assert_eq!(side.accesses, ACCESSES);
    println!("{pattern_name:>12} {name:>16} {ns:6.1} ns per access, {:.3} walks per access", side.walk_rate());
}

/// Nanoseconds per access in `run`: the 10th percentile of all batches. Creating the accesses is
/// not timed.
fn time(pattern: fn(u64) -> u64, mut run: impl FnMut(&[PlacedAccess])) -> f64 {
    let mut times: Vec<f64> = Vec::new();
    for start in (0..ACCESSES).step_by(BATCH) {
        let batch: Vec<PlacedAccess> =
            (0..BATCH as u64).map(|step| PlacedAccess::in_region(pattern(start + step))).collect();
        let begin = Instant::now();
        run(&batch);
        times.push(begin.elapsed().as_secs_f64() * 1e9 / BATCH as f64);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

fn random(step: u64) -> u64 {
    let mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 29) % FOOTPRINT
}

fn sequential(step: u64) -> u64 {
    step * 64 % FOOTPRINT
}

fn hot(step: u64) -> u64 {
    random(step) % (48 << 12)
}
