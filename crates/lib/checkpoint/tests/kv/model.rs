//! Random commands, and the same ones on a model.

use std::collections::{BTreeMap, VecDeque};

use crate::client::{Client, Reply, ok, text};
use crate::process::{METHODS, Random, Server};

const COMMANDS: usize = 15_000;
const WRONG_KIND: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

enum Value {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
}

#[derive(Default)]
struct Model {
    values: BTreeMap<Vec<u8>, Value>,
    writes: u64,
}

impl Model {
    /// Executes a command; its reply.
    fn execute(&mut self, command: &[Vec<u8>]) -> Reply {
        let (name, arguments) = (str::from_utf8(&command[0]).unwrap(), &command[1..]);
        let reply = match name {
            "GET" => self.get(&arguments[0]),
            "SET" => {
                self.values.insert(arguments[0].clone(), Value::Text(arguments[1].clone()));
                ok()
            }
            "DEL" => integer(arguments.iter().filter(|key| self.values.remove(*key).is_some()).count()),
            "INCR" => self.increment(&arguments[0]),
            "LPUSH" => self.push(&arguments[0], &arguments[1..]),
            "LRANGE" => self.range(&arguments[0], &arguments[1..]),
            "DBSIZE" => integer(self.values.len()),
            "FLUSHALL" => {
                self.values.clear();
                ok()
            }
            other => panic!("{other} is not in the model"),
        };
        let is_write = matches!(name, "SET" | "DEL" | "INCR" | "LPUSH" | "FLUSHALL");
        self.writes += u64::from(is_write && !matches!(reply, Reply::Error(_)));
        reply
    }

    fn get(&self, key: &[u8]) -> Reply {
        match self.values.get(key) {
            Some(Value::Text(bytes)) => text(bytes.clone()),
            Some(Value::List(_)) => Reply::Error(WRONG_KIND.to_owned()),
            None => Reply::Null,
        }
    }

    fn increment(&mut self, key: &[u8]) -> Reply {
        let before = match self.values.get(key) {
            Some(Value::Text(bytes)) => str::from_utf8(bytes).ok().and_then(|text| text.parse::<i64>().ok()),
            Some(Value::List(_)) => return Reply::Error(WRONG_KIND.to_owned()),
            None => Some(0),
        };
        let Some(before) = before else {
            return Reply::Error("ERR value is not an integer or out of range".to_owned());
        };
        self.values.insert(key.to_vec(), Value::Text((before + 1).to_string().into_bytes()));
        Reply::Integer(before + 1)
    }

    fn push(&mut self, key: &[u8], values: &[Vec<u8>]) -> Reply {
        let value = self.values.entry(key.to_vec()).or_insert_with(|| Value::List(VecDeque::new()));
        let Value::List(list) = value else { return Reply::Error(WRONG_KIND.to_owned()) };
        values.iter().for_each(|value| list.push_front(value.clone()));
        integer(list.len())
    }

    fn range(&self, key: &[u8], positions: &[Vec<u8>]) -> Reply {
        let empty = VecDeque::new();
        let list = match self.values.get(key) {
            Some(Value::List(list)) => list,
            Some(Value::Text(_)) => return Reply::Error(WRONG_KIND.to_owned()),
            None => &empty,
        };
        let positions = positions.iter().map(|position| str::from_utf8(position).unwrap().parse::<i64>().unwrap());
        let length = i64::try_from(list.len()).unwrap();
        let positions: Vec<_> =
            positions.map(|position| if position < 0 { position + length } else { position }).collect();
        let is_in = |index: &usize| (positions[0]..=positions[1]).contains(&i64::try_from(*index).unwrap());
        Reply::Array(
            list.iter().enumerate().filter(|(index, _)| is_in(index)).map(|(_, value)| text(value.clone())).collect(),
        )
    }

    /// Compares all data.
    fn check(&self, client: &mut Client) {
        assert_eq!(client.words("DBSIZE"), integer(self.values.len()));
        assert_eq!(client.info("writes"), self.writes);
        for (key, value) in &self.values {
            let expected = match value {
                Value::Text(bytes) => text(bytes.clone()),
                Value::List(list) => Reply::Array(list.iter().cloned().map(text).collect()),
            };
            let command = match value {
                Value::Text(_) => vec![b"GET".to_vec(), key.clone()],
                Value::List(_) => ["LRANGE".as_bytes(), key, b"0", b"-1"].map(<[u8]>::to_vec).to_vec(),
            };
            assert_eq!(client.call(command), expected, "{}", key.escape_ascii());
        }
    }
}

