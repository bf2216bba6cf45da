//! Pages on a Redis server, which is slow to come back, drops keys, or ends.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fieldstone_report::PagingStats;

use crate::binaries;
use crate::fixture::{Program, can_page, counted, largest, paged, stderr, stdout};
use crate::redis_server::RedisServer;
use crate::wait::wait_until;

/// Memory of which half is resident, with operations at random pages, and a check of all contents.
fn workload() -> Vec<String> {
    bounded_memory("48M", "20000")
}

/// Memory of a size, with a number of operations at random pages, and a check of all contents.
pub(crate) fn bounded_memory(size: &str, operations: &str) -> Vec<String> {
    let program = binaries::workload("bounded-memory").to_str().unwrap().to_owned();
    std::iter::once(program).chain([size, operations, "--pattern", "random"].map(str::to_owned)).collect()
}

/// Starts the workload; its output is read at the end.
fn start(options: &str) -> Child {
    let mut command = paged(options, &workload());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs `bounded-memory` with a bound; its contents are those of a run alone.
pub(crate) fn same_as_alone(options: &str, program: &[String]) -> PagingStats {
    let alone = Command::new(&program[0]).args(&program[1..]).output().unwrap();
    let (output, stats) = counted(options, program);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let checksum = |text: String| text.lines().find(|line| line.starts_with("checksum")).map(str::to_owned);
    assert!(checksum(stdout(&alone)).is_some());
    assert_eq!(checksum(stdout(&output)), checksum(stdout(&alone)));
    stats
}

#[test]
fn pages_come_back_from_a_server_and_are_deleted_there_at_the_end() {
    let Some(server) = RedisServer::start("").filter(|_| can_page()) else { return };
    let stats = same_as_alone(&format!("--resident 24M --page-store {}", server.url()), &workload());
    let store = largest(&stats).stores.iter().find(|store| store.name == "redis").unwrap();
    assert!(store.loaded_pages > 5000, "{store:?}");
    assert_eq!(server.keys(), 0);
}

#[test]
fn a_forked_child_gets_its_pages_from_the_server() {
    let Some(server) = RedisServer::start("").filter(|_| can_page()) else { return };
    let program = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        enum { COUNT = 8 << 20 };
        static int check(unsigned *words, unsigned added) {
            for (unsigned i = 0; i < COUNT; i++) if (words[i] != i * 2654435761u + added) return 0;
            return 1;
        }
        int main(void) {
            unsigned *words = malloc(COUNT * sizeof *words);
            for (unsigned i = 0; i < COUNT; i++) words[i] = i * 2654435761u;
            pid_t child = fork();
            if (!child) {
                int right = check(words, 0);
                for (unsigned i = 0; i < COUNT; i++) words[i] += 7;
                _exit(!(right && check(words, 7)));
            }
            int status = -1, right = check(words, 0);
            waitpid(child, &status, 0);
            puts(right && status == 0 && check(words, 0) ? "right" : "wrong");
        }"#;
    let Some(program) = Program::compile(program) else { return };
    let options = format!("--resident 16M --page-store {},lz4:1M", server.url());
    let (output, stats) = counted(&options, &[program.path.to_str().unwrap()]);
    assert_eq!(stdout(&output), "right\n", "{}", stderr(&output));
    assert!(stats.processes.len() == 2 && stats.processes.iter().all(|process| process.lost_pages == 0), "{stats:?}");
    assert_eq!(server.keys(), 0);
}

#[test]
fn a_program_waits_for_a_server_that_is_killed_and_started_again() {
    let Some(mut server) = RedisServer::start("").filter(|_| can_page()) else { return };
    let mut running = start(&format!("--resident 24M --page-store {}", server.url()));
    wait_until("pages are on the server", || (server.keys() > 500).then_some(()));
    server.kill();
    sleep(Duration::from_millis(500));
    assert!(running.try_wait().unwrap().is_none(), "the program waits");
    server.start_again();
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_server_that_is_lost_raises_sigbus_after_a_message() {
    let Some(mut server) = RedisServer::start("").filter(|_| can_page()) else { return };
    let running = start(&format!("--resident 24M --page-store {} --page-store-timeout 1", server.url()));
    wait_until("pages are on the server", || (server.keys() > 500).then_some(()));
    server.kill();
    let output = running.wait_with_output().unwrap();
    let text = stderr(&output);
    assert!(
        text.contains("from the store redis: it cannot be reached or read (EIO); its thread gets SIGBUS"),
        "{text}"
    );
    assert_eq!(output.status.signal(), Some(7), "{text}");
    let left = format!("pages were left on {} as fieldstone:", server.url());
    assert!(text.contains(&left) && text.contains("| xargs redis-cli unlink"), "{text}");
}

#[test]
fn a_process_whose_command_is_killed_ends_after_a_message() {
    let Some(server) = RedisServer::start("").filter(|_| can_page()) else { return };
    let options = format!("--resident 24M --page-store {}", server.url());
    // The kernel kills the shell with the command, but not what the shell has started.
    let mut command = paged(&options, &["/bin/sh", "-c", &format!("{} & wait", workload().join(" "))]);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("pages are on the server", || (server.keys() > 500).then_some(()));
    let start = Instant::now();
    running.kill().unwrap();
    // The program has the other ends of the pipes: this returns when it ends.
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(9));
    assert!(
        stderr(&output).contains("from the store redis: it cannot be reached or read (EIO); its thread gets SIGBUS"),
        "{}",
        stderr(&output)
    );
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn servers_that_cannot_keep_pages_are_refused() {
    let unused_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = |url: &str| {
        let output = paged(&format!("--resident 24M --page-store {url}"), &["/bin/true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output)
    };
    let text = refused(&format!("redis://user:secret@127.0.0.1:{unused_port}"));
    assert!(text.contains(&format!("cannot store pages on redis://127.0.0.1:{unused_port}: ")), "{text}");
    assert!(text.contains("try: start the server") && !text.contains("secret"), "{text}");
    let Some(server) = RedisServer::start("--maxmemory 100mb --maxmemory-policy allkeys-lru") else { return };
    let text = refused(&server.url());
    assert!(text.contains("it drops keys when its memory is full"), "{text}");
    let Some(server) = RedisServer::start("") else { return };
    assert!(server.ask("CONFIG SET requirepass secret").is_some_and(|answer| answer.starts_with("+OK")));
    let text = refused(&server.url());
    assert!(text.contains("NOAUTH") && text.contains("try: redis://USER:PASSWORD@HOST:PORT"), "{text}");
}

#[test]
fn a_full_server_leaves_pages_to_the_next_store() {
    let Some(server) = RedisServer::start("--maxmemory 8mb --maxmemory-policy noeviction").filter(|_| can_page())
    else {
        return;
    };
    let program = workload();
    let directory = tempfile::tempdir().unwrap();
    let options = format!("--resident 24M --page-store {},file:{}", server.url(), directory.path().display());
    let (output, stats) = counted(&options, &program);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let process = largest(&stats);
    let loaded = |name: &str| process.stores.iter().find(|store| store.name == name).unwrap().loaded_pages;
    assert!(loaded("redis") > 0 && loaded("file") > 0, "{process:?}");
}
