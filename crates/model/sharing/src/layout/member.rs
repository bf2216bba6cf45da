//! A member of a structure: its place, its alignment, and whether it is a lock.

use serde::{Deserialize, Serialize};

/// The largest natural alignment assumed for a member of unknown type.
const MOST_ALIGNMENT: u64 = 16;

/// Parts of the names of lock types, in lower case: `pthread_mutex_t`, `std::shared_mutex`,
/// `pthread_spinlock_t`, `mtx_t`, `sem_t`, `std::atomic_flag`, `std::sync::RwLock`,
/// `parking_lot::RawMutex`.
const LOCKS: [&str; 9] =
    ["mutex", "spinlock", "spin_lock", "rwlock", "mtx_t", "sem_t", "semaphore", "atomic_flag", "critical_section"];

/// A member of a structure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its declaration, such as `long long SX` or `char name[12]`; empty if unknown.
    pub declaration: String,
    /// Offset in the element in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Alignment of its type in bytes; 0 if unknown.
    #[serde(default)]
    pub alignment: u64,
}

impl Member {
    /// Its declared type without the name; empty if unknown.
    #[must_use]
    pub fn kind(&self) -> &str {
        let declared = self.declaration.split('[').next().unwrap_or_default();
        let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        declared.trim_end_matches(is_of_name).trim_end()
    }

    /// Whether its type is a lock: a mutex, a spin lock, a semaphore. A pointer to a lock is none.
    #[must_use]
    pub fn is_lock(&self) -> bool {
        let kind = self.kind().to_ascii_lowercase();
        !kind.ends_with(['*', '&']) && LOCKS.iter().any(|lock| kind.contains(lock))
    }

    /// Whether it crosses a line boundary although it would fit on one line, if its element starts
    /// at this address.
    #[must_use]
    pub fn crosses(&self, element: u64, line_bytes: u64) -> bool {
        let start = element.saturating_add(self.offset);
        (1..=line_bytes).contains(&self.bytes)
            && start / line_bytes != start.saturating_add(self.bytes - 1) / line_bytes
    }

    /// The alignment of its type. If unknown, the largest power of two that divides size and
    /// offset, up to 16.
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
    fn locks_are_recognized_by_type() {
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
    fn a_type_is_the_declaration_before_the_name() {
        let kinds = ["char name[12]", "long long SX", "struct queue *next", "std::atomic<int> hits", "x", ""];
        assert_eq!(
            kinds.map(|declaration| declared(declaration).kind().to_owned()),
            ["char", "long long", "struct queue *", "std::atomic<int>", "", ""]
        );
    }

    #[test]
    fn crossing_depends_on_the_address_of_the_element() {
        let member = Member { offset: 60, bytes: 8, ..Member::default() };
        assert!(member.crosses(0x1000, 64) && !member.crosses(0x1004, 64) && member.crosses(0x1000 + 7 - 4, 64));
        assert!(!Member { bytes: 65, ..member.clone() }.crosses(0x1000, 64), "none that needs two lines");
        assert!(!Member { offset: u64::MAX, bytes: 0, ..member }.crosses(u64::MAX, 64));
    }
}
