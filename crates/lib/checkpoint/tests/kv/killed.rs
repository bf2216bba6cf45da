//! A server that is killed while it saves: a restart has exactly the data of one save.
//!
//! The n-th write command is determined by n, so the number of write commands determines all data.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use crate::client::{Client, Reply, text};
use crate::process::{Random, Server};

/// How often the server is killed by each method, if `FIELDSTONE_KILLS` is not set.
const KILLS: usize = 6;
/// Keys that are set in turn.
const KEYS: u64 = 997;
/// Steps after which the list is deleted.
const LIST: u64 = 3000;
/// Write commands of a step.
const STEP: u64 = 4;
/// Commands that are sent before their replies are read.
const BATCH: u64 = 64;

/// The n-th write command, from 1 on.
fn command(number: u64) -> Vec<String> {
    let (step, phase) = ((number - 1) / STEP + 1, (number - 1) % STEP);
    let words = match phase {
        0 => "INCR a".to_owned(),
        1 => "INCR b".to_owned(),
        2 => format!("SET value:{} {}", step % KEYS, padded(step)),
        _ if step % LIST == 0 => "DEL list".to_owned(),
        _ => format!("LPUSH list {step}"),
    };
    words.split(' ').map(str::to_owned).collect()
}

/// A value whose length changes.
fn padded(step: u64) -> String {
    format!("{step:0width$}", width = usize::try_from(8 + step % 300).unwrap())
}

/// Compares all data with those after `writes` write commands.
fn check(client: &mut Client, writes: u64) {
    // Steps whose command of a phase was executed.
    let steps = |phase: u64| (writes + STEP - 1 - phase) / STEP;
    let counter = |steps: u64| if steps == 0 { Reply::Null } else { text(steps.to_string()) };
    assert_eq!(client.words("GET a"), counter(steps(0)), "after {writes}");
    assert_eq!(client.words("GET b"), counter(steps(1)), "after {writes}");
    for key in 0..KEYS {
        let last = (steps(2) + KEYS - key) / KEYS * KEYS + key;
        let last = last.checked_sub(KEYS).filter(|&step| step > 0);
        let expected = last.map_or(Reply::Null, |step| text(padded(step)));
        assert_eq!(client.words(&format!("GET value:{key}")), expected, "{key} after {writes}");
    }
    let Reply::Array(list) = client.words("LRANGE list 0 -1") else { panic!("no list") };
    let expected = (steps(3) / LIST * LIST + 1..=steps(3)).rev().map(|step| text(step.to_string()));
    assert!(list.into_iter().eq(expected), "the list after {writes}");
    let keys = u64::from(steps(0) > 0) + u64::from(steps(1) > 0) + steps(2).min(KEYS) + u64::from(steps(3) % LIST > 0);
    assert_eq!(client.words("DBSIZE"), Reply::Integer(keys.try_into().unwrap()), "after {writes}");
}

/// Writes until the server ends.
fn write(mut client: Client, mut writes: u64) {
    while client.send(&(writes + 1..=writes + BATCH).map(command).collect::<Vec<_>>()) {
        for _ in 0..BATCH {
            match client.receive() {
                Some(Reply::Error(error)) => panic!("{error}"),
                Some(_) => writes += 1,
                None => return,
            }
        }
    }
}

/// Saves until the server ends; `saved` is the last save that it reported.
fn save(mut client: Client, saved: &AtomicU64) {
    let begins = |client: &mut Client| client.send(&[vec!["BGSAVE"]]) && client.receive().is_some();
    while begins(&mut client) {
        while let Some(Reply::BulkString(info)) = client.send(&[vec!["INFO"]]).then(|| client.receive()).flatten() {
            let info = String::from_utf8(info).unwrap();
            let number = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.unwrap().parse::<u64>().unwrap()
            };
            assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
            saved.store(number("last_save_writes"), Relaxed);
            if number("rdb_bgsave_in_progress") == 0 {
                break;
            }
        }
    }
}

fn is_killed(method: &str) {
    let kills = std::env::var("FIELDSTONE_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(kills as u64);
    let saved = AtomicU64::new(0);
    let (mut saves, mut first) = (0, 0);
    for kill in 0..=kills {
        let mut server = Server::start(folder.path(), method, "64M");
        let mut client = server.client();
        let writes = client.info("writes");
        assert!(writes >= saved.load(Relaxed), "{writes} write commands are left of {}", saved.load(Relaxed));
        check(&mut client, writes);
        saves += u64::from(writes > first);
        first = writes;
        if kill == kills {
            break;
        }
        let saver = server.client();
        thread::scope(|scope| {
            scope.spawn(|| write(client, writes));
            scope.spawn(|| save(saver, &saved));
            thread::sleep(Duration::from_millis(50) + Duration::from_micros(random.below(200_000) as u64));
            server.kill();
        });
    }
    println!("{kills} kills by SIGKILL, {saves} restarts had a later save, {first} write commands were saved");
    assert!(saves > 0, "no save was whole before a kill");
}

#[test]
fn a_server_that_saves_by_checkpoints_is_killed_and_has_the_data_of_one_save() {
    is_killed("checkpoint");
}

#[test]
fn a_server_that_saves_by_forks_is_killed_and_has_the_data_of_one_save() {
    is_killed("fork");
}
