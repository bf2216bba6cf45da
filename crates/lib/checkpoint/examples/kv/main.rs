//! A key-value server for Redis clients, whose data are saved while clients write:
//! `cargo run --release -p fieldstone-checkpoint --example kv -- --port 6399 --dir DIR --save checkpoint`.
//!
//! ```text
//! clients ─→ server ─→ connection ─→ request ─→ engine ─→ commands ─→ database ─→ table, list ─→ heap
//!                                                  └─→ saves ─→ directory of saves
//! ```
//! | file | |
//! |---|---|
//! | `arguments` | the command line |
//! | `server` | the event loop |
//! | `connection` | what a client has sent, and what is sent to it |
//! | `request` | reads the Redis protocol |
//! | `engine` | executes commands, and holds the lock of the data meanwhile |
//! | `commands` | the commands on data |
//! | `database` | keys with a text or a list |
//! | `table` | the hash table of the keys |
//! | `list` | lists |
//! | `heap` | blocks in one memory, addressed by their distance from its start |
//! | `size_class` | the sizes of blocks |
//! | `words` | reads and writes the memory |
//! | `saves` | saves by a checkpoint of the memory, or by fork(2) |
//! | `outcome` | what a save did, as text |
//! | `fair_lock` | the lock of the data |
//!
//! Commands: GET, SET, DEL, INCR, LPUSH, LRANGE, DBSIZE, FLUSHALL, SAVE, BGSAVE, LASTSAVE, INFO, PING, COMMAND,
//! CONFIG GET, QUIT and SHUTDOWN. INFO contains the times of the last save.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "64-bit Linux: an index of a word and a number of keys fit into all of these"
)]

mod arguments;
mod commands;
mod connection;
mod database;
mod engine;
mod fair_lock;
mod heap;
mod list;
mod outcome;
mod request;
mod saves;
mod server;
mod size_class;
mod table;
mod words;

use std::error::Error;
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;
use fieldstone_checkpoint::{Directory, Error as SaveError};
use fieldstone_pages::Memory;
use rustix::event::epoll;

use crate::arguments::Arguments;
use crate::database::Database;
use crate::engine::Engine;
use crate::fair_lock::FairLock;
use crate::heap::Heap;
use crate::saves::Saves;
use crate::server::Server;

/// How long to wait for a server that was killed and has not ended yet.
const LOCK_WAIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let directory = Directory::open(&*arguments.dir)?;
    let _lock = lock(&arguments.dir)?;
    let database = load(&directory, arguments.memory)?;
    let (keys, writes) = (database.keys(), database.writes());
    let database: &'static FairLock<Database> = Box::leak(Box::new(FairLock::new(database)));
    let poll = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let saves = Saves::new(database, directory, arguments.save, Rc::clone(&poll), writes)?;
    let port = arguments.port;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map_err(|error| format!("cannot listen at port {port}: {error}\ntry: --port 0"))?;
    println!("listening at {}, with {keys} keys after {writes} write commands", listener.local_addr()?);
    Server::new(poll, listener, Engine { database, saves })?.run()?;
    Ok(())
}

/// Makes this the only server of a directory. A child that saves holds the lock, too.
fn lock(directory: &Path) -> Result<File, Box<dyn Error>> {
    let path = directory.join("lock");
    let failed = |error| format!("cannot lock {}: {error}", path.display());
    let file = File::create(&path).map_err(failed)?;
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => {
                return Err(format!("cannot use {}: another server uses it", directory.display()).into());
            }
            Err(TryLockError::Error(error)) => return Err(failed(error).into()),
        }
    }
}

/// The data of the last save, or none.
fn load(directory: &Directory, bytes: usize) -> Result<Database, Box<dyn Error>> {
    let last = match directory.last() {
        Ok(last) => last,
        Err(SaveError::NoSave(_)) => {
            let seed = RandomState::new().hash_one(());
            let heap = Heap::create(Memory::anonymous(bytes)?, seed)?;
            return Ok(Database::create(heap).map_err(|error| error.to_string())?);
        }
        Err(error) => return Err(error.into()),
    };
    let mut memories = last.restore()?;
    let memory = memories.pop().filter(|_| memories.is_empty()).ok_or("the last save is not of one memory")?;
    let database = Database::new(Heap::open(memory, bytes)?);
    if database.writes() != last.value() {
        let (writes, value) = (database.writes(), last.value());
        return Err(format!("the last save was taken after {value} write commands, and contains {writes}").into());
    }
    if database.heap().bytes() > bytes {
        eprintln!("kv: the last save has a heap of {}, which is used", arguments::size_text(database.heap().bytes()));
    }
    Ok(database)
}
