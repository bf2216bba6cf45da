//! Each primitive's mechanism, fallback, losses and cost on this machine: for `fieldstone doctor`.
//!
//! Costs are medians of small batches on a few hundred pages, by one thread. They show the order of
//! magnitude; `fieldstone reproduce appel-li` measures precisely.

#![allow(unsafe_code, reason = "accesses controlled memory; runs handlers in signals")]

use std::time::Instant;

use serde::Serialize;

use crate::choice::{IN_SIGNAL, IN_THREAD, TRACKING};
use crate::error::Result;
use crate::fault::{Fault, Outcome};
use crate::filling::Filling;
use crate::guard::GuardMechanism;
use crate::mechanism::{Loss, Mechanism, Watch};
use crate::memory::Memory;
use crate::tracking::Tracking;
use crate::trapping::Trapping;

/// Pages per measurement.
const PAGES: usize = 256;
/// Batches per median.
const BATCHES: usize = 7;

/// One primitive for this machine and user.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Primitive {
    /// Its name, Appel and Li's where they have one.
    pub name: &'static str,
    /// The mechanism in use; `None` if the primitive is not supported.
    pub mechanism: Option<&'static str>,
    /// The mechanism that would be used if that were refused.
    pub fallback: Option<&'static str>,
    /// Cost in nanoseconds per page; `None` if not measured.
    pub cost_ns: Option<f64>,
    /// What the mechanism does not support, or why the primitive is not supported.
    pub lost: Vec<Limitation>,
}

/// Something that a primitive does not support here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Limitation {
    /// A short name.
    pub name: &'static str,
    /// The effect and the remedy.
    pub meaning: String,
}

impl From<Loss> for Limitation {
    fn from(loss: Loss) -> Self {
        Self { name: loss.name(), meaning: loss.to_string() }
    }
}

impl From<crate::Error> for Limitation {
    fn from(error: crate::Error) -> Self {
        Self { name: "refused", meaning: error.to_string() }
    }
}

/// Tests and measures each primitive. Takes about 10 ms and a few MiB, and changes only its own
/// memory.
#[must_use]
pub fn survey() -> Vec<Primitive> {
    let parts = [
        traps("TRAP, in a thread", &IN_THREAD),
        traps("TRAP, in a signal", &IN_SIGNAL),
        protections(),
        dirty(),
        second_view(),
        guards(),
        fills(),
    ];
    parts.concat()
}

/// A region for the survey, with its mechanism, losses and fallback.
struct Candidate<T> {
    region: T,
    mechanism: Mechanism,
    losses: Vec<Loss>,
    fallback: Option<Mechanism>,
}

impl<T> Candidate<T> {
    /// The first mechanism of a list that works, and the next one that works.
    fn first(wanted: &[Mechanism], set_up: impl Fn(Mechanism) -> Result<(T, Vec<Loss>)>) -> Result<Self> {
        let mut tried = wanted.iter().map(|&mechanism| (mechanism, set_up(mechanism)));
        let mut refusal = None;
        let candidate = tried.by_ref().find_map(|(mechanism, done)| match done {
            Ok(done) => Some((mechanism, done)),
            Err(error) => {
                refusal = Some(error);
                None
            }
        });
        let fallback = tried.find_map(|(mechanism, done)| done.is_ok().then_some(mechanism));
        match (candidate, refusal) {
            (Some((mechanism, (region, losses))), _) => Ok(Self { region, mechanism, losses, fallback }),
            (None, Some(error)) => Err(error),
            (None, None) => Err(crate::Error::Unsupported { what: "a primitive", why: "no mechanism was named" }),
        }
    }

    fn row(&self, name: &'static str, cost: Result<f64>) -> Primitive {
        let (mechanism, fallback) = (Some(self.mechanism.name()), self.fallback.map(Mechanism::name));
        let lost = self.losses.iter().copied().map(Limitation::from).collect();
        row(name, mechanism, fallback, lost, cost)
    }
}

fn row(
    name: &'static str,
    mechanism: Option<&'static str>,
    fallback: Option<&'static str>,
    mut lost: Vec<Limitation>,
    cost: Result<f64>,
) -> Primitive {
    let cost_ns = cost.map_err(|error| lost.push(error.into())).ok();
    Primitive { name, mechanism, fallback, cost_ns, lost }
}

