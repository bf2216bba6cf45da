//! A client of the Redis protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame};

pub(crate) type Reply = OwnedFrame;

pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn new(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Sends commands without waiting for replies. `false` if the server has ended.
    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> bool {
        let mut bytes = Vec::new();
        for command in commands {
            let arguments = command.iter().map(|argument| Reply::BulkString(argument.as_ref().to_vec()));
            let frame = Reply::Array(arguments.collect());
            let start = bytes.len();
            bytes.resize(start + frame.encode_len(false), 0);
            encode(&mut bytes[start..], &frame, false).unwrap();
        }
        self.send_bytes(&bytes)
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends no more.
    pub(crate) fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next reply; `None` if the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Reply> {
        loop {
            if let Ok(Some((reply, bytes))) = decode(&self.received) {
                self.received.drain(..bytes);
                return Some(reply);
            }
            let mut buffer = [0; 1 << 16];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(bytes) => self.received.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// The reply to a command of bytes.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, command: Vec<A>) -> Reply {
        assert!(self.send(&[command]), "the server has ended");
        self.receive().unwrap()
    }

    /// The reply to a command, written as words.
    pub(crate) fn words(&mut self, command: &str) -> Reply {
        self.call(command.split(' ').collect())
    }

    /// A number in the lines of INFO.
    pub(crate) fn info(&mut self, name: &str) -> u64 {
        self.info_text(name).parse().unwrap()
    }

    /// A value in the lines of INFO.
    pub(crate) fn info_text(&mut self, name: &str) -> String {
        let Reply::BulkString(text) = self.words("INFO") else { panic!("INFO has no text") };
        let text = String::from_utf8(text).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("{name} is not in {text}")).to_owned()
    }

    /// Waits until no save runs.
    pub(crate) fn wait_for_save(&mut self) {
        while self.info("rdb_bgsave_in_progress") != 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn ok() -> Reply {
    Reply::SimpleString(b"OK".to_vec())
}

pub(crate) fn text(text: impl Into<Vec<u8>>) -> Reply {
    Reply::BulkString(text.into())
}

/// The message of an error.
pub(crate) fn error(reply: Option<Reply>) -> String {
    match reply {
        Some(Reply::Error(message)) => message,
        other => panic!("not an error: {other:?}"),
    }
}
