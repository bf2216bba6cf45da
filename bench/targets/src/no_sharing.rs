//! The section [sharing] on other processors than x86-64: each goal is skipped.

use std::time::Duration;

use crate::cell::GoalCell;
use crate::goals::Goals;

/// A skipped cell for each goal.
pub(crate) fn measure(
    goals: &Goals,
    _: Duration,
    only: &str,
    _: Option<u32>,
    show: &mut dyn FnMut(GoalCell),
) -> anyhow::Result<()> {
    crate::unmeasured(goals, "sharing", only).for_each(show);
    Ok(())
}
