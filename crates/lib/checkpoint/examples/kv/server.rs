//! The event loop: one thread, which serves all connections.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connection::{Connection, State};
use crate::engine::Engine;

/// The event of the listener.
const LISTENER: u64 = 0;
/// The event of a save that has ended.
pub(crate) const SAVE_ENDED: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// Events that are received at one time.
const EVENTS: usize = 256;

#[derive(Debug)]
pub(crate) struct Server {
    poll: Rc<OwnedFd>,
    listener: TcpListener,
    engine: Engine,
    /// By their events, with the state that the kernel knows.
    connections: HashMap<u64, (Connection, State)>,
    next_event: u64,
}

impl Server {
    pub(crate) fn new(poll: Rc<OwnedFd>, listener: TcpListener, engine: Engine) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        epoll::add(&*poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Self { poll, listener, engine, connections: HashMap::new(), next_event: FIRST_CONNECTION })
    }

    /// Serves until a client shuts the server down.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            match epoll::wait(&*self.poll, spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    SAVE_ENDED => {
                        // A failure was reported, and is in INFO.
                        let _ = self.engine.saves.finish();
                    }
                    connection => {
                        if self.advance(connection)? == State::EndServer {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Accepts the connections that wait.
    fn accept(&mut self) {
        loop {
            let added = self.listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                epoll::add(&*self.poll, &stream, EventData::new_u64(self.next_event), EventFlags::IN)?;
                Ok(Connection::new(stream))
            });
            match added {
                Ok(connection) => {
                    self.connections.insert(self.next_event, (connection, State::Reading));
                    self.next_event += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    eprintln!("kv: cannot accept a connection: {error}");
                    // Without a free descriptor the connection still waits.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Continues a connection, and polls for what it needs next.
    fn advance(&mut self, event: u64) -> io::Result<State> {
        let Some((connection, known)) = self.connections.get_mut(&event) else { return Ok(State::Closed) };
        let state = connection.advance(&mut self.engine);
        if state == State::Closed {
            self.connections.remove(&event);
        } else if state != *known {
            *known = state;
            let flags = if state == State::Writing { EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&*self.poll, connection.stream(), EventData::new_u64(event), flags)?;
        }
        Ok(state)
    }
}
