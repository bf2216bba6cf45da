//! Model the core of a thread: simulators of all configurations.

use fieldstone_report::translation::canonical;
use fieldstone_translation::{Configuration, Counts, Simulator};

use crate::error::Result;

/// Index of the configuration whose walks are attributed one by one: 4 KiB pages.
pub(super) const BASELINE: usize = 0;
/// The second such configuration, if it is modelled.
const LARGE: &str = "2m";

/// A thread's core. A simulator reports single walks of one configuration only, so 2 MiB pages have
/// their own.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) simulator: Simulator,
    /// Its index among the configurations, and its simulator.
    large: Option<(usize, Simulator)>,
}

impl Core {
    pub(super) fn new(configurations: &[Configuration]) -> Result<Self> {
        let mut others = configurations.to_vec();
        let index =
            configurations.iter().position(|one| canonical(&one.name) == LARGE).filter(|&index| index != BASELINE);
        let watching = |configurations: &[Configuration]| {
            let mut simulator = Simulator::new(configurations)?;
            simulator.watch(Some(0));
            Ok::<_, crate::Error>(simulator)
        };
        let large =
            index.map(|index| Ok::<_, crate::Error>((index, watching(&[others.remove(index)])?))).transpose()?;
        Ok(Self { simulator: watching(&others)?, large })
    }

    /// All simulators.
    pub(super) fn simulators(&mut self) -> impl Iterator<Item = &mut Simulator> {
        std::iter::once(&mut self.simulator).chain(self.large.as_mut().map(|(_, large)| large))
    }

    /// The counts of all configurations, in order.
    pub(super) fn counts(&self) -> Vec<Counts> {
        let mut counts = self.simulator.counts().to_vec();
        if let Some((index, large)) = &self.large {
            large.counts().iter().for_each(|one| counts.insert(*index, *one));
        }
        counts
    }

    /// Indices in the last batch of the accesses that walked on 2 MiB pages.
    pub(super) fn walked_large(&self) -> &[u32] {
        self.large.as_ref().map_or(&[], |(_, large)| large.walked())
    }

    /// Data walks of all configurations, in order.
    pub(super) fn walks(&self) -> Vec<u64> {
        self.counts().iter().map(|counts| counts.data.walks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_translation::{Access, Machine, PageSize};

    #[test]
    fn separate_simulation_of_2_mib_pages_gives_the_same_counts() {
        let machine = Machine::preset("zen4").unwrap();
        let sizes = [PageSize::Small4k, PageSize::Large2m, PageSize::Huge1g];
        let configurations = sizes.map(|size| Configuration::paged(&machine, size));
        let mut core = Core::new(&configurations).unwrap();
        let mut together = Simulator::new(&configurations).unwrap();
        let mut region = fieldstone_translation::PrimaryRegion::default();
        region.add(0, 64 << 20);
        let batch: Vec<Access> = (0..64 << 8).map(|page| region.place(page << 12, false)).collect();
        core.simulators().for_each(|simulator| simulator.run(&batch));
        together.run(&batch);
        assert_eq!(core.counts(), together.counts());
        assert_eq!(core.walked_large().len(), 32, "one walk per 2 MiB page");
        assert_eq!(core.simulator.walked().len(), 64 << 8, "one walk per 4 KiB page");
        let small = Core::new(&configurations[..1]).unwrap();
        assert!(small.large.is_none() && small.walked_large().is_empty());
    }
}
