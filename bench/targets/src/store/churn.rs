//! The size of the files after all values were overwritten ten times.

use fieldstone_stats::Estimate;

use super::{SECTION, Scale};
use crate::cell::GoalCell;
use crate::request::Request;
use fieldstone_peers::store::Records;
use fieldstone_peers::store::{ENGINES, EngineType, Entry, OpenStore};

const GOAL: &str = "size_after_churn";
const PASSES: u64 = 10;
/// Transactions of a pass.
const TRANSACTIONS: usize = 4;

/// Measures the wanted cells: one for each order in which the records were first inserted.
pub(super) fn measure(request: &Request<'_>, scale: &Scale, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let records = Records::new(scale.records);
    let orders: [(&str, Vec<Entry<'_>>, &[EngineType]); 2] = [
        ("inserted in order", records.in_order(1), &ENGINES[..1]),
        ("inserted in random order", records.shuffled(1), &ENGINES),
    ];
    for (case, entries, engine_types) in orders {
        let goal = request.goals.get(SECTION, GOAL)?;
        if !format!("{GOAL} {case}").contains(request.only) {
            continue;
        }
        let measure = |&engine_type: &EngineType| overwrite(engine_type, &entries, &records, scale);
        let ratios: Vec<f64> = engine_types.iter().map(measure).collect::<anyhow::Result<_>>()?;
        let peers: Vec<String> =
            engine_types.iter().zip(&ratios).skip(1).map(|(peer, ratio)| format!("{} {ratio:.2}", peer.name)).collect();
        let ratio = ratios[0];
        let estimate = Estimate { n: 1, median: ratio, low: ratio, high: ratio, confidence: Some(1.0) };
        show(GoalCell::measured(goal, case, Some(estimate), &peers.join(", ")));
    }
    Ok(())
}

/// Inserts the entries, and overwrites each value in random order in each pass. Returns the bytes of the
/// files of the closed store, divided by those of all keys and values.
fn overwrite(engine_type: EngineType, entries: &[Entry<'_>], records: &Records, scale: &Scale) -> anyhow::Result<f64> {
    let store = OpenStore::create(engine_type)?;
    store.write(entries, scale.batch)?;
    for pass in 0..PASSES {
        let overwrites = records.shuffled(2 + pass);
        store.write(&overwrites, overwrites.len().div_ceil(TRANSACTIONS))?;
    }
    Ok(store.close()? as f64 / records.live_bytes() as f64)
}
