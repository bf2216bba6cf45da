//! Signals reach the program exactly as often as without the command, and a waiting parent sees the
//! program stop.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::binaries;
use crate::common::{kill, wait_until};
use crate::fixture::{child, compiled, is_running};

/// Writes the number of each received signal as a byte until its standard input ends. Stops itself
/// at an `s`.
const LISTENER: &str = r#"
#include <signal.h>
#include <unistd.h>
static void handler(int number) { char byte = (char)number; write(1, &byte, 1); }
int main(void) {
    int numbers[] = { SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGTERM, SIGCONT, SIGWINCH, 40 };
    for (unsigned at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
        sigaction(numbers[at], &action, 0);
    }
    write(1, "\n", 1);
    char byte;
    while (read(0, &byte, 1) == 1) if (byte == 's') raise(SIGSTOP);
    return 7;
}
"#;

/// Longer than a signal to the command alone is delayed.
const LATE_DELAY: Duration = Duration::from_millis(25);

/// The launchers before the program; the first runs it natively.
fn launchers() -> [Vec<&'static str>; 6] {
    let command = binaries::command();
    [
        vec![],
        vec![command, "run", "--region", "--"],
        vec![command, "run", "--guard", "--"],
        vec![command, "run", "--resident", "64M", "--"],
        vec![command, "run", "--repair", "--"],
        vec![command, "sharing", "--"],
    ]
}

struct Listener {
    running: Child,
    input: ChildStdin,
    /// The signal numbers that the program wrote.
    received: Receiver<u8>,
}

impl Listener {
    fn start(words: &[&str], program: &str) -> Self {
        let mut all = words.iter().copied().chain([program]);
        let mut command = Command::new(all.next().unwrap());
        command.args(all).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut running = command.spawn().unwrap();
        let (input, output) = (running.stdin.take().unwrap(), running.stdout.take().unwrap());
        let mut output: BufReader<ChildStdout> = BufReader::new(output);
        output.read_line(&mut String::new()).unwrap();
        let (sender, received) = channel();
        spawn(move || output.bytes().map_while(Result::ok).try_for_each(|byte| sender.send(byte)));
        Self { running, input, received }
    }

    /// The received signals: waits for the first, then until further ones would be late.
    fn received(&self) -> Vec<u8> {
        let first = self.received.recv_timeout(Duration::from_secs(20)).ok();
        sleep(LATE_DELAY);
        first.into_iter().chain(self.received.try_iter()).collect()
    }

    fn end(mut self) -> Option<i32> {
        drop(self.input);
        self.running.wait().unwrap().code()
    }
}

/// Sends to the group, to the command alone, or to each process, as a service manager does for a
/// control group.
fn send(way: &str, signal: &str, pid: u32) {
    match way {
        "group" => kill(signal, &format!("-{pid}")),
        "one" => kill(signal, &pid.to_string()),
        _ => {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            let all = [pid.to_string()].into_iter().chain(children.split_whitespace().map(str::to_owned));
            let all: Vec<String> = all.collect();
            assert!(Command::new("kill").arg(format!("-{signal}")).args(all).status().unwrap().success());
        }
    }
}

#[test]
fn each_signal_arrives_once() {
    let Some((_directory, program)) = compiled(LISTENER, &[]) else { return };
    for words in launchers() {
        let listener = Listener::start(&words, &program);
        let pid = listener.running.id();
        for round in 0..100 {
            let (signal, number) =
                [("TERM", 15), ("INT", 2), ("USR1", 10), ("HUP", 1), ("40", 40), ("WINCH", 28)][round % 6];
            let way = ["group", "one", "each"][round % 3];
            send(way, signal, pid);
            assert_eq!(listener.received(), [number], "{words:?}, round {round}: {signal} to {way}");
        }
        listener.end();
    }
}

