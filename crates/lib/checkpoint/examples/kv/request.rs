//! Requests of the Redis protocol, read from a stream of bytes.
//!
//! A request is an array of bulk strings, or a line of words. It is read argument by argument, so that no
//! byte is parsed twice and the depth is bounded: `redis-protocol` decodes each argument. That crate alone
//! would begin again at the first argument after each read, call itself for each nested array, and wait for
//! any number of bytes that a client announces.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;

use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;

/// The most bytes of a request.
const REQUEST_BYTES: usize = 64 << 20;
/// The most bytes of a line: a number, or the words of a request.
const LINE_BYTES: usize = 64 << 10;
/// The most arguments of a request.
const ARGUMENTS: i64 = 1 << 20;
/// Bytes that are read at one time.
const READ_BYTES: usize = 64 << 10;

/// What a client sent that is no request. The connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    Count,
    Length,
    NotAString(u8),
    Line,
    Size,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ERR Protocol error: ")?;
        match self {
            Self::Count => f.write_str("invalid multibulk length"),
            Self::Length => f.write_str("invalid bulk length"),
            Self::NotAString(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::Line => f.write_str("too big inline request"),
            Self::Size => write!(f, "a request of more than {} MiB", REQUEST_BYTES >> 20),
        }
    }
}

/// The bytes that a client sent and that are not executed yet.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were received.
    filled: usize,
    /// The first byte of the next request.
    start: usize,
    /// The first byte that is not parsed.
    position: usize,
    /// Arguments of the next request that were parsed, and how many follow.
    arguments: Vec<Range<usize>>,
    missing: i64,
}

impl Requests {
    /// Reads what has arrived, up to 64 KiB. Returns whether the client may send more.
    pub(crate) fn fill(&mut self, mut stream: impl Read) -> io::Result<bool> {
        self.forget_executed();
        let needed = self.filled + READ_BYTES;
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        let read = stream.read(&mut self.buffer[self.filled..needed]);
        self.filled += read.as_ref().unwrap_or(&0);
        match read {
            Ok(bytes) => Ok(bytes > 0),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The arguments of the next request, if all of it has arrived. There is at least one.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<&[u8]>>, ProtocolError> {
        loop {
            if self.missing == 0 && !self.begin()? {
                return Ok(None);
            }
            while self.missing > 0 {
                if !self.parse_argument()? {
                    return Ok(None);
                }
            }
            self.start = self.position;
            // An empty request is no request.
            if !self.arguments.is_empty() {
                let buffer = &self.buffer;
                return Ok(Some(self.arguments.drain(..).map(|range| &buffer[range]).collect()));
            }
        }
    }

    /// Parses the begin of a request. Returns whether it has arrived.
    fn begin(&mut self) -> Result<bool, ProtocolError> {
        let rest = &self.buffer[self.position..self.filled];
        let Some(line) = line(rest)? else { return Ok(false) };
        if let Some(count) = line.strip_prefix(b"*") {
            let count = number(count).filter(|&count| count <= ARGUMENTS).ok_or(ProtocolError::Count)?;
            self.missing = count.max(0);
        } else {
            let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let range = |word: &[u8]| {
                let start = word.as_ptr().addr() - self.buffer.as_ptr().addr();
                start..start + word.len()
            };
            self.arguments.extend(words.map(range));
        }
        self.position += line.len() + 1;
        Ok(true)
    }

    /// Parses one argument. Returns whether it has arrived.
    fn parse_argument(&mut self) -> Result<bool, ProtocolError> {
        let rest = &self.buffer[self.position..self.filled];
        match rest.first() {
            None => return Ok(false),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::NotAString(other)),
        }
        let Some(line) = line(rest)? else { return Ok(false) };
        let length = number(&line[1..]).and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|&length| length <= REQUEST_BYTES).ok_or(ProtocolError::Length)?;
        if self.position - self.start + line.len() + length > REQUEST_BYTES {
            return Err(ProtocolError::Size);
        }
        match decode_range(rest) {
            Ok(Some((RangeFrame::BulkString((start, end)), bytes))) => {
                self.arguments.push(self.position + start..self.position + end);
                self.position += bytes;
                self.missing -= 1;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Ok(Some(_)) | Err(_) => Err(ProtocolError::Length),
        }
    }

    /// Removes the requests that were returned from the buffer.
    fn forget_executed(&mut self) {
        self.buffer.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.position -= self.start;
        for range in &mut self.arguments {
            *range = range.start - self.start..range.end - self.start;
        }
        self.start = 0;
        if self.filled < READ_BYTES {
            // A large request is executed.
            self.buffer.truncate(2 * READ_BYTES);
            self.buffer.shrink_to_fit();
        }
    }
}

/// The first line, without the line feed, if it has arrived.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, ProtocolError> {
    let end = bytes.iter().take(LINE_BYTES).position(|&byte| byte == b'\n');
    if end.is_none() && bytes.len() >= LINE_BYTES {
        return Err(ProtocolError::Line);
    }
    Ok(end.map(|end| &bytes[..end]))
}

/// The number in a line that ends by a carriage return.
fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line.strip_suffix(b"\r")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(bytes: &[u8]) -> Requests {
        let mut requests = Requests::default();
        assert!(requests.fill(bytes).unwrap());
        requests
    }

    #[test]
    fn a_request_that_arrives_byte_by_byte_is_read_once() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n  PING x\r\n\r\n*0\r\n*1\r\n$0\r\n\r\n";
        let (mut requests, mut found) = (Requests::default(), Vec::new());
        for byte in bytes {
            assert!(requests.fill(&[*byte][..]).unwrap());
            while let Some(request) = requests.next().unwrap() {
                found.push(request.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
            }
        }
        let expected: [&[&[u8]]; 3] = [&[b"GET", b"\r\n"], &[b"PING", b"x"], &[b""]];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for (bytes, error) in [
            (&b"*99999999999\r\n"[..], ProtocolError::Count),
            (b"*x\r\n", ProtocolError::Count),
            (b"*1\r\n$99999999999\r\n", ProtocolError::Length),
            (b"*1\r\n$-1\r\n", ProtocolError::Length),
            (b"*1\r\n*1\r\n*1\r\n", ProtocolError::NotAString(b'*')),
            (&[b'x'; LINE_BYTES], ProtocolError::Line),
            (b"*2\r\n$40000000\r\n", ProtocolError::Size),
        ] {
            let mut requests = sent(bytes);
            if error == ProtocolError::Size {
                requests.buffer.truncate(bytes.len());
                requests.buffer.extend(vec![b'x'; 40_000_000]);
                requests.buffer.extend(b"\r\n$40000000\r\n");
                requests.filled = requests.buffer.len();
            }
            assert_eq!(requests.next().map(|_| ()), Err(error));
        }
    }
}
