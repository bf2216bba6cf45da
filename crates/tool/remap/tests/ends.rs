//! Stopped, killed, traced by others, of another kind: processes at their edges.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod stage;

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fieldstone_remap::{Error, Process, RemapEvent, Why};
use fieldstone_sys::ptrace::Tracee;
use stage::{Running, Stage, apart, put_back};

fn send(running: &Running, signal: &str) {
    let sent = Command::new("kill").args([signal, &running.child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

fn serve(process: &mut Process, times: u32) {
    (0..times).for_each(|_| drop(process.serve(Duration::from_millis(2)).unwrap()));
}

#[test]
fn a_program_that_is_stopped_stays_so_while_its_pages_go_back_and_away() {
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = Stage::of("usleep(1000);").options(options).start();
        let Some(mut process) = running.remap() else { return };
        running.settle(&mut process);
        for _ in 0..5 {
            send(&running, "-STOP");
            serve(&mut process, 20);
            process.put_all_back().unwrap();
            serve(&mut process, 5);
            process.move_page(&apart(running.page)).unwrap();
            serve(&mut process, 5);
            let state = std::fs::read_to_string(format!("/proc/{}/stat", running.child.id())).unwrap();
            let state = state.rsplit(") ").next().unwrap().chars().next().unwrap();
            assert!("Tt".contains(state), "it runs: {state}");
            send(&running, "-CONT");
            running.settle(&mut process);
        }
        running.go_on(&mut process);
        process.put_all_back().unwrap();
        let (_, told) = running.finish(&mut process);
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{options:?} {told:?}");
    }
}

#[test]
fn the_first_thread_may_end_before_the_others() {
    let globals = "static void *rest(void *none) { printf(\"done\\n\"); fflush(stdout); getchar(); go_on = 0; while (!real[0] || !real[1]) usleep(1000);
        printf(\"%s %s\\n\", real[0] == counters[8] ? \"right\" : \"wrong\", real[1] == counters[9] ? \"right\" : \"wrong\"); fflush(stdout); exit(0); }";
    let body = "pthread_t t; pthread_create(&t, 0, rest, 0); pthread_exit(0);";
    let mut running = Stage::of(body).with(globals).start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    running.go_on(&mut process);
    process.put_all_back().unwrap();
    process.move_page(&apart(running.page)).unwrap();
    running.settle(&mut process);
    // Somebody who comes only now finds a first thread that has ended.
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

/// As daemons do. It gets another one, since without it a page would be zeros should we be killed.
#[test]
fn who_closes_all_descriptors_has_the_page_put_back() {
    let body = "CHECK(!syscall(SYS_close_range, 3, ~0U, 0)); usleep(1500000);";
    let mut running = Stage::of(body).start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    let done = running.go_on(&mut process);
    assert!(done.contains(&RemapEvent::PutBack { page: running.page, why: Why::Closed }), "{done:?}");
    process.move_page(&apart(running.page)).unwrap();
    running.settle(&mut process);
    process.put_all_back().unwrap();
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

/// As everybody does at the end: here that takes its time, since each descriptor has to look through the locks that a child has on the file.
#[test]
fn who_ends_has_closed_nothing() {
    let before = "struct rlimit many; getrlimit(RLIMIT_NOFILE, &many); many.rlim_cur = many.rlim_max < 20000 ? many.rlim_max : 20000;
        CHECK(!setrlimit(RLIMIT_NOFILE, &many));
        int fd = memfd_create(\"locked\", 0), ready[2]; char byte; CHECK(!pipe(ready));
        if (!fork()) { prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int i = 0; i < 10000; i++) { struct flock lock = { F_WRLCK, SEEK_SET, 2 * i, 1, 0 }; CHECK(!fcntl(fd, F_SETLK, &lock)); }
            CHECK(write(ready[1], &byte, 1) == 1); sleep(60); _exit(0); }
        CHECK(read(ready[0], &byte, 1) == 1); for (int i = 0; i < 15000 && dup(fd) > 0; i++);";
    let stage = Stage::of("usleep(1000);").with("#include <sys/resource.h>").before(before);
    let _ = stage.right_all_the_same();
}

#[test]
fn few_descriptors_are_left_to_the_program_from_the_lowest_on() {
    let before = "struct rlimit l = { 64, 64 }; CHECK(!setrlimit(RLIMIT_NOFILE, &l));";
    let body = "int fd = open(\"/dev/null\", O_RDONLY); CHECK(fd == 3); close(fd);";
    let stage = Stage::of(body).with("#include <sys/resource.h>").before(before);
    let Some(then) = stage.right_all_the_same() else { return };
    assert_eq!(put_back(&then), None);
}

/// The kernel marks it, and does not wait for a page then.
#[test]
fn who_ends_with_a_robust_mutex_leaves_it_to_the_next() {
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
        let mut running = Stage::of(body).with(globals).before(&before).start();
        let Some(mut process) = running.remap() else { return };
        running.settle(&mut process);
        let done = running.go_on(&mut process);
        match put_back(&done) {
            // As soon as it is locked, where it inherits priority.
            Some(Why::Access { reason, .. }) => assert!(protocol.ends_with("INHERIT") && reason.contains("priority")),
            why => assert_eq!(why, Some(&Why::Kernel(u32::try_from(libc::SYS_exit).ok())), "{protocol}: {done:?}"),
        }
        process.put_all_back().unwrap();
        let (_, told) = running.finish(&mut process);
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{protocol}: {told:?}");
    }
}

#[test]
fn a_process_that_is_killed_while_a_page_moves_is_over() {
    for wait_us in [0, 50, 100, 200, 300, 500, 800, 1200, 2000, 5000] {
        let mut running = Stage::of("").start();
        let Some(mut process) = running.hold() else { return };
        let pid = running.child.id().to_string();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(wait_us));
            Command::new("kill").args(["-KILL", &pid]).status().unwrap()
        });
        let begun = Instant::now();
        let (mut over, mut last) = (false, None);
        while !over && begun.elapsed() < Duration::from_secs(20) {
            let moved = process.move_page(&apart(running.page)).is_ok();
            let served = process.serve(Duration::from_millis(1));
            over = served.as_ref().is_ok_and(|done| done.contains(&RemapEvent::Over));
            last = Some(served);
            if moved && !over {
                let _ = process.put_all_back();
            }
        }
        assert!(over, "{wait_us}: {last:?}");
        assert!(killer.join().unwrap().success());
        let _ = running.child.wait();
    }
}

#[test]
fn a_program_that_starts_threads_all_the_time_is_stopped_each_time() {
    let globals = "static void *nothing(void *own) { return own; }";
    let body = "for (int i = 0; i < 1000; i++) { pthread_t t; CHECK(!pthread_create(&t, 0, nothing, 0)); CHECK(!pthread_join(t, 0)); }";
    let mut running = Stage::of(body).with(globals).start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    running.say();
    for _ in 0..30 {
        process.put_all_back().unwrap();
        serve(&mut process, 1);
        // A thread may be in the kernel right now.
        let _ = process.move_page(&apart(running.page));
        serve(&mut process, 1);
    }
    running.serve_until(&mut process, |line| line == "done");
    process.put_all_back().unwrap();
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

/// One that had begun to start another one when it was held does not tell of that. The copy of a table of many files is a long beginning.
#[test]
fn who_was_just_starting_a_thread_is_held_with_it() {
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
    let mut running = Stage::of(body).with(globals).start();
    let pid = running.child.id();
    running.say();
    let mut unheld = Vec::new();
    for time in 0..300 {
        std::thread::sleep(Duration::from_micros(time * 10));
        let Some(process) = running.hold() else { return };
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let told = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        let is_free = |status: &String| {
            status.contains("TracerPid:\t0\n") && !status.contains("State:\tX") && !status.contains("State:\tZ")
        };
        unheld.extend(told.filter(is_free));
        process.release().unwrap();
    }
    assert_eq!(unheld, Vec::<String>::new());
}

#[test]
fn who_is_traced_already_is_refused_with_words_and_who_is_held_is_for_nobody_else() {
    let mut running = Stage::of("usleep(1000);").start();
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
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    assert!(std::thread::spawn(move || Tracee::seize(pid).map(|_| ())).join().unwrap().is_err());
    running.go_on(&mut process);
    process.put_all_back().unwrap();
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

#[test]
fn who_sleeps_deeply_holds_nobody_up() {
    // A thread that waits for a child which has borrowed its memory cannot be looked at.
    let body = "pid_t pid = vfork(); if (!pid) { struct timespec t = { 0, 300000000 }; nanosleep(&t, 0); _exit(0); } int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(!status);";
    let mut running = Stage::of(body).start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    running.say();
    serve(&mut process, 30);
    process.put_all_back().unwrap();
    match process.move_page(&apart(running.page)) {
        Ok(_) => {}
        Err(Error::Page { why, .. }) => assert!(why.contains("try again"), "{why}"),
        Err(other) => panic!("{other}"),
    }
    running.serve_until(&mut process, |line| line == "done");
    let _ = process.put_all_back();
    process.move_page(&apart(running.page)).unwrap();
    running.settle(&mut process);
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

#[test]
fn a_program_that_has_its_calls_filtered_makes_none_for_us() {
    let globals = "#include <linux/seccomp.h>\n#include <linux/filter.h>";
    let before = "struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW }; struct sock_fprog program = { 1, &all };
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));";
    let running = Stage::of("").with(globals).before(before).start();
    match Process::open(running.child.id()) {
        Err(Error::Refused { why, .. }) => assert!(why.contains("seccomp"), "{why}"),
        Err(Error::Linux(error)) => println!("SKIP another process cannot be remapped here: {error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_filter_that_comes_later_leaves_the_page_where_it_can_be_put_back() {
    let globals = "#include <linux/seccomp.h>\n#include <linux/filter.h>\nstatic int filtered;";
    // Any call to map or unmap ends the process.
    let body = "if (!filtered++) { struct sock_filter f[] = { { BPF_LD | BPF_W | BPF_ABS, 0, 0, 0 }, { BPF_JMP | BPF_JEQ | BPF_K, 2, 0, 9 }, { BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 11 },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW }, { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS } };
        struct sock_fprog program = { 5, f }; CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)); }";
    Stage::of(body).with(globals).right_all_the_same();
}

/// By its capabilities, and, where it has them in a user namespace alone, after the kernel has refused the call.
#[test]
fn a_program_that_may_have_no_userfaultfd_is_refused_and_goes_on() {
    let is_for_all =
        std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|word| word.trim() != "0");
    let program = Arc::new(Stage::of("usleep(20000);").build());
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
        let running = Running::started(&mut command, &program);
        for _ in 0..3 {
            match Process::open(running.child.id()) {
                Err(Error::Refused { why, .. }) => assert!(why.contains("vm.unprivileged_userfaultfd=1"), "{why}"),
                other => panic!("{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!running.has_ended(), "{command:?}");
        let told = running.alone();
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{command:?}: {told:?}");
    }
}

#[test]
fn a_program_of_32_bits_is_refused() {
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