#[test]
fn signals_of_timeout_arrive_as_natively() {
    let Some((_directory, program)) = compiled(LISTENER, &[]) else { return };
    for words in launchers() {
        for foreground in [&["timeout", "--foreground", "0.7"][..], &["timeout", "0.7"][..]] {
            let listener = Listener::start(&[foreground, &words].concat(), &program);
            sleep(Duration::from_secs(1));
            let received: Vec<u8> = listener.received.try_iter().filter(|number| *number == 15).collect();
            // Its two signals merge if the program has not run in between.
            assert!(
                received.len() == 1 || received.len() == 2 && foreground.len() == 2,
                "{foreground:?} {words:?}: {received:?}"
            );
            listener.end();
        }
    }
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

#[test]
fn a_stopped_program_stops_the_command_and_either_can_be_continued() {
    let Some((_directory, program)) = compiled(LISTENER, &[]) else { return };
    let mut listener = Listener::start(&launchers()[1], &program);
    let command = listener.running.id();
    let name = program.rsplit('/').next().unwrap();
    let program_pid = child(command, name).unwrap();
    for target in [format!("-{command}"), command.to_string(), program_pid.to_string()] {
        listener.input.write_all(b"s").unwrap();
        wait_until("both to stop", || (is_stopped(command) && is_stopped(program_pid)).then_some(()));
        kill("CONT", &target);
        assert_eq!(listener.received(), [18], "SIGCONT to {target}");
        wait_until("both to go on", || (!is_stopped(command) && !is_stopped(program_pid)).then_some(()));
    }
    assert_eq!(listener.end(), Some(7));
}

#[test]
fn the_witness_has_the_program_s_command_line_and_ends_with_the_command() {
    let Some((_directory, program)) = compiled(LISTENER, &[]) else { return };
    for signal in [None, Some("KILL")] {
        let listener = Listener::start(&launchers()[1], &program);
        let witness = wait_until("the witness", || child(listener.running.id(), "signal-witness"));
        let words = || fs::read_to_string(format!("/proc/{witness}/cmdline")).unwrap();
        wait_until("its command line", || words().starts_with(&program).then_some(()));
        match signal {
            Some(signal) => kill(signal, &listener.running.id().to_string()),
            None => assert_eq!(listener.end(), Some(7)),
        }
        wait_until("the witness to end", || (!is_running(witness)).then_some(()));
    }
}

/// A shell with job control on its own terminal.
#[test]
fn terminal_keys_reach_the_program_once_and_its_shell_sees_it_stop() {
    let Some((directory, program)) = compiled(LISTENER, &[]) else { return };
    for words in launchers() {
        let mut terminal = Command::new("script");
        terminal.args(["-q", "-c", "bash --norc --noprofile -i", "/dev/null"]).env("PS1", "");
        terminal.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR"));
        let mut running = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (mut keys, mut screen) = (running.stdin.take().unwrap(), running.stdout.take().unwrap());
        let (sender, shown) = channel();
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut seen = Vec::new();
        let mut until = |part: &[u8]| {
            wait_until(&format!("{part:?} of {words:?}"), || {
                seen.extend(shown.try_iter().flatten());
                let at = seen.windows(part.len()).position(|window| window == part)?;
                seen.drain(..at + part.len());
                Some(())
            });
        };
        let log = directory.path().join("log");
        let _ = fs::remove_file(&log);
        // The received signals go to a file: a terminal would show them as control
        // characters.
        let line = format!("{} {program} >{} 2>/dev/null\n", words.join(" "), log.display());
        keys.write_all(line.as_bytes()).unwrap();
        let received = || fs::read(&log).unwrap_or_default();
        wait_until("the program", || received().starts_with(b"\n").then_some(()));
        for (key, number) in [(b'\x03', 2_u8), (b'\x1c', 3)] {
            keys.write_all(&[key]).unwrap();
            wait_until("the key", || received().contains(&number).then_some(()));
        }
        keys.write_all(b"\x1a").unwrap();
        until(b"Stopped");
        keys.write_all(b"fg\n").unwrap();
        wait_until("it to go on", || received().contains(&18).then_some(()));
        sleep(LATE_DELAY);
        assert_eq!(received(), [b'\n', 2, 3, 18], "{words:?}");
        keys.write_all(b"\x04").unwrap();
        keys.write_all(b"echo ended-$?\n").unwrap();
        // `sharing` may have no finding, and returns 0 then.
        until(if words.contains(&"sharing") { b"ended-0" } else { b"ended-7" });
        keys.write_all(b"exit\n").unwrap();
        running.wait().unwrap();
    }
}
