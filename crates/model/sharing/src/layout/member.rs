//! A member of a structure: where it lies, what its type asks for, and whether it is a lock.

use serde::{Deserialize, Serialize};

/// The largest natural alignment of a member whose type is not known.
const MOST_ALIGNMENT: u64 = 16;

/// What the names of types of locks contain, in small letters: `pthread_mutex_t`, `std::shared_mutex`, `pthread_spinlock_t`, `mtx_t`,
/// `sem_t`, `std::atomic_flag`, `std::sync::RwLock`, `parking_lot::RawMutex`.
const LOCKS: [&str; 9] =
    ["mutex", "spinlock", "spin_lock", "rwlock", "mtx_t", "sem_t", "semaphore", "atomic_flag", "critical_section"];

/// A member of a structure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its declaration, as in `long long SX` or `char name[12]`; empty where it is not known.
    pub declaration: String,
    /// Bytes from the start of the element.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// What its address has to be a multiple of, by its type, in bytes; 0 where that is not known.
    #[serde(default)]
    pub alignment: u64,
}

impl Member {
    /// Its type as it is declared, without its name; empty where it is not known.
    #[must_use]
    pub fn kind(&self) -> &str {
        let declared = self.declaration.split('[').next().unwrap_or_default();
        let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        declared.trim_end_matches(is_of_name).trim_end()
    }

    /// Whether its type is one of a lock: a mutex, a spin lock, a semaphore. A pointer to one is none.
    #[must_use]
    pub fn is_lock(&self) -> bool {
        let kind = self.kind().to_ascii_lowercase();
        !kind.ends_with(['*', '&']) && LOCKS.iter().any(|lock| kind.contains(lock))
    }

    /// Whether it lies across two lines, and is no larger than one, if its element begins at this address.
    #[must_use]
    pub fn crosses(&self, element: u64, line_bytes: u64) -> bool {
        let start = element.saturating_add(self.offset);
        (1..=line_bytes).contains(&self.bytes)
            && start / line_bytes != start.saturating_add(self.bytes - 1) / line_bytes
    }

    /// What its type asks for; where that is not known, the largest power of two that divides both size and offset, up to 16.
    pub(super) fn natural_alignment(&self) -> u64 {
        if self.alignment > 0 {
            return self.alignment;
        }
        let both = self.bytes | self.offset | MOST_ALIGNMENT;
        1 << both.trailing_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::Member;

    fn declared(declaration: &str) -> Member {
        Member { declaration: declaration.to_owned(), bytes: 8, ..Member::default() }
    }

    #[test]
    fn locks_are_known_by_their_types() {
        for lock in [
            "pthread_mutex_t m",
            "pthread_spinlock_t guard",
            "volatile pthread_spinlock_t guards[8]",
            "std::mutex m",
            "std::__shared_mutex_pthread m__M_impl",
            "std::atomic_flag busy",
            "std::sys::sync::mutex::futex::Mutex lock_inner",
            "sem_t free_slots",
            "mtx_t m",
        ] {
            assert!(declared(lock).is_lock(), "{lock}");
        }
        for other in ["long mutex", "pthread_mutex_t *m", "std::mutex &m", "int spinlock_count", "char rwlock[8]", ""] {
            assert!(!declared(other).is_lock(), "{other}");
        }
    }

    #[test]
    fn a_type_is_what_stands_before_the_name() {
        let kinds = ["char name[12]", "long long SX", "struct queue *next", "std::atomic<int> hits", "x", ""];
        assert_eq!(
            kinds.map(|declaration| declared(declaration).kind().to_owned()),
            ["char", "long long", "struct queue *", "std::atomic<int>", "", ""]
        );
    }

    #[test]
    fn a_member_lies_across_lines_by_the_address_of_its_element() {
        let member = Member { offset: 60, bytes: 8, ..Member::default() };
        assert!(member.crosses(0x1000, 64) && !member.crosses(0x1004, 64) && member.crosses(0x1000 + 7 - 4, 64));
        assert!(!Member { bytes: 65, ..member.clone() }.crosses(0x1000, 64), "none that needs two lines");
        assert!(!Member { offset: u64::MAX, bytes: 0, ..member }.crosses(u64::MAX, 64));
    }
}