fn integer(number: usize) -> Reply {
    Reply::Integer(number.try_into().unwrap())
}

/// A key of up to 70 bytes: few keys are used often.
fn key(random: &mut Random) -> Vec<u8> {
    let range = [8, 100, 800][random.below(3)];
    let number = random.below(range);
    let mut key = format!("{number}").into_bytes();
    key.resize(key.len() + number % 67, 0);
    key
}

fn value(random: &mut Random) -> Vec<u8> {
    if random.below(4) == 0 {
        return random.below(2000).to_string().into_bytes();
    }
    let limit = [9, 200, 3000][random.below(3)];
    (0..random.below(limit)).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
}

fn command(random: &mut Random) -> Vec<Vec<u8>> {
    let kind = random.below(1000);
    let name = match kind {
        0..250 => "SET",
        250..400 => "GET",
        400..500 => "DEL",
        500..650 => "INCR",
        650..850 => "LPUSH",
        850..980 => "LRANGE",
        980..999 => "DBSIZE",
        _ => "FLUSHALL",
    };
    let mut command = vec![name.as_bytes().to_vec()];
    if !matches!(name, "DBSIZE" | "FLUSHALL") {
        command.push(key(random));
    }
    match name {
        "SET" => command.push(value(random)),
        "DEL" => command.extend((0..random.below(3)).map(|_| key(random))),
        "LPUSH" => command.extend((0..=random.below(4)).map(|_| value(random))),
        "LRANGE" => command.extend((0..2).map(|_| format!("{}", random.below(40) as i64 - 20).into_bytes())),
        _ => {}
    }
    command
}

/// Executes random commands with saves meanwhile, restarts the server, and compares.
fn check_method(method: &str, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (mut random, mut model) = (Random(seed), Model::default());
    let mut server = Server::start(folder.path(), method, "64M");
    for _ in 0..2 {
        let mut client = server.client();
        model.check(&mut client);
        for number in 0..COMMANDS {
            let command = command(&mut random);
            let (expected, name) = (model.execute(&command), String::from_utf8_lossy(&command[0]).into_owned());
            assert_eq!(client.call(command), expected, "command {number} of seed {seed}: {name}");
            if number % 1000 == 500 {
                client.wait_for_save();
                assert_eq!(client.words("BGSAVE"), Reply::SimpleString(b"Background saving started".to_vec()));
            }
        }
        model.check(&mut client);
        client.wait_for_save();
        assert_eq!(client.words("SAVE"), ok());
        assert_eq!(client.info("last_save_writes"), model.writes);
        server.kill();
        server = Server::start(folder.path(), method, "64M");
    }
    model.check(&mut server.client());
}

#[test]
fn random_commands_have_the_replies_of_a_model_with_checkpoints() {
    check_method(METHODS[0], 1);
}

#[test]
fn random_commands_have_the_replies_of_a_model_with_forks() {
    check_method(METHODS[1], 2);
}

#[test]
fn a_large_table_has_all_of_its_keys_and_loses_those_that_are_deleted() {
    const KEYS: usize = 50_000;
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "checkpoint", "64M");
    let mut client = server.client();
    let mut all = |command: &dyn Fn(usize) -> Vec<String>, reply: &dyn Fn(usize) -> Reply| {
        for first in (0..KEYS).step_by(500) {
            assert!(client.send(&(first..first + 500).map(command).collect::<Vec<_>>()));
            (first..first + 500).for_each(|number| assert_eq!(client.receive(), Some(reply(number)), "{number}"));
        }
        client.words("DBSIZE")
    };
    let words = |words: &[&str], number: usize| {
        words.iter().map(|word| word.replace('#', &number.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(all(&|number| words(&["SET", "key:#", "#"], number), &|_| ok()), integer(KEYS));
    let get = |number| words(&["GET", "key:#"], number);
    assert_eq!(all(&get, &|number| text(number.to_string())), integer(KEYS));
    let is_deleted = |number: usize| !number.is_multiple_of(3);
    let delete = |number| words(&["DEL", if is_deleted(number) { "key:#" } else { "other:#" }], number);
    assert_eq!(all(&delete, &|number| integer(usize::from(is_deleted(number)))), integer(KEYS.div_ceil(3)));
    let left = |number: usize| if is_deleted(number) { Reply::Null } else { text(number.to_string()) };
    assert_eq!(all(&get, &left), integer(KEYS.div_ceil(3)));
}
