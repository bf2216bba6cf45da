//! The order of the runs: each round the reverse of the one before (ABBA), so that drift cancels in pairs of rounds.

/// Rounds of all kinds, with each run's round.
pub(super) fn abba<K: Copy>(kinds: &[K], rounds: u32) -> Vec<(u32, K)> {
    let mut sequence = Vec::new();
    for round in 0..rounds {
        let forward = kinds.iter().copied().map(|kind| (round, kind));
        if round % 2 == 0 {
            sequence.extend(forward);
        } else {
            sequence.extend(forward.rev());
        }
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_wire::PageKind;

    #[test]
    fn each_kind_has_the_same_mean_place() {
        let kinds = [PageKind::Small4k, PageKind::Thp, PageKind::Hugetlb2m];
        let sequence = abba(&kinds, 6);
        assert_eq!(sequence.len(), 18);
        let place =
            |kind| sequence.iter().enumerate().filter(|(_, run)| run.1 == kind).map(|(place, _)| place).sum::<usize>();
        assert_eq!(place(PageKind::Small4k), place(PageKind::Thp));
        assert_eq!(place(PageKind::Thp), place(PageKind::Hugetlb2m));
        for round in 0..6 {
            assert_eq!(sequence.iter().filter(|run| run.0 == round).count(), 3);
        }
    }
}
