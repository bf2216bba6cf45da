//! One test of the machine at a time on the hugetlb pool.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};

/// Waits for its turn, which lasts as long as the file lives.
pub(crate) fn lock() -> File {
    let path = std::env::temp_dir().join("fieldstone-hugetlb.lock");
    // Another user may have made it; who may only read it can lock it too.
    let file = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path));
    let file = file.expect("a lock file in the temporary directory");
    flock(&file, FlockOperation::LockExclusive).expect("flock");
    file
}
