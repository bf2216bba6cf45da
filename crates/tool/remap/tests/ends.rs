//! Processes that stop, exit, are killed, are traced by others, or run another kind of code.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fieldstone_remap::{Error, Process, RemapEvent, RestoreReason};
use fieldstone_sys::ptrace::Tracee;
use program::{ProgramBuilder, ProgramUnderTest, restore_reason, split_words};

fn send(running: &ProgramUnderTest, signal: &str) {
    let sent = Command::new("kill").args([signal, &running.child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

fn serve(process: &mut Process, times: u32) {
    (0..times).for_each(|_| drop(process.serve(Duration::from_millis(2)).unwrap()));
}

#[test]
fn a_stopped_program_stays_stopped_while_pages_move() {
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = ProgramBuilder::new("usleep(1000);").options(options).start();
        let Some(mut process) = running.open_and_move() else { return };
        running.serve_until_quiet(&mut process);
        for _ in 0..5 {
            send(&running, "-STOP");
            serve(&mut process, 20);
            process.restore_all(&RestoreReason::Requested).unwrap();
            serve(&mut process, 5);
            process.move_page(&split_words(running.page)).unwrap();
            serve(&mut process, 5);
            let state = std::fs::read_to_string(format!("/proc/{}/stat", running.child.id())).unwrap();
            let state = state.rsplit(") ").next().unwrap().chars().next().unwrap();
            assert!("Tt".contains(state), "it runs: {state}");
            send(&running, "-CONT");
            running.serve_until_quiet(&mut process);
        }
        running.run_phase(&mut process);
        process.restore_all(&RestoreReason::Requested).unwrap();
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{options:?} {output:?}");
    }
}

#[test]
fn the_first_thread_may_exit_before_the_others() {
    let globals = "static void *rest(void *none) { printf(\"done\\n\"); fflush(stdout); getchar(); go_on = 0; while (!real[0] || !real[1]) usleep(1000);
        printf(\"%s %s\\n\", real[0] == counters[8] ? \"right\" : \"wrong\", real[1] == counters[9] ? \"right\" : \"wrong\"); fflush(stdout); exit(0); }";
    let body = "pthread_t t; pthread_create(&t, 0, rest, 0); pthread_exit(0);";
    let mut running = ProgramBuilder::new(body).globals(globals).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.run_phase(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    process.move_page(&split_words(running.page)).unwrap();
    running.serve_until_quiet(&mut process);
    // A tracer that comes only now finds that the first thread has exited.
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// As daemons do. The repairer opens another descriptor. Without one, the page would read as zeros
/// if the repairer were killed.
#[test]
fn closing_all_descriptors_restores_the_page() {
    let body = "CHECK(!syscall(SYS_close_range, 3, ~0U, 0)); usleep(1500000);";
    let mut running = ProgramBuilder::new(body).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    let done = running.run_phase(&mut process);
    assert!(
        done.contains(&RemapEvent::Restored { page: running.page, why: RestoreReason::DescriptorClosed }),
        "{done:?}"
    );
    process.move_page(&split_words(running.page)).unwrap();
    running.serve_until_quiet(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// As the kernel does at an exit. Here that takes long: for each descriptor it searches the locks
/// that a child has on the file.
#[test]
fn an_exit_is_not_taken_for_closed_descriptors() {
    let before = "struct rlimit many; getrlimit(RLIMIT_NOFILE, &many); many.rlim_cur = many.rlim_max < 20000 ? many.rlim_max : 20000;
        CHECK(!setrlimit(RLIMIT_NOFILE, &many));
        int fd = memfd_create(\"locked\", 0), ready[2]; char byte; CHECK(!pipe(ready));
        if (!fork()) { prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int i = 0; i < 10000; i++) { struct flock lock = { F_WRLCK, SEEK_SET, 2 * i, 1, 0 }; CHECK(!fcntl(fd, F_SETLK, &lock)); }
            CHECK(write(ready[1], &byte, 1) == 1); sleep(60); _exit(0); }
        CHECK(read(ready[0], &byte, 1) == 1); for (int i = 0; i < 15000 && dup(fd) > 0; i++);";
    let builder = ProgramBuilder::new("usleep(1000);").globals("#include <sys/resource.h>").before(before);
    let _ = builder.assert_same_results();
}

#[test]
fn a_program_with_few_descriptors_gets_the_lowest_free_one() {
    let before = "struct rlimit l = { 64, 64 }; CHECK(!setrlimit(RLIMIT_NOFILE, &l));";
    let body = "int fd = open(\"/dev/null\", O_RDONLY); CHECK(fd == 3); close(fd);";
    let builder = ProgramBuilder::new(body).globals("#include <sys/resource.h>").before(before);
    let Some(then) = builder.assert_same_results() else { return };
    assert_eq!(restore_reason(&then), None);
}

/// The kernel marks the mutex and does not wait for a missing page then.
#[test]
fn a_robust_mutex_of_an_exited_thread_passes_to_the_next() {
    let globals = "static pthread_mutex_t *both; static void *leave(void *none) {
        CHECK(!pthread_mutex_lock(&both[0])); CHECK(!pthread_mutex_lock(&both[1])); return 0; }";
    for protocol in ["PTHREAD_PRIO_NONE", "PTHREAD_PRIO_INHERIT"] {
        let before = format!(
            "both = (pthread_mutex_t *)(counters + 64); pthread_mutexattr_t a; pthread_mutexattr_init(&a);
            CHECK(!pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST)); CHECK(!pthread_mutexattr_setprotocol(&a, {protocol}));
            for (int i = 0; i < 2; i++) CHECK(!pthread_mutex_init(&both[i], &a));"
        );
        let body = "pthread_t t; CHECK(!pthread_create(&t, 0, leave, 0)); CHECK(!pthread_join(t, 0));
            for (int i = 0; i < 2; i++) { CHECK(pthread_mutex_lock(&both[i]) == EOWNERDEAD);
            CHECK(!pthread_mutex_consistent(&both[i])); CHECK(!pthread_mutex_unlock(&both[i])); }";
        let mut running = ProgramBuilder::new(body).globals(globals).before(&before).start();
        let Some(mut process) = running.open_and_move() else { return };
        running.serve_until_quiet(&mut process);
        let done = running.run_phase(&mut process);
        match restore_reason(&done) {
            // A priority-inheriting mutex restores the page when it is locked.
            Some(RestoreReason::Access { reason, .. }) => {
                assert!(protocol.ends_with("INHERIT") && reason.contains("priority"))
            }
            why => assert_eq!(
                why,
                Some(&RestoreReason::Kernel(u32::try_from(libc::SYS_exit).ok())),
                "{protocol}: {done:?}"
            ),
        }
        process.restore_all(&RestoreReason::Requested).unwrap();
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{protocol}: {output:?}");
    }
}

#[test]
fn a_process_killed_during_a_move_has_ended() {
    for wait_us in [0, 50, 100, 200, 300, 500, 800, 1200, 2000, 5000] {
        let mut running = ProgramBuilder::new("").start();
        let Some(mut process) = running.open() else { return };
        let pid = running.child.id().to_string();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(wait_us));
            Command::new("kill").args(["-KILL", &pid]).status().unwrap()
        });
        let begun = Instant::now();
        let (mut over, mut last) = (false, None);
        while !over && begun.elapsed() < Duration::from_secs(20) {
            let moved = process.move_page(&split_words(running.page)).is_ok();
            let served = process.serve(Duration::from_millis(1));
            over = served.as_ref().is_ok_and(|done| done.contains(&RemapEvent::Ended));
            last = Some(served);
            if moved && !over {
                let _ = process.restore_all(&RestoreReason::Requested);
            }
        }
        assert!(over, "{wait_us}: {last:?}");
        assert!(killer.join().unwrap().success());
        let _ = running.child.wait();
    }
}

#[test]
fn a_program_that_keeps_starting_threads_can_be_stopped() {
    let globals = "static void *nothing(void *own) { return own; }";
    let body = "for (int i = 0; i < 1000; i++) { pthread_t t; CHECK(!pthread_create(&t, 0, nothing, 0)); CHECK(!pthread_join(t, 0)); }";
    let mut running = ProgramBuilder::new(body).globals(globals).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.send_input();
    for _ in 0..30 {
        process.restore_all(&RestoreReason::Requested).unwrap();
        serve(&mut process, 1);
        // A thread may be in the kernel at the moment.
        let _ = process.move_page(&split_words(running.page));
        serve(&mut process, 1);
    }
    running.serve_until(&mut process, |line| line == "done");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// A thread that had begun to create another one when it was seized does not report it. Copying a
/// large descriptor table makes the creation long.
#[test]
fn a_thread_being_created_at_seizure_is_traced() {
    let globals = "#include <sys/resource.h>
        static struct own { char stack[65536]; volatile int left; } own[2];
        static int rest(void *none) { struct timespec some = { 0, 5000000 }; syscall(SYS_nanosleep, &some, 0); return 0; }
        static void *start(void *which) {
            struct own *own = (struct own *)which;
            int flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
            for (;;) {
                CHECK(clone(rest, &own->left, flags, 0, &own->left, 0, &own->left) > 0);
                while (own->left) syscall(SYS_sched_yield);
            }
        }";
    let body = "struct rlimit many; pthread_t t[2];
        getrlimit(RLIMIT_NOFILE, &many); many.rlim_cur = many.rlim_max < 20000 ? many.rlim_max : 20000;
        CHECK(!setrlimit(RLIMIT_NOFILE, &many)); for (int left = (int)many.rlim_cur - 100; left > 0; left--) dup(0);
        CHECK(!pthread_create(&t[0], 0, start, &own[0]) && !pthread_create(&t[1], 0, start, &own[1])); pthread_join(t[0], 0);";
    let mut running = ProgramBuilder::new(body).globals(globals).start();
    let pid = running.child.id();
    running.send_input();
    let mut untraced = Vec::new();
    for time in 0..300 {
        std::thread::sleep(Duration::from_micros(time * 10));
        let Some(process) = running.open() else { return };
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let output = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        let is_free = |status: &String| {
            status.contains("TracerPid:\t0\n") && !status.contains("State:\tX") && !status.contains("State:\tZ")
        };
        untraced.extend(output.filter(is_free));
        process.release().unwrap();
    }
    assert_eq!(untraced, Vec::<String>::new());
}

#[test]
fn a_traced_process_is_refused_with_the_reason() {
    let mut running = ProgramBuilder::new("usleep(1000);").start();
    let pid = running.child.id();
    let (ready, is_ready) = channel();
    let (end, is_over) = channel::<()>();
    let debugger = std::thread::spawn(move || {
        let tracee = Tracee::seize(pid);
        ready.send(tracee.is_ok()).unwrap();
        let _ = is_over.recv();
        drop(tracee);
    });
    if !is_ready.recv().unwrap() {
        println!("SKIP another process cannot be remapped here: no tracing");
        return;
    }
    match Process::open(pid) {
        Err(Error::Refused { why, .. }) => assert!(why.contains("debugger"), "{why}"),
        other => panic!("{other:?}"),
    }
    end.send(()).unwrap();
    debugger.join().unwrap();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    assert!(std::thread::spawn(move || Tracee::seize(pid).map(|_| ())).join().unwrap().is_err());
    running.run_phase(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn a_thread_in_uninterruptible_sleep_delays_no_other() {
    // A thread that waits for a vfork child cannot be stopped.
    let body = "pid_t pid = vfork(); if (!pid) { struct timespec t = { 0, 300000000 }; nanosleep(&t, 0); _exit(0); } int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(!status);";
    let mut running = ProgramBuilder::new(body).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.send_input();
    serve(&mut process, 30);
    process.restore_all(&RestoreReason::Requested).unwrap();
    match process.move_page(&split_words(running.page)) {
        Ok(_) => {}
        Err(Error::Page { why, .. }) => assert!(why.contains("try again"), "{why}"),
        Err(other) => panic!("{other}"),
    }
    running.serve_until(&mut process, |line| line == "done");
    let _ = process.restore_all(&RestoreReason::Requested);
    process.move_page(&split_words(running.page)).unwrap();
    running.serve_until_quiet(&mut process);
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn no_call_is_injected_into_a_filtered_program() {
    let globals = "#include <linux/seccomp.h>\n#include <linux/filter.h>";
    let before = "struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW }; struct sock_fprog program = { 1, &all };
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));";
    let running = ProgramBuilder::new("").globals(globals).before(before).start();
    match Process::open(running.child.id()) {
        Err(Error::Refused { why, .. }) => assert!(why.contains("seccomp"), "{why}"),
        Err(Error::Linux(error)) => println!("SKIP another process cannot be remapped here: {error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_page_is_restored_after_a_filter_was_installed() {
    let globals = "#include <linux/seccomp.h>\n#include <linux/filter.h>\nstatic int filtered;";
    // The filter kills the process for any call that maps or unmaps memory.
    let body = "if (!filtered++) { struct sock_filter f[] = { { BPF_LD | BPF_W | BPF_ABS, 0, 0, 0 }, { BPF_JMP | BPF_JEQ | BPF_K, 2, 0, 9 }, { BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 11 },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW }, { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS } };
        struct sock_fprog program = { 5, f }; CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)); }";
    ProgramBuilder::new(body).globals(globals).assert_same_results();
}

/// It is refused by its capabilities, or, if it has them in a user namespace only, after the kernel
/// has refused the call.
#[test]
fn a_program_without_userfaultfd_permission_is_refused_and_continues() {
    let is_for_all =
        std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|word| word.trim() != "0");
    let program = Arc::new(ProgramBuilder::new("usleep(20000);").build());
    let by = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    for words in [&["setpriv", "--reuid", "65534", "--clear-groups"][..], &["unshare", "--user", "--map-root-user"]] {
        if is_for_all || !by(words).arg("true").status().is_ok_and(|status| status.success()) {
            println!("SKIP no program without the right to a userfaultfd can be made here");
            return;
        }
        let mut command = by(words);
        command.arg(&**program);
        let running = ProgramUnderTest::start_by(&mut command, &program);
        for _ in 0..3 {
            match Process::open(running.child.id()) {
                Err(Error::Refused { why, .. }) => assert!(why.contains("vm.unprivileged_userfaultfd=1"), "{why}"),
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!running.has_ended(), "{command:?}");
        let output = running.finish_unserved();
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{command:?}: {output:?}");
    }
}

#[test]
fn a_32_bit_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, file) = (folder.path().join("small.s"), folder.path().join("small"));
    std::fs::write(&source, ".globl _start\n_start: mov $29, %eax\n int $0x80\n jmp _start\n").unwrap();
    let built = Command::new("cc").args(["-m32", "-nostdlib", "-static", "-o"]).arg(&file).arg(&source).status();
    let child = built.ok().filter(std::process::ExitStatus::success).and_then(|_| Command::new(&file).spawn().ok());
    let Some(mut child) = child else {
        println!("SKIP cc makes no program of 32 bits, or the kernel runs none");
        return;
    };
    let refused = Process::open(child.id());
    let _ = child.kill();
    let _ = child.wait();
    match refused {
        Err(Error::Refused { why, .. }) => assert!(why.contains("64-bit"), "{why}"),
        other => panic!("{other:?}"),
    }
}
