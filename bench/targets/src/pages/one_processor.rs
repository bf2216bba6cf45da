//! Pins all threads of this process to one processor, for cells in which one thread waits for
//! another. Otherwise the scheduler's placement changes their time by up to a factor of six.

use std::fs;

use anyhow::Context as _;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Restores the previous affinity when dropped.
pub(super) struct OneProcessor(CpuSet);

impl OneProcessor {
    pub(super) fn pin() -> anyhow::Result<Self> {
        let before = sched_getaffinity(None).context("sched_getaffinity")?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        set_affinity(&one)?;
        Ok(Self(before))
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        // Setting the same affinity succeeded before; a failure only slows later cells down.
        let _ = set_affinity(&self.0);
    }
}

fn set_affinity(processors: &CpuSet) -> anyhow::Result<()> {
    for task in fs::read_dir("/proc/self/task")? {
        let number = task?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        sched_setaffinity(number, processors).context("sched_setaffinity")?;
    }
    Ok(())
}
