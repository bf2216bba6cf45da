//! The store `redis`: pages on a Redis or Valkey server, or on a cluster of them.
//!
//! ```text
//! fieldstone:ID:NUMBER ─→ a page, compressed by lz4 if that makes it smaller
//! ```
//! A batch of pages is one pipeline. After an error the store connects again and repeats the batch,
//! until its timeout has passed. The keys are deleted when the store is dropped.
//!
//! Each value is read with the check that the pager keeps in memory, so an old or foreign value is
//! detected.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterConnection, cluster_pipe};
use redis::{Client, Cmd, FromRedisValue, cmd};

use crate::device::{Device, DeviceStore, PagesLeft};
use crate::kernel::{EIO, ENODATA};
use crate::packed::{new_prefix, pack, unpack};
use crate::store::{Page, StoreError};

/// How long the store waits before it connects again.
const PAUSE: Duration = Duration::from_millis(50);
/// Keys that are deleted by one command.
const DELETED_AT_ONCE: u32 = 1000;

/// Pages on a Redis or Valkey server.
pub type Redis = DeviceStore<RedisServer>;

/// A server cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot store pages on {server}: {cause}\ntry: {remedy}")]
pub struct RedisError {
    server: String,
    cause: String,
    remedy: &'static str,
}

impl Redis {
    /// Connects to `redis://[USER:PASSWORD@]HOST[:PORT]` or, for a cluster, to one of its servers,
    /// `redis+cluster://…`. Later, an operation that fails is repeated until `timeout` has passed;
    /// faults wait meanwhile.
    ///
    /// # Errors
    /// If the server cannot be reached now, or may drop keys when its memory is full.
    pub fn open(url: &str, timeout: Duration) -> Result<Self, RedisError> {
        let server = RedisServer::new(url, timeout)?;
        server.check()?;
        let refused = |error: crate::Error| RedisError {
            server: server_of(url),
            cause: error.to_string(),
            remedy: "a larger limit of memory (ulimit -v)",
        };
        Self::new(server).map_err(refused)
    }
}

#[derive(Debug)]
enum Target {
    Server(Client),
    Cluster(ClusterClient),
}

enum Connection {
    Server(redis::Connection),
    Cluster(Box<ClusterConnection>),
}

