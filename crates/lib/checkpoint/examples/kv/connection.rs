//! A connection: requests that have arrived, and replies that are not sent yet.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};

use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::Resp2Frame;

use crate::commands::Reply;
use crate::engine::{Engine, Next};
use crate::request::Requests;

/// Unsent bytes at which no further request of the connection is executed.
const OUTPUT_LIMIT: usize = 1 << 20;

/// What the event loop waits for, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Reading,
    Writing,
    Closed,
    EndServer,
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    requests: Requests,
    output: Vec<u8>,
    /// Bytes of the output that are sent.
    sent: usize,
    /// Whether the client may send more.
    is_open: bool,
    /// Whether requests are executed: until QUIT or an error of the protocol.
    executes: bool,
}

impl Connection {
    /// A connection of a stream that does not block.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, requests: Requests::default(), output: Vec::new(), sent: 0, is_open: true, executes: true }
    }

    pub(crate) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads, executes and replies as far as that is possible without waiting.
    pub(crate) fn advance(&mut self, engine: &mut Engine) -> State {
        self.try_advance(engine).unwrap_or(State::Closed)
    }

    fn try_advance(&mut self, engine: &mut Engine) -> io::Result<State> {
        // Replies that the client does not read stop its requests.
        if self.output.is_empty() && self.is_open {
            self.is_open = self.requests.fill(&self.stream)?;
        }
        loop {
            let is_limited = match self.execute(engine) {
                Executed::All => false,
                Executed::UpToLimit => true,
                Executed::EndServer => return Ok(State::EndServer),
            };
            self.send()?;
            if !self.output.is_empty() {
                return Ok(State::Writing);
            }
            if !is_limited {
                return Ok(if self.is_open && self.executes { State::Reading } else { State::Closed });
            }
        }
    }

    /// Executes the requests that have arrived.
    fn execute(&mut self, engine: &mut Engine) -> Executed {
        let mut batch = engine.batch();
        while self.executes {
            if self.output.len() - self.sent >= OUTPUT_LIMIT {
                return Executed::UpToLimit;
            }
            let (reply, next) = match self.requests.next() {
                Ok(Some(request)) => batch.execute(&request),
                Ok(None) => break,
                Err(error) => (Reply::Error(error.to_string()), Next::CloseConnection),
            };
            if next == Next::EndServer {
                return Executed::EndServer;
            }
            self.executes = append(&mut self.output, &reply) && next == Next::Continue;
        }
        Executed::All
    }

    /// Sends replies until the client has to read some first.
    fn send(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT_LIMIT);
        self.sent = 0;
        Ok(())
    }
}

impl Drop for Connection {
    /// Closes the connection even while a child that saves has a copy of its descriptor.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Which requests were executed.
enum Executed {
    All,
    UpToLimit,
    EndServer,
}

/// Appends an encoded reply. Returns whether that succeeded.
fn append(output: &mut Vec<u8>, reply: &Reply) -> bool {
    let start = output.len();
    output.resize(start + reply.encode_len(false), 0);
    let encoded = encode(&mut output[start..], reply, false);
    output.truncate(start + encoded.as_ref().unwrap_or(&0));
    encoded.is_ok()
}
