//! A user without permission for copy before write.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::scope;
use std::time::Duration;

use fieldstone_checkpoint::{Checkpointer, Directory, Error};

use crate::fixture::{MIB, WORDS, contents, filled};

/// Set in the process of the other user.
const ALONE: &str = "FIELDSTONE_TEST_WITHOUT_PERMISSION";
const NOBODY: u32 = 65534;

/// A save beside a fast writer is refused, and the next one works.
#[test]
fn child() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(16 * MIB);
    let mut saver = Checkpointer::builder([&memory]).stop_limit(Duration::from_micros(1)).build().unwrap();
    let ends = AtomicBool::new(false);
    scope(|threads| {
        threads.spawn(|| {
            while !ends.load(Relaxed) {
                memory.words().iter().step_by(WORDS).for_each(|word| _ = word.fetch_add(1, Relaxed));
            }
        });
        let error = saver.save(&saves, || ((), 1)).unwrap_err();
        assert!(matches!(error, Error::Outrun { .. } | Error::WriterRan), "{error}");
        assert!(error.to_string().contains("vm.unprivileged_userfaultfd=1"), "{error}");
        ends.store(true, Relaxed);
    });
    assert!(!saver.save(&saves, || ((), 2)).unwrap().fell_back);
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
    println!("refused and saved");
}

#[test]
fn a_save_works_after_one_that_was_refused_for_lack_of_permission() {
    let is_allowed = fs::read("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|allowed| allowed.starts_with(b"1"));
    if rustix::process::geteuid().as_raw() != 0 || is_allowed {
        return println!("SKIP not root: no other user can be tried");
    }
    // The build directory may be closed to other users.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("saves");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    command.args(["--exact", "permission::child", "--nocapture"]).env(ALONE, "1").current_dir("/tmp");
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("refused and saved"), "{text}");
}
