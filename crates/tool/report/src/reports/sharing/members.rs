//! Properties of a member: that it is atomic, that it is a lock, that it is on two lines.
//!
//! A lock is known by its type or, without a type, by the functions of the C library that use it.
//! An atomic is known by the sampled instructions.

use super::uses::{ByteRun, full, runs};
use crate::sharing::LineReport;
use fieldstone_sharing::{Member, ThreadUse};

/// What the names of functions that use a lock contain.
const LOCKING: [&str; 8] = [
    "mutex_lock",
    "mutex_unlock",
    "mutex_trylock",
    "mutex_timedlock",
    "spin_lock",
    "spin_unlock",
    "rwlock_",
    "lll_lock",
];

/// The member of a run with what it is: `[3].m, lock of slots[3], atomic`.
pub(super) fn marked(run: &ByteRun) -> String {
    let name = Some(run.member.clone()).filter(|name| !name.is_empty());
    let atomic = run.is_atomic.then(|| "atomic".to_owned());
    [name, run.lock.clone(), atomic].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The sentences about a line: members on two lines, and locks whose type is not known.
pub(super) fn notes(found: &LineReport) -> Vec<String> {
    crossings(found).into_iter().chain(locked_by(found)).collect()
}

fn crossings(found: &LineReport) -> Vec<String> {
    let mut named: Vec<String> = runs(found).iter().flat_map(|run| crossing_members(found, run)).collect();
    named.sort();
    named.dedup();
    let named = named.into_iter().map(|name| format!("{name} is on two cache lines: each access to it takes both."));
    let sentences: Vec<String> = named.chain(unnamed_crossings(found)).collect();
    let line = &found.judged.line;
    let is_split = |thread: &ThreadUse| {
        let last = line.bytes.saturating_sub(1);
        thread.atomic.has(0) && thread.began_before.has(0) || thread.atomic.has(last) && thread.joined.has(last)
    };
    let split = !sentences.is_empty() && line.threads.iter().any(is_split);
    let slow = "An atomic access across two lines (split lock) stops all processors while it lasts.".to_owned();
    sentences.into_iter().chain(split.then_some(slow)).collect()
}

/// The first and the last member that a run uses, if they are on two lines.
fn crossing_members(found: &LineReport, run: &ByteRun) -> Vec<String> {
    let line = &found.judged.line;
    let addresses =
        [run.bytes.start, run.bytes.end.saturating_sub(1)].map(|byte| line.address.saturating_add(byte.into()));
    let name = |address| {
        let place = found.places.iter().find(|place| place.has(address))?;
        let (element, member) = place.member(address)?;
        let object = place.object.as_ref()?;
        let start = object.address.saturating_add(object.stride.saturating_mul(element.unwrap_or(0)));
        let of = if found.places.len() > 1 { place.short() } else { String::new() };
        member.crosses(start, line.line_bytes.into()).then(|| full(&(of, element, member.name.clone())))
    };
    addresses.into_iter().filter_map(name).collect()
}

/// Accesses across the line's ends, to what has no name.
fn unnamed_crossings(found: &LineReport) -> Option<String> {
    let line = &found.judged.line;
    let last = line.bytes.saturating_sub(1);
    let any = |is: &dyn Fn(&ThreadUse) -> bool| line.threads.iter().any(is);
    let member = |byte: u32| -> Option<&Member> {
        let address = line.address.saturating_add(byte.into());
        found.places.iter().find_map(|place| Some(place.member(address)?.1))
    };
    let before = any(&|thread| thread.began_before.has(0)) && member(0).is_none();
    let behind = any(&|thread| thread.joined.has(last)) && member(last).is_none();
    let ends = match (before, behind) {
        (true, true) => "begin on the line before it, and others end on the line behind it",
        (true, false) => "begin on the line before it",
        (false, true) => "end on the line behind it",
        (false, false) => return None,
    };
    Some(format!("Accesses to this line {ends}: each of these takes two lines."))
}

/// A lock by the functions that use it.
fn locked_by(found: &LineReport) -> Option<String> {
    if runs(found).iter().any(|run| run.lock.is_some()) {
        return None;
    }
    let functions = found.code.iter().map(|code| code.function.trim_start_matches('_'));
    let mut locking: Vec<&str> = functions.filter(|name| LOCKING.iter().any(|part| name.contains(part))).collect();
    locking.sort_unstable();
    locking.dedup();
    (!locking.is_empty()).then(|| format!("A lock is on this line: it is used by {}.", locking.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::{SampledInstruction, fixture};
    use fieldstone_sharing::Bits;

    /// A finding whose first place is one structure of these members, from the line's start on.
    fn found(members: &[(&str, u64, u64)], behind: u64) -> LineReport {
        let mut found = fixture::regression().findings.remove(0);
        let object = found.places[0].object.as_mut().unwrap();
        let member = |&(declaration, offset, bytes): &(&str, u64, u64)| Member {
            name: declaration.rsplit(' ').next().unwrap().to_owned(),
            declaration: declaration.to_owned(),
            offset,
            bytes,
            ..Member::default()
        };
        object.members = members.iter().map(member).collect();
        (object.stride, object.elements, object.address) = (64, 4, found.judged.line.address - behind);
        found.places[0].address = object.address;
        found
    }

    #[test]
    fn atomics_and_locks_are_marked_at_their_names() {
        let mut found = found(&[("pthread_mutex_t m", 0, 16), ("long n", 16, 48)], 0);
        let all = |found: &LineReport| runs(found).iter().map(marked).collect::<Vec<_>>();
        assert_eq!(all(&found)[0], "[0].m, lock of lreg_args[0]");
        assert!(!all(&found)[1].contains("lock"), "{:?}", all(&found));
        found.judged.line.threads[0].atomic = Bits::range(0..4);
        let marked = all(&found);
        assert_eq!(marked[..2], ["[0].m, lock of lreg_args[0], atomic", "[0].m, lock of lreg_args[0]"], "{marked:?}");
        found.places.clear();
        assert_eq!(all(&found)[0], "atomic", "it is known without a name");
    }

    #[test]
    fn a_variable_that_is_a_lock_is_no_lock_of_something() {
        let mut found = found(&[("pthread_spinlock_t guard", 0, 8), ("long n", 8, 8)], 0);
        found.places[0].object.as_mut().unwrap().name = "guard, n".into();
        found.places[0].object.as_mut().unwrap().elements = 1;
        assert_eq!(
            super::super::uses::lock_at(&found.places, [found.judged.line.address].into_iter()).as_deref(),
            Some("a lock")
        );
    }

    #[test]
    fn a_lock_without_a_type_is_known_by_the_functions_that_use_it() {
        let mut found = fixture::regression().findings.remove(0);
        assert_eq!(notes(&found), Vec::<String>::new());
        let code = |function: &str| SampledInstruction { function: function.into(), ..SampledInstruction::default() };
        found.code.extend([code("__pthread_mutex_unlock"), code("pthread_mutex_lock"), code("main")]);
        assert_eq!(notes(&found), ["A lock is on this line: it is used by pthread_mutex_lock, pthread_mutex_unlock."]);
    }

    #[test]
    fn a_member_across_two_lines_is_named() {
        // The element began four bytes before the line, and its second member is across the border.
        let mut found = found(&[("long before", 0, 8), ("long n", 60, 4)], 4);
        found.places[0].object.as_mut().unwrap().elements = 1;
        assert_eq!(notes(&found), ["before is on two cache lines: each access to it takes both."]);
        (found.judged.line.threads[0].began_before, found.judged.line.threads[0].atomic) =
            (Bits::range(0..4), Bits::range(0..4));
        assert!(notes(&found)[1].contains("split lock"), "{:?}", notes(&found));
        found.places.clear();
        assert!(
            notes(&found)[0].starts_with("Accesses to this line begin on the line before it: "),
            "{:?}",
            notes(&found)
        );
    }
}