/// A Redis server, or a cluster.
pub struct RedisServer {
    /// Without user and password.
    shown: String,
    target: Target,
    prefix: String,
    timeout: Duration,
    /// Connections that no thread uses.
    idle: Mutex<Vec<Connection>>,
    /// Whether the last query failed for the whole timeout.
    is_lost: AtomicBool,
    /// The number behind the largest one that was written.
    end: AtomicU32,
    /// The process whose pages these are.
    process: u32,
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServer").field("server", &self.shown).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl fmt::Display for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// The address of a server without user and password.
fn server_of(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

impl RedisServer {
    /// A server that is connected at its first use. Its pages have keys of their own.
    ///
    /// # Errors
    /// If the address cannot be understood.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, RedisError> {
        let shown = server_of(url);
        let refused = |error: redis::RedisError| RedisError {
            server: shown.clone(),
            cause: error.to_string(),
            remedy: "redis://HOST:PORT",
        };
        let target = match url.strip_prefix("redis+cluster://") {
            Some(rest) => Target::Cluster(cluster(&format!("redis://{rest}"), timeout).map_err(refused)?),
            None => Target::Server(Client::open(url).map_err(refused)?),
        };
        Ok(Self {
            prefix: new_prefix(':'),
            shown,
            target,
            timeout,
            idle: Mutex::default(),
            is_lost: AtomicBool::new(false),
            end: AtomicU32::new(0),
            process: std::process::id(),
        })
    }

    /// Connects, and checks that the server takes keys and keeps them.
    ///
    /// # Errors
    /// If the server cannot be reached, takes no key, or may drop keys when its memory is full.
    pub fn check(&self) -> Result<(), RedisError> {
        let refused = |cause: String, remedy| RedisError { server: self.shown.clone(), cause, remedy };
        let mut connection = self
            .connect()
            .map_err(|error| refused(error.to_string(), "start the server, and check host, port and password"))?;
        if let Connection::Server(server) = &mut connection
            // A user without the permission for INFO gets no answer here.
            && let Ok(info) = cmd("INFO").arg("memory").query::<String>(server)
            && drops_keys(&info)
        {
            let cause = "it drops keys when its memory is full, and their pages would be lost".to_owned();
            return Err(refused(cause, "CONFIG SET maxmemory-policy noeviction"));
        }
        self.keep_idle(connection);
        let key = format!("{}check", self.prefix);
        let commands = [cmd("SET").arg(&key).arg("x").clone(), cmd("UNLINK").arg(&key).clone()];
        self.query::<()>(&commands).map_err(|error| {
            let remedy = if ["NOAUTH", "WRONGPASS"].iter().any(|code| error.to_string().contains(code)) {
                "redis://USER:PASSWORD@HOST:PORT, or redis://:PASSWORD@HOST:PORT"
            } else if matches!(self.target, Target::Cluster(_)) {
                "redis://HOST:PORT for a server outside of a cluster, and a user who may write"
            } else {
                "a user who may write, and a server that is no replica"
            };
            refused(error.to_string(), remedy)
        })
    }

    fn connect(&self) -> redis::RedisResult<Connection> {
        match &self.target {
            Target::Server(client) => {
                let connection = client.get_connection_with_timeout(self.timeout)?;
                connection.set_read_timeout(Some(self.timeout))?;
                connection.set_write_timeout(Some(self.timeout))?;
                Ok(Connection::Server(connection))
            }
            Target::Cluster(client) => Ok(Connection::Cluster(Box::new(client.get_connection()?))),
        }
    }

    fn keep_idle(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    fn query<T: FromRedisValue>(&self, commands: &[Cmd]) -> redis::RedisResult<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = idle.map_or_else(|| self.connect(), Ok)?;
        let result = match &mut connection {
            Connection::Server(server) => {
                let mut pipeline = redis::pipe();
                commands.iter().for_each(|command| _ = pipeline.add_command(command.clone()));
                pipeline.query(server)
            }
            Connection::Cluster(cluster) => {
                let mut pipeline = cluster_pipe();
                commands.iter().for_each(|command| _ = pipeline.add_command(command.clone()));
                pipeline.query(cluster)
            }
        };
        if result.is_ok() {
            self.keep_idle(connection);
        }
        result
    }

    /// Makes a query, again until the timeout has passed. Once that has happened, queries are made once
    /// until one succeeds.
    fn query_with_retries<T: FromRedisValue>(&self, commands: &[Cmd]) -> Result<T, StoreError> {
        let start = Instant::now();
        loop {
            match self.query(commands) {
                Ok(result) => {
                    self.is_lost.store(false, Ordering::Relaxed);
                    return Ok(result);
                }
                Err(error) if is_full(&error) => return Err(StoreError::Full),
                Err(_) if start.elapsed() < self.timeout && !self.is_lost.load(Ordering::Relaxed) => sleep(PAUSE),
                Err(_) => {
                    self.is_lost.store(true, Ordering::Relaxed);
                    return Err(StoreError::Failed(EIO));
                }
            }
        }
    }

    fn key(&self, number: u32) -> String {
        format!("{}{number}", self.prefix)
    }
}

fn cluster(url: &str, timeout: Duration) -> redis::RedisResult<ClusterClient> {
    ClusterClient::builder([url]).connection_timeout(timeout).response_timeout(timeout).build()
}

/// Whether the server has no memory for a value.
fn is_full(error: &redis::RedisError) -> bool {
    error.clone().into_server_errors().is_some_and(|errors| errors.iter().any(|(_, error)| error.code() == "OOM"))
}

/// Whether a server with this memory information drops keys.
fn drops_keys(info: &str) -> bool {
    let fields: HashMap<_, _> = info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let has_limit = fields.get("maxmemory").is_some_and(|&bytes| bytes != "0");
    // Other policies drop only keys with an expiry, which these keys have not.
    has_limit && fields.get("maxmemory_policy").is_some_and(|policy| policy.starts_with("allkeys"))
}

impl Device for RedisServer {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn write(&self, first: u32, pages: &[&Page]) -> Result<usize, StoreError> {
        let write = |(number, page): (u32, &&Page)| {
            let mut command = cmd("SET");
            command.arg(self.key(number)).arg(pack(page));
            command
        };
        self.end.fetch_max(first + pages.len() as u32, Ordering::Relaxed);
        let commands: Vec<_> = (first..).zip(pages).map(write).collect();
        self.query_with_retries::<()>(&commands)?;
        Ok(pages.len())
    }

    fn read(&self, numbers: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        let read = |&number: &u32| {
            let mut command = cmd("GET");
            command.arg(self.key(number));
            command
        };
        let commands: Vec<_> = numbers.iter().map(read).collect();
        let values: Vec<Option<Vec<u8>>> = self.query_with_retries(&commands)?;
        for (value, page) in values.iter().zip(pages) {
            unpack(value.as_ref().ok_or(StoreError::Failed(ENODATA))?, page)?;
        }
        Ok(())
    }

    fn delete_all(&self) -> Result<(), PagesLeft> {
        let end = self.end.swap(0, Ordering::Relaxed);
        for first in (0..end).step_by(DELETED_AT_ONCE as usize) {
            let last = (first + DELETED_AT_ONCE).min(end);
            let delete = |number| {
                let mut command = cmd("UNLINK");
                command.arg(self.key(number));
                command
            };
            let commands: Vec<_> = (first..last).map(delete).collect();
            if self.query::<()>(&commands).is_err() {
                let names = format!("{}*", self.prefix);
                let remedy = format!("redis-cli --scan --pattern '{names}' | xargs redis-cli unlink");
                return Err(PagesLeft { place: self.shown.clone(), names, remedy });
            }
        }
        Ok(())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The pages are those of the parent, not of a forked child.
        if std::process::id() == self.process {
            let _ = self.delete_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_no_password() {
        assert_eq!(server_of("redis://user:secret@host:1"), "redis://host:1");
        assert_eq!(server_of("redis+cluster://host"), "redis+cluster://host");
        let error = RedisServer::new("http://user:secret@host", PAUSE).unwrap_err().to_string();
        assert!(error.starts_with("cannot store pages on http://host: ") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_server_that_drops_keys_is_recognised() {
        assert!(drops_keys("maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n"));
        assert!(!drops_keys("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"));
        assert!(!drops_keys("maxmemory:1000\r\nmaxmemory_policy:volatile-lru\r\n"));
        assert!(!drops_keys(""));
    }
}
