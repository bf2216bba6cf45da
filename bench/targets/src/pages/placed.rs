//! All threads of this process on one processor, for cells in which one thread waits for another: where the system puts the two
//! is luck, worth a factor of six, and each side has its own.

use std::fs;

use anyhow::Context as _;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Gives the threads back their processors when it is dropped.
pub(super) struct OneProcessor(CpuSet);

impl OneProcessor {
    pub(super) fn take() -> anyhow::Result<Self> {
        let before = sched_getaffinity(None).context("sched_getaffinity")?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        place(&one)?;
        Ok(Self(before))
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        // Threads that are slow to go only, and it worked before.
        let _ = place(&self.0);
    }
}

fn place(processors: &CpuSet) -> anyhow::Result<()> {
    for task in fs::read_dir("/proc/self/task")? {
        let number = task?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        sched_setaffinity(number, processors).context("sched_setaffinity")?;
    }
    Ok(())
}