/// Primitives that are not supported.
fn refused(names: &[&'static str], error: crate::Error) -> Vec<Primitive> {
    let lost = vec![Limitation::from(error)];
    let row = |&name| Primitive { name, mechanism: None, fallback: None, cost_ns: None, lost: lost.clone() };
    names.iter().map(row).collect()
}

fn anonymous() -> Result<Memory> {
    let memory = Memory::anonymous(PAGES * rustix::param::page_size())?;
    memory.populate()?;
    Ok(memory)
}

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn trapping(mechanism: Mechanism) -> Result<(Trapping, Vec<Loss>)> {
    // SAFETY: the handler only makes a system call, which is async-signal-safe.
    let trapping = unsafe { Trapping::with(anonymous()?, Watch::Writes, mechanism, open) }?;
    let losses = trapping.losses();
    Ok((trapping, losses))
}

/// The median cost of `work` in nanoseconds, divided by `count`; `prepare` is not measured.
fn cost(count: usize, mut prepare: impl FnMut() -> Result<()>, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut batches = [0.0; BATCHES];
    for batch in &mut batches {
        prepare()?;
        let start = Instant::now();
        work()?;
        *batch = start.elapsed().as_secs_f64() * 1e9 / count as f64;
    }
    batches.sort_by(f64::total_cmp);
    Ok(batches[BATCHES / 2])
}

fn write_each(start: *mut u8, page_bytes: usize) {
    for page in 0..PAGES {
        // SAFETY: all callers pass the start of PAGES pages of this size.
        unsafe { start.add(page * page_bytes).write_volatile(1) };
    }
}

/// A refused write: handler, unprotect, write.
fn traps(name: &'static str, wanted: &[Mechanism]) -> Vec<Primitive> {
    let candidate = match Candidate::first(wanted, trapping) {
        Ok(candidate) => candidate,
        Err(error) => return refused(&[name], error),
    };
    let memory = candidate.region.memory();
    let cost = cost(
        PAGES,
        || candidate.region.protect(0..memory.bytes()),
        || {
            write_each(memory.as_ptr(), memory.page_bytes());
            Ok(())
        },
    );
    vec![candidate.row(name, cost)]
}

/// Every second page separately, and all pages at once.
fn protections() -> Vec<Primitive> {
    const NAMES: [&str; 3] = ["PROT1", "PROTN", "UNPROT"];
    let candidate = match Candidate::first(&IN_THREAD, trapping) {
        Ok(candidate) => candidate,
        Err(error) => return refused(&NAMES, error),
    };
    let (bytes, page_bytes) = (candidate.region.memory().bytes(), candidate.region.memory().page_bytes());
    let alone = (0..PAGES).step_by(2).map(|page| page * page_bytes..(page + 1) * page_bytes);
    let (all, each) = (0..bytes, alone.collect::<Vec<_>>());
    let costs = [
        cost(
            each.len(),
            || candidate.region.unprotect(all.clone()),
            || each.iter().try_for_each(|one| candidate.region.protect(one.clone())),
        ),
        cost(PAGES, || candidate.region.unprotect(all.clone()), || candidate.region.protect(all.clone())),
        cost(
            each.len(),
            || candidate.region.protect(all.clone()),
            || each.iter().try_for_each(|one| candidate.region.unprotect(one.clone())),
        ),
    ];
    NAMES.into_iter().zip(costs).map(|(name, cost)| candidate.row(name, cost)).collect()
}

/// `dirty` on clean pages, and on written pages, which it makes clean.
fn dirty() -> Vec<Primitive> {
    const NAMES: [&str; 2] = ["DIRTY, a clean page", "DIRTY, a dirty page"];
    let candidate = Candidate::first(&TRACKING, |mechanism| {
        let tracking = Tracking::with(anonymous()?, mechanism)?;
        let losses = tracking.losses();
        Ok((tracking, losses))
    });
    let candidate = match candidate {
        Ok(candidate) => candidate,
        Err(error) => return refused(&NAMES, error),
    };
    let memory = candidate.region.memory();
    let look = || candidate.region.dirty()?.try_for_each(|range| range.map(drop));
    let clean = cost(PAGES, look, look);
    let written = cost(
        PAGES,
        || {
            write_each(memory.as_ptr(), memory.page_bytes());
            Ok(())
        },
        look,
    );
    vec![candidate.row(NAMES[0], clean), candidate.row(NAMES[1], written)]
}

/// The first access to each page through an alias.
fn second_view() -> Vec<Primitive> {
    let page_bytes = rustix::param::page_size();
    let touched = Memory::shared(PAGES * page_bytes).and_then(|memory| {
        memory.populate()?;
        let views = (0..BATCHES).map(|_| memory.alias()).collect::<Result<Vec<_>>>()?;
        let mut next = views.iter();
        let touch = || {
            if let Some(view) = next.next() {
                write_each(view.as_ptr(), page_bytes);
            }
            Ok(())
        };
        cost(PAGES, || Ok(()), touch)
    });
    vec![row("MAP2", touched.is_ok().then_some("memfd"), None, Vec::new(), touched)]
}

/// Every second page of untouched memory.
fn guards() -> Vec<Primitive> {
    let page_bytes = rustix::param::page_size();
    let plain = || Memory::anonymous(PAGES * page_bytes);
    let is_marked =
        plain().is_ok_and(|memory| memory.guard(0..page_bytes).is_ok_and(|done| done == GuardMechanism::Marker));
    let cost = plain().and_then(|memory| {
        let guard = |page| memory.guard(page * page_bytes..(page + 1) * page_bytes).map(drop);
        cost(PAGES / 2, || memory.unguard(0..memory.bytes()), || (0..PAGES).step_by(2).try_for_each(guard))
    });
    let (mechanism, fallback) = if is_marked { ("guard-marker", Some("mprotect")) } else { ("mprotect", None) };
    let lost = if is_marked { Vec::new() } else { vec![Loss::Mappings.into()] };
    vec![row("guard", cost.is_ok().then_some(mechanism), fallback, lost, cost)]
}

/// A read of a missing page: handler, fill by copy.
fn fills() -> Vec<Primitive> {
    let page_bytes = rustix::param::page_size();
    let candidate = Candidate::first(&IN_THREAD, |mechanism| {
        let contents = vec![1; page_bytes];
        let fill = move |fault: &Fault<'_>| {
            if fault.fill(&contents).is_err() { Outcome::Chain } else { Outcome::Resolved }
        };
        // SAFETY: the mechanisms run handlers in a thread, where any code is permitted.
        let filling = unsafe { Filling::with(Memory::shared(PAGES * page_bytes)?, false, mechanism, fill) }?;
        let losses = filling.losses();
        Ok((filling, losses))
    });
    let candidate = match candidate {
        Ok(candidate) => candidate,
        Err(error) => return refused(&["fill"], error),
    };
    let memory = candidate.region.memory();
    let cost = cost(
        PAGES,
        || candidate.region.evict(0..memory.bytes()),
        || {
            write_each(memory.as_ptr(), page_bytes);
            Ok(())
        },
    );
    vec![candidate.row("fill", cost)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_primitive_has_a_cost() {
        let primitives = survey();
        let names: Vec<_> = primitives.iter().map(|primitive| primitive.name).collect();
        let expected = ["TRAP, in a thread", "TRAP, in a signal", "PROT1", "PROTN", "UNPROT"];
        let others = ["DIRTY, a clean page", "DIRTY, a dirty page", "MAP2", "guard", "fill"];
        assert_eq!(names, [expected, others].concat());
        for primitive in &primitives {
            let cost = primitive.cost_ns.unwrap_or_else(|| panic!("mprotect is always available: {primitive:?}"));
            assert!(cost > 0.0 && primitive.mechanism.is_some() && primitive.mechanism != primitive.fallback);
        }
        let cost = |name| primitives.iter().find(|primitive| primitive.name == name).and_then(|found| found.cost_ns);
        assert!(cost("PROTN") < cost("PROT1"), "a batch is cheaper per page: {primitives:?}");
    }

    #[test]
    fn an_unsupported_primitive_has_a_reason() {
        let refused = Candidate::<()>::first(&IN_THREAD, |_| Err(crate::Error::Forked));
        let rows = super::refused(&["TRAP", "PROT1"], refused.err().unwrap());
        assert!(rows.iter().all(|row| row.mechanism.is_none() && row.lost[0].meaning.contains("fork")), "{rows:?}");
    }
}
