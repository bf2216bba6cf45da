//! The commands that read and write data.

use std::fmt;

use redis_protocol::resp2::types::OwnedFrame;

use crate::database::{DataError, Database, integer};

/// The reply to a command.
pub(crate) type Reply = OwnedFrame;

/// Why a command was not executed.
#[derive(Debug)]
pub(crate) enum CommandError {
    Unknown(String),
    WrongArguments(String),
    SetOptions,
    NotAPosition,
    Data(DataError),
}

impl From<DataError> for CommandError {
    fn from(error: DataError) -> Self {
        Self::Data(error)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "ERR unknown command '{}'", printable(name)),
            Self::WrongArguments(name) => {
                write!(f, "ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase())
            }
            Self::SetOptions => {
                f.write_str("ERR SET takes a key and a value; options such as EX and NX are not supported")
            }
            Self::NotAPosition => f.write_str("ERR value is not an integer or out of range"),
            Self::Data(error) => error.fmt(f),
        }
    }
}

/// The begin of a name, without control characters, which would end the reply.
fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).take(64).collect()
}

pub(crate) fn ok() -> Reply {
    Reply::SimpleString(b"OK".to_vec())
}

pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Reply {
    Reply::BulkString(bytes.into())
}

pub(crate) fn integer_reply(number: usize) -> Reply {
    Reply::Integer(number as i64)
}

/// Executes a command on data. Its name is in upper case.
pub(crate) fn execute(database: &mut Database, name: &str, arguments: &[&[u8]]) -> Result<Reply, CommandError> {
    let is_write = matches!(name, "SET" | "DEL" | "INCR" | "LPUSH" | "FLUSHALL");
    let reply = match (name, arguments) {
        ("GET", [key]) => database.get(key)?.map_or(Reply::Null, bulk),
        ("SET", [key, text]) => database.set(key, text).map(|()| ok())?,
        ("SET", [_, _, _, ..]) => return Err(CommandError::SetOptions),
        ("DEL", keys @ [_, ..]) => integer_reply(keys.iter().filter(|key| database.delete(key)).count()),
        ("INCR", [key]) => Reply::Integer(database.increment(key)?),
        ("LPUSH", [key, values @ ..]) if !values.is_empty() => integer_reply(database.push(key, values)?),
        ("LRANGE", [key, start, stop]) => {
            let position = |text| integer(text).ok_or(CommandError::NotAPosition);
            let values = database.range(key, position(start)?, position(stop)?)?;
            Reply::Array(values.into_iter().map(bulk).collect())
        }
        ("DBSIZE", []) => Reply::Integer(database.keys() as i64),
        // The argument ASYNC or SYNC has no effect: the time does not depend on the number of keys.
        ("FLUSHALL", [] | [_]) => database.clear().map(|()| ok())?,
        ("GET" | "SET" | "DEL" | "INCR" | "LPUSH" | "LRANGE" | "DBSIZE" | "FLUSHALL", _) => {
            return Err(CommandError::WrongArguments(name.to_owned()));
        }
        _ => return Err(CommandError::Unknown(name.to_owned())),
    };
    if is_write {
        database.count_write();
    }
    Ok(reply)
}
