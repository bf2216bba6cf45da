//! Serialises tests of this machine that use the hugetlb pool.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};

/// Waits for the lock, which is held until the file is dropped.
pub(crate) fn lock() -> File {
    let path = std::env::temp_dir().join("fieldstone-hugetlb.lock");
    // Another user may have created it; read permission is enough to lock it.
    let file = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path));
    let file = file.expect("a lock file in the temporary directory");
    flock(&file, FlockOperation::LockExclusive).expect("flock");
    file
}
