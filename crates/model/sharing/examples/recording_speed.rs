//! The cost of recording an access: `cargo run --release -p fieldstone-sharing --example recording_speed`.
//!
//! Four threads access few lines, as under contention. Then they access enough lines that the
//! table is always full.

use std::time::Instant;

use fieldstone_sharing::{JudgedLine, LineTable, Result, SampledAccess, Settings};

const ACCESSES: u32 = 2_000_000;

fn main() -> Result<()> {
    for lines in [16_u32, 4096, 1 << 20] {
        let mut table = LineTable::new(Settings::default())?;
        let start = Instant::now();
        let mut number = 1_u32;
        for at in 0..ACCESSES {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let address = u64::from(number >> 8) % u64::from(lines) * 64 + u64::from(at % 4) * 8;
            let (thread, at_ns) = (at % 4, u64::from(at) * 25_000);
            let site = 0x40_0000 + u64::from(at % 7);
            table.record(&SampledAccess {
                address,
                bytes: 8,
                write: true,
                thread,
                site,
                weight: 0.2,
                at_ns,
                cpu: thread,
                ..SampledAccess::default()
            });
        }
        let an_access = start.elapsed().as_nanos() as f64 / f64::from(ACCESSES);
        let now_ns = u64::from(ACCESSES) * 25_000;
        let start = Instant::now();
        let heaviest: Vec<JudgedLine> = table.heaviest(64, now_ns).into_iter().map(JudgedLine::new).collect();
        let findings = heaviest.iter().filter(|judged| judged.verdict.is_finding()).count();
        let judged_us = start.elapsed().as_nanos() as f64 / 1e3;
        println!(
            "{lines:8} lines: {an_access:5.0} ns an access; {judged_us:6.0} us to judge {}, {findings} findings",
            heaviest.len()
        );
    }
    Ok(())
}
