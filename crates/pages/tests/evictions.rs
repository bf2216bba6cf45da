//! What is evicted is missing again, whatever was noted of it.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use common::{PAGE, read, write};
use fieldstone_pages::{Fault, Filling, Mechanism, Memory, Outcome};

#[test]
fn a_written_page_that_is_evicted_is_clean_and_filled_again() {
    let fill = |fault: &Fault<'_>| if fault.fill(&[9; PAGE]).is_err() { Outcome::Chain } else { Outcome::Resolved };
    for mechanism in [Mechanism::Scan, Mechanism::ProtectThread] {
        // SAFETY: the handler runs in a thread.
        let filling = unsafe { Filling::with(Memory::shared(4 * PAGE).unwrap(), true, mechanism, fill) }.unwrap();
        for page in [0, 1, 3] {
            write(filling.memory(), page * PAGE, 1);
        }
        filling.evict(PAGE..3 * PAGE).unwrap();
        let dirty: Vec<_> = filling.dirty().unwrap().flat_map(|range| range.unwrap().step_by(PAGE)).collect();
        assert_eq!(dirty, [0, 3 * PAGE], "{mechanism}: what was evicted is not there to be saved");
        assert_eq!((read(filling.memory(), PAGE), read(filling.memory(), 0)), (9, 1), "{mechanism}: filled again");
        write(filling.memory(), PAGE, 2);
        assert_eq!(filling.dirty().unwrap().count(), 1, "{mechanism}: and noted again");
    }
}
