//! Executes commands: those on data under the lock of the data, and those on the server without it.

use std::sync::MutexGuard;

use crate::commands::{CommandError, Reply, bulk, execute, ok};
use crate::database::Database;
use crate::fair_lock::FairLock;
use crate::saves::Saves;

/// What the event loop does after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Continue,
    CloseConnection,
    EndServer,
}

/// The data and their saves.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) database: &'static FairLock<Database>,
    pub(crate) saves: Saves,
}

/// Commands that are executed one after another. The lock of the data is released when it is dropped, and
/// before a command on the server.
pub(crate) struct Batch<'a> {
    engine: &'a mut Engine,
    data: Option<MutexGuard<'static, Database>>,
}

impl Engine {
    pub(crate) const fn batch(&mut self) -> Batch<'_> {
        Batch { engine: self, data: None }
    }

    /// Executes a command on the server; `None` if this is a command on data.
    fn serve(&mut self, name: &str, arguments: &[&[u8]]) -> Option<(Reply, Next)> {
        let reply = match (name, arguments) {
            ("PING", []) => Reply::SimpleString(b"PONG".to_vec()),
            ("PING", [message]) => bulk(*message),
            ("QUIT", _) => return Some((ok(), Next::CloseConnection)),
            // Clients ask for the names of commands, and go on without.
            ("COMMAND", _) => Reply::Array(Vec::new()),
            ("CONFIG", [get, names @ ..]) if get.eq_ignore_ascii_case(b"GET") => settings(names),
            ("INFO", _) => bulk(self.info()),
            ("LASTSAVE", []) => Reply::Integer(self.saves.last_time() as i64),
            ("SAVE", []) => match self.saves.begin().and_then(|()| self.saves.finish()) {
                Ok(()) => ok(),
                Err(error) => Reply::Error(error.to_string()),
            },
            ("BGSAVE", [] | [_]) => match self.saves.begin() {
                Ok(()) => Reply::SimpleString(b"Background saving started".to_vec()),
                Err(error) => Reply::Error(error.to_string()),
            },
            ("SHUTDOWN", [] | [_]) => return Some(self.shut_down(arguments)),
            ("PING" | "CONFIG" | "LASTSAVE" | "SAVE" | "BGSAVE" | "SHUTDOWN", _) => {
                Reply::Error(CommandError::WrongArguments(name.to_owned()).to_string())
            }
            _ => return None,
        };
        Some((reply, Next::Continue))
    }

    /// Saves, if the argument is not NOSAVE. The server goes on if that fails.
    fn shut_down(&mut self, arguments: &[&[u8]]) -> (Reply, Next) {
        let _ = self.saves.finish();
        let is_saved = match arguments {
            [option] if option.eq_ignore_ascii_case(b"NOSAVE") => Ok(()),
            _ => self.saves.begin().and_then(|()| self.saves.finish()),
        };
        match is_saved {
            Ok(()) => (ok(), Next::EndServer),
            Err(error) => (Reply::Error(error.to_string()), Next::Continue),
        }
    }

    fn info(&self) -> String {
        let data = self.database.lock();
        let (keys, writes, heap) = (data.keys(), data.writes(), data.heap());
        format!(
            "# Server\r\nprocess_id:{}\r\n# Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\n# Persistence\r\n{}writes:{writes}\r\n\
             # Keyspace\r\ndb0:keys={keys}\r\n",
            std::process::id(),
            heap.used_bytes(),
            heap.bytes(),
            self.saves.info()
        )
    }
}

/// The settings that redis-benchmark asks for, and none for other names.
fn settings(names: &[&[u8]]) -> Reply {
    let value = |name: &[u8]| match name {
        b"save" => Some(""),
        b"appendonly" => Some("no"),
        _ => None,
    };
    let found = names.iter().filter_map(|name| Some([bulk(*name), bulk(value(name)?)]));
    Reply::Array(found.flatten().collect())
}

impl Batch<'_> {
    /// Executes a request of at least one argument, the name of the command.
    pub(crate) fn execute(&mut self, request: &[&[u8]]) -> (Reply, Next) {
        let name = String::from_utf8_lossy(request[0]).to_ascii_uppercase();
        let arguments = &request[1..];
        let is_on_server = matches!(
            &*name,
            "PING" | "QUIT" | "COMMAND" | "CONFIG" | "INFO" | "LASTSAVE" | "SAVE" | "BGSAVE" | "SHUTDOWN"
        );
        if is_on_server {
            self.data = None;
            if let Some(served) = self.engine.serve(&name, arguments) {
                return served;
            }
        }
        let data = self.data.get_or_insert_with(|| self.engine.database.lock());
        let reply = execute(data, &name, arguments).unwrap_or_else(|error| Reply::Error(error.to_string()));
        (reply, Next::Continue)
    }
}
