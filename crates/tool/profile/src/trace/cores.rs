//! What stands for the core that a thread has to itself: simulators of all configurations.

use fieldstone_report::translation::canonical;
use fieldstone_translation::{Configuration, Counts, Simulator};

use crate::error::Result;

/// The configuration whose walks are looked at one by one: 4 KiB pages.
pub(super) const BASELINE: usize = 0;
/// The one whose walks are looked at beside them, where there is one.
const LARGE: &str = "2m";

/// A thread's core. A simulator tells the single walks of one configuration, so that of 2 MiB pages has one of its own.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) simulator: Simulator,
    /// Its place among the configurations.
    large: Option<(usize, Simulator)>,
}

impl Core {
    pub(super) fn new(configurations: &[Configuration]) -> Result<Self> {
        let mut others = configurations.to_vec();
        let at = configurations.iter().position(|one| canonical(&one.name) == LARGE).filter(|&at| at != BASELINE);
        let watching = |configurations: &[Configuration]| {
            let mut simulator = Simulator::new(configurations)?;
            simulator.watch(Some(0));
            Ok::<_, crate::Error>(simulator)
        };
        let large = at.map(|at| Ok::<_, crate::Error>((at, watching(&[others.remove(at)])?))).transpose()?;
        Ok(Self { simulator: watching(&others)?, large })
    }

    /// All of it.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Simulator> {
        std::iter::once(&mut self.simulator).chain(self.large.as_mut().map(|(_, large)| large))
    }

    /// What was counted, in the order of the configurations.
    pub(super) fn counts(&self) -> Vec<Counts> {
        let mut counts = self.simulator.counts().to_vec();
        if let Some((at, large)) = &self.large {
            large.counts().iter().for_each(|one| counts.insert(*at, *one));
        }
        counts
    }

    /// Places in the last batch of the accesses that walked on 2 MiB pages.
    pub(super) fn walked_large(&self) -> &[u32] {
        self.large.as_ref().map_or(&[], |(_, large)| large.walked())
    }

    /// Walks for data so far, in the order of the configurations.
    pub(super) fn walks(&self) -> Vec<u64> {
        self.counts().iter().map(|counts| counts.data.walks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_translation::{Access, Machine, PageSize};

    #[test]
    fn two_mebibyte_pages_stand_apart_and_count_as_before() {
        let machine = Machine::preset("zen4").unwrap();
        let sizes = [PageSize::Small4k, PageSize::Large2m, PageSize::Huge1g];
        let configurations = sizes.map(|size| Configuration::paged(&machine, size));
        let mut core = Core::new(&configurations).unwrap();
        let mut together = Simulator::new(&configurations).unwrap();
        let mut region = fieldstone_translation::PrimaryRegion::default();
        region.add(0, 64 << 20);
        let batch: Vec<Access> = (0..64 << 8).map(|page| region.place(page << 12, false)).collect();
        core.each().for_each(|simulator| simulator.run(&batch));
        together.run(&batch);
        assert_eq!(core.counts(), together.counts());
        assert_eq!(core.walked_large().len(), 32, "one walk for each page of 2 MiB");
        assert_eq!(core.simulator.walked().len(), 64 << 8, "and for each of 4 KiB");
        let small = Core::new(&configurations[..1]).unwrap();
        assert!(small.large.is_none() && small.walked_large().is_empty());
    }
}
