//! Order the runs as ABBA: each round reverses the one before, so that linear drift cancels in
//! pairs of rounds.

/// The sequence of runs, as (round, kind).
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
    fn each_kind_has_the_same_mean_position() {
        let kinds = [PageKind::Small4k, PageKind::Thp, PageKind::Hugetlb2m];
        let sequence = abba(&kinds, 6);
        assert_eq!(sequence.len(), 18);
        let position =
            |kind| sequence.iter().enumerate().filter(|(_, run)| run.1 == kind).map(|(position, _)| position).sum::<usize>();
        assert_eq!(position(PageKind::Small4k), position(PageKind::Thp));
        assert_eq!(position(PageKind::Thp), position(PageKind::Hugetlb2m));
        for round in 0..6 {
            assert_eq!(sequence.iter().filter(|run| run.0 == round).count(), 3);
        }
    }
}
