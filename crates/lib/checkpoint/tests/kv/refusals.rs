//! Commands that a full heap refuses, and bytes that are no request.

use std::time::Duration;

use crate::client::{Client, Reply, error, ok, text};
use crate::process::Server;

const FULL: &str = "OOM command not allowed: the heap of 1M is full; start with a larger --memory";

fn pong() -> Reply {
    Reply::SimpleString(b"PONG".to_vec())
}

/// Sets keys until the heap is full. Returns how many are set.
fn fill(client: &mut Client) -> usize {
    for number in 0.. {
        match client.words(&format!("SET key:{number} {number:0200}")) {
            Reply::Error(message) => {
                assert_eq!(message, FULL);
                return number;
            }
            reply => assert_eq!(reply, ok()),
        }
    }
    unreachable!("the heap has an end");
}

#[test]
fn a_full_heap_refuses_commands_and_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), "checkpoint", "1M");
    let mut client = server.client();
    assert_eq!(client.words("LPUSH list first"), Reply::Integer(1));
    let keys = fill(&mut client);
    assert!(keys > 1000, "{keys}");
    let writes = client.info("writes");
    let is_full = |reply| assert_eq!(error(Some(reply)), FULL);
    let size = Reply::Integer(i64::try_from(keys).unwrap() + 1);
    let long = "x".repeat(5000);
    is_full(client.words(&format!("SET key:0 {long}")));
    is_full(client.words(&format!("LPUSH list a b {long} {long}")));
    is_full(client.words(&format!("LPUSH other {long} {long}")));
    is_full(client.words(&format!("SET list {long}")));
    assert_eq!(client.words("LRANGE list 0 -1"), Reply::Array(vec![text("first")]));
    assert_eq!((client.words("DBSIZE"), client.info("writes")), (size.clone(), writes));
    for number in 0..keys {
        assert_eq!(client.words(&format!("GET key:{number}")), text(format!("{number:0200}")));
    }
    // A value of the same size needs no block.
    assert_eq!(client.words(&format!("SET key:0 {:0200}", 0)), ok());
    assert_eq!(client.words("DEL key:1 key:2 key:3"), Reply::Integer(3));
    assert_eq!(client.words(&format!("SET key:1 {:0200}", 1)), ok());
    assert_eq!(client.words("SAVE"), ok());

    // A larger heap continues with the data.
    server.kill();
    server = Server::start(folder.path(), "checkpoint", "8M");
    client = server.client();
    assert_eq!(client.words("DBSIZE"), Reply::Integer(i64::try_from(keys).unwrap() - 1));
    assert_eq!(client.words(&format!("LPUSH list {long}")), Reply::Integer(2));
    assert_eq!(client.words(&format!("GET key:{}", keys - 1)), text(format!("{:0200}", keys - 1)));
    assert_eq!(client.words("FLUSHALL"), ok());
    assert_eq!((client.words("DBSIZE"), client.words("GET key:0")), (Reply::Integer(0), Reply::Null));
}

#[test]
fn memory_is_used_again_after_deletions() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "fork", "1M");
    let mut client = server.client();
    for round in 0..5 {
        assert!(fill(&mut client) > 1000, "round {round}");
        match round {
            4 => assert_eq!(client.words("FLUSHALL"), ok()),
            _ => {
                let Reply::Integer(keys) = client.words("DBSIZE") else { panic!("no number") };
                (0..keys).for_each(|key| assert_eq!(client.words(&format!("DEL key:{key}")), Reply::Integer(1)));
            }
        }
    }
    assert!(fill(&mut client) > 1000);
}

#[test]
fn what_is_no_request_ends_the_connection_and_not_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "checkpoint", "16M");
    let nested = "*1\r\n".repeat(1_000_000);
    let line = "x".repeat(100_000);
    for bytes in [
        "*1\r\n$99999999999999999999\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2000000000\r\n",
        "*2000000000\r\n",
        "*-9223372036854775809\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n:1\r\n",
        "*x\r\n",
        "$3\nxx",
        &nested,
        &line,
    ] {
        let mut client = server.client();
        client.send_bytes(bytes.as_bytes());
        client.end();
        // A server that closes while bytes arrive resets the connection, which may lose its reply.
        if let Some(reply) = client.receive() {
            let message = error(Some(reply));
            assert!(
                message.starts_with("ERR Protocol error") || message.starts_with("ERR unknown command"),
                "{message}"
            );
        }
        assert_eq!(client.receive(), None, "{}", &bytes[..bytes.len().min(40)]);
        assert_eq!(server.client().words("PING"), pong());
    }
}

#[test]
fn a_request_that_is_cut_is_not_executed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "checkpoint", "16M");
    let request = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nvalue\r\n";
    for length in 0..request.len() {
        let mut client = server.client();
        assert!(client.send_bytes(&request[..length]));
        if length % 2 == 0 {
            client.end();
            assert_eq!(client.receive(), None);
        }
    }
    assert_eq!(server.client().words("GET a"), Reply::Null);
    let mut client = server.client();
    for byte in request {
        assert!(client.send_bytes(&[*byte]));
    }
    assert_eq!((client.receive(), client.words("GET a")), (Some(ok()), text("value")));
}

#[test]
fn wrong_commands_and_lines_of_words_have_replies() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "checkpoint", "16M");
    let mut client = server.client();
    for (command, message) in [
        ("NONE", "ERR unknown command 'NONE'"),
        ("GET", "ERR wrong number of arguments for 'get' command"),
        ("SET a", "ERR wrong number of arguments for 'set' command"),
        ("SET a 1 NX", "ERR SET takes a key and a value; options such as EX and NX are not supported"),
        ("LRANGE a 0 x", "ERR value is not an integer or out of range"),
        ("SAVE now", "ERR wrong number of arguments for 'save' command"),
        ("CONFIG SET a b", "ERR wrong number of arguments for 'config' command"),
    ] {
        assert_eq!(error(Some(client.words(command))), message);
    }
    assert_eq!(client.call(vec![&b"no\r\n+OK"[..]]), Reply::Error("ERR unknown command 'NO??+OK'".to_owned()));
    assert!(client.send_bytes(b"\r\nset a  1\r\nget a\nPING\r\n"));
    assert_eq!([(); 3].map(|()| client.receive().unwrap()), [ok(), text("1"), pong()]);
    client.words("SET a 9223372036854775807");
    assert_eq!(error(Some(client.words("INCR a"))), "ERR increment or decrement would overflow");
    assert_eq!((client.words("QUIT"), client.receive()), (ok(), None));
}

#[test]
fn a_client_that_reads_no_replies_does_not_hold_up_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "checkpoint", "64M");
    let mut client = server.client();
    client.call(vec![b"SET".to_vec(), b"a".to_vec(), vec![b'x'; 1 << 20]]);
    let mut silent = server.client();
    // The replies need 50 MiB.
    assert!(silent.send(&vec![vec!["GET", "a"]; 50]));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.words("PING"), pong());
    for _ in 0..50 {
        assert_eq!(silent.receive(), Some(text(vec![b'x'; 1 << 20])));
    }
}
