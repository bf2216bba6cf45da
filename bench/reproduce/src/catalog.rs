//! The list of all experiments.

use crate::experiment::Experiment;

/// All experiments, in the order of `fieldstone reproduce list`.
#[must_use]
pub fn all() -> Vec<Experiment> {
    vec![
        crate::table2::experiment(),
        crate::figure3::experiment(),
        crate::figure4::experiment(),
        crate::figure5::experiment(),
        crate::blog::experiment(),
        crate::fragmentation::experiment(),
        crate::tree_walks::experiment(),
        crate::appel_li::experiment(),
        crate::heap_overflow::experiment(),
        crate::compression_paging::experiment(),
        crate::checkpoint::experiment(),
        crate::persistent_store::experiment(),
        crate::redb_benchmark::experiment(),
        crate::direct_segments::experiment(),
        crate::cachekata::experiment(),
    ]
}
