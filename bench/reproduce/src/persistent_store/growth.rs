//! The cells of file sizes: the bytes of the files over the live bytes, while all values are overwritten.

use anyhow::Result;
use fieldstone_peers::store::{EngineType, OpenStore, Records};

use super::{LOAD_BATCH, MEMORY_BYTES, STORES};
use crate::experiment::{Cell, MeasuredValue, Row, SampleOutcome};

const TABLE: &str = "File bytes over live bytes, by the number of overwrites of all values";
/// The columns: overwrites.
const OVERWRITES: [&str; 11] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
/// Transactions of an overwrite.
const TRANSACTIONS: usize = 4;

/// A cell for each store.
pub(super) fn cells(records: usize) -> impl Iterator<Item = Cell> {
    STORES.into_iter().map(move |store| {
        let id = format!("persistent-store/churn/{}/{records}", store.name.to_lowercase());
        let rows = OVERWRITES.map(|column| Row::ratio(TABLE, store.name).in_column(column));
        Cell::new(id, store.name, MEMORY_BYTES, rows.into(), move |_| {
            Ok(SampleOutcome::measured(measure(store, &Records::new(records))?))
        })
    })
}

/// The size after each overwrite. The values are bytes, the ratios multiples of the live bytes.
fn measure(store_type: EngineType, records: &Records) -> Result<Vec<MeasuredValue>> {
    let store = OpenStore::create(store_type)?;
    let live_bytes = records.live_bytes() as f64;
    let mut values = Vec::new();
    for (overwrites, column) in OVERWRITES.iter().enumerate() {
        let entries = records.shuffled(1 + overwrites as u64);
        store.write(&entries, if overwrites == 0 { LOAD_BATCH } else { entries.len().div_ceil(TRANSACTIONS) })?;
        let bytes = store.file_bytes()? as f64;
        let value = MeasuredValue::of(format!("{}: {column}", store_type.name), bytes);
        values.push(MeasuredValue { ratio: Some(bytes / live_bytes), ..value });
    }
    Ok(values)
}
