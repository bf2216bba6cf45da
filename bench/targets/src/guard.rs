//! The section `[guard]`: guard pages for heaps, against comparisons, mprotect(2) and other tools.
//!
//! ```text
//! bump             allocation without a limit check against compare and branch
//! slots            guarded objects against slots by mprotect(2); the number of guards
//! protected_slots  slots by mprotect(2), as GWP-ASan has them
//! programs         programs under `fieldstone run --guard`: processor time
//! tools            GWP-ASan, Electric Fence, DUMA and AddressSanitizer on one C program
//! pairs.c          that program
//! ```
//! Lines that begin with `#` have no goal.

mod bump;
mod programs;
mod protected_slots;
mod slots;
mod tools;

use crate::cell::GoalCell;
use crate::request::Request;

const SECTION: &str = "guard";

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    let wanted = |name: &str| name.contains(only).then(|| goals.get(SECTION, name)).transpose();
    if let Some(goal) = wanted("bump_vs_compare")? {
        bump::measure(&goal, limit, show)?;
    }
    if let Some(goal) = wanted("sampled_cost")? {
        programs::measure(&goal, limit, show)?;
    }
    if let Some(goal) = wanted("guarded_alloc_vs_mprotect")? {
        slots::measure(&goal, limit, show)?;
    }
    if let Some(goal) = wanted("guards_in_one_process")? {
        show(slots::count_guards(goal)?);
    }
    if "other tools".contains(only) {
        tools::measure()?;
    }
    Ok(())
}
