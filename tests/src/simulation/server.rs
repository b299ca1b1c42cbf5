//! The simulated server: it runs commands and scripts, and delivers messages.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use lock_core::sync::lock;
use mlua::{Function, Lua, MultiValue, Table, Value};

use super::data::{Data, shown};
use super::reply::Reply;

/// A connection.
pub(super) type Id = usize;

thread_local! {
    /// The hashes of scripts: to compute them takes longer than to run the scripts.
    static HASHES: RefCell<BTreeMap<String, String>> = RefCell::default();
}

/// A script must neither make global variables nor read those that do not exist.
const NO_GLOBALS: &str = "setmetatable(_G, {
  __newindex = function(_, name) error('the global variable ' .. tostring(name)) end,
  __index = function(_, name) error('the global variable ' .. tostring(name)) end,
})";

pub(super) struct Server {
    lua: Lua,
    /// All scripts that were ever loaded, by their hashes.
    scripts: BTreeMap<String, Function>,
    /// The hashes of those that the server has.
    loaded: BTreeSet<String>,
    /// How often it was restarted.
    starts: u64,
    core: Arc<Mutex<Core>>,
}

#[derive(Default)]
struct Core {
    data: Data,
    subscribers: BTreeMap<Vec<u8>, BTreeSet<Id>>,
    /// How often each command was run.
    calls: BTreeMap<String, u64>,
    /// Messages that have to be delivered.
    messages: Vec<(Id, Reply)>,
    /// What has ended the script that runs.
    failure: Option<String>,
}

impl Core {
    /// Counts a call of this command. Returns its name.
    fn count(&mut self, command: &[u8]) -> String {
        let name = String::from_utf8_lossy(command).to_lowercase();
        *self.calls.entry(name.clone()).or_default() += 1;
        name
    }

    fn call(&mut self, command: &[Vec<u8>]) -> Reply {
        let name = self.count(&command[0]);
        match (&*name, &command[1..]) {
            ("publish", [channel, payload]) => {
                let subscribers = self.subscribers.get(channel).into_iter().flatten();
                let text = |bytes: &[u8]| Reply::Bulk(bytes.to_vec());
                let push = Reply::Push(vec![Reply::text("message"), text(channel), text(payload)]);
                let before = self.messages.len();
                self.messages.extend(subscribers.map(|id| (*id, push.clone())));
                Reply::count(self.messages.len() - before)
            }
            ("pubsub", [_, channels @ ..]) => {
                let count =
                    |channel: &Vec<u8>| self.subscribers.get(channel).map_or(0, BTreeSet::len);
                let counts = channels.iter().flat_map(|channel| {
                    [Reply::Bulk(channel.clone()), Reply::count(count(channel))]
                });
                Reply::Array(counts.collect())
            }
            _ => self.data.call(command),
        }
    }
}

impl Server {
    pub(super) fn new() -> Self {
        let (lua, scripts, loaded) = (Lua::new(), BTreeMap::new(), BTreeSet::new());
        let server = Self { lua, scripts, loaded, starts: 0, core: Arc::default() };
        server.prepare().expect("two functions");
        server
    }

    fn prepare(&self) -> mlua::Result<()> {
        let redis = self.lua.create_table()?;
        for (name, fails) in [("call", true), ("pcall", false)] {
            let core = Arc::clone(&self.core);
            let call = self.lua.create_function(move |lua, arguments: MultiValue| {
                let command: Vec<_> = arguments.iter().map(argument).collect();
                let reply = lock(&core).call(&command);
                if let (Reply::Error(error), true) = (&reply, fails) {
                    lock(&core).failure = Some(error.clone());
                    return Err(mlua::Error::runtime(error));
                }
                to_lua(lua, &reply)
            })?;
            redis.set(name, call)?;
        }
        self.lua.globals().set("redis", redis)?;
        // As the server does.
        self.lua.load(NO_GLOBALS).exec()
    }

    pub(super) fn set_time(&self, microseconds: u64) {
        lock(&self.core).data.now = microseconds;
    }

    /// The server was restarted, and may have lost its data.
    pub(super) fn restart(&mut self, keeps_data: bool) {
        self.loaded.clear();
        self.starts += 1;
        let mut core = lock(&self.core);
        core.subscribers.clear();
        core.messages.clear();
        if !keeps_data {
            core.data.clear();
        }
    }

    /// The connection has ended.
    pub(super) fn disconnect(&self, id: Id) {
        lock(&self.core).subscribers.values_mut().for_each(|them| _ = them.remove(&id));
    }

    pub(super) fn keys(&self) -> Vec<String> {
        lock(&self.core).data.existing()
    }

    pub(super) fn calls(&self, command: &str) -> u64 {
        lock(&self.core).calls.get(command).copied().unwrap_or_default()
    }

    /// Messages that have to be delivered.
    pub(super) fn take_messages(&self) -> Vec<(Id, Reply)> {
        std::mem::take(&mut lock(&self.core).messages)
    }

    /// Runs a request of a connection.
    pub(super) fn execute(&mut self, id: Id, request: &[Vec<u8>]) -> Vec<Reply> {
        let word = |index: usize| {
            request
                .get(index)
                .map_or(String::new(), |it| String::from_utf8_lossy(it).to_uppercase())
        };
        vec![match (&*word(0), &*word(1)) {
            ("HELLO", _) => Reply::Map(vec![
                (Reply::text("server"), Reply::text("redis")),
                (Reply::text("proto"), Reply::Integer(3)),
            ]),
            ("CLIENT", "TRACKING") => Reply::Error("ERR unknown subcommand 'TRACKING'".into()),
            ("CLIENT" | "SELECT", _) => Reply::OK,
            ("PING", _) => Reply::Status("PONG"),
            ("INFO", _) => Reply::text(&format!(
                "# Server\r\nredis_version:7.2.0\r\nredis_mode:standalone\r\nrun_id:{:040x}\r\n\
                 # Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:{:040x}\r\n",
                self.starts, self.starts
            )),
            ("SCRIPT", "LOAD") => Reply::text(&self.load(&request[2])),
            ("EVAL", _) => {
                let hash = self.load(&request[1]);
                self.run(&hash, &request[2..])
            }
            ("EVALSHA", _) => {
                lock(&self.core).count(b"evalsha");
                self.run(&String::from_utf8_lossy(&request[1]), &request[2..])
            }
            (change @ ("SUBSCRIBE" | "UNSUBSCRIBE"), _) => {
                let mut core = lock(&self.core);
                let changed = request[1..].iter().map(|channel| {
                    let subscribers = core.subscribers.entry(channel.clone()).or_default();
                    if change == "SUBSCRIBE" {
                        subscribers.insert(id);
                    } else {
                        subscribers.remove(&id);
                    }
                    Reply::Push(vec![
                        Reply::text(&change.to_lowercase()),
                        Reply::Bulk(channel.clone()),
                        Reply::Integer(1),
                    ])
                });
                return changed.collect();
            }
            _ => lock(&self.core).call(request),
        }]
    }

    fn load(&mut self, text: &[u8]) -> String {
        let text = std::str::from_utf8(text).expect("a script is text");
        let hash = HASHES.with_borrow_mut(|hashes| match hashes.get(text) {
            Some(hash) => hash.clone(),
            None => {
                let hash = redis::Script::new(text).get_hash().to_owned();
                hashes.entry(text.to_owned()).or_insert(hash).clone()
            }
        });
        self.loaded.insert(hash.clone());
        if !self.scripts.contains_key(&hash) {
            let function = self.lua.load(text).into_function().expect("a valid script");
            self.scripts.insert(hash.clone(), function);
        }
        hash
    }

    fn run(&self, hash: &str, arguments: &[Vec<u8>]) -> Reply {
        let Some(script) = self.scripts.get(hash).filter(|_| self.loaded.contains(hash)) else {
            return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".into());
        };
        let count = std::str::from_utf8(&arguments[0]).expect("a number");
        let (keys, rest) = arguments[1..].split_at(count.parse().expect("a number"));
        let outcome = self.call_script(script, keys, rest);
        match (lock(&self.core).failure.take(), outcome) {
            (Some(error), _) => Reply::Error(error),
            (None, Ok(reply)) => reply,
            (None, Err(error)) => panic!("a script fails: {error}"),
        }
    }

    fn call_script(
        &self,
        script: &Function,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> mlua::Result<Reply> {
        for (name, values) in [("KEYS", keys), ("ARGV", arguments)] {
            let values = values.iter().map(|value| self.lua.create_string(value));
            let values = values.collect::<mlua::Result<Vec<_>>>()?;
            self.lua.globals().raw_set(name, values)?;
        }
        from_lua(&script.call::<Value>(())?)
    }
}

/// An argument of a command that a script calls.
#[expect(clippy::cast_possible_truncation, reason = "whole numbers are shown without a fraction")]
fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) if number.fract() == 0.0 => (*number as i64).to_string().into_bytes(),
        Value::Number(number) => shown(*number),
        other => panic!("a command with {other:?}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of scripts are floats")]
fn to_lua(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let field = |name: &str, text: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Integer(number) => Value::Number(*number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(text) => field("ok", text)?,
        Reply::Error(text) => field("err", text)?,
        Reply::Array(items) => {
            let items = items.iter().map(|item| to_lua(lua, item));
            Value::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
        }
        Reply::Map(_) | Reply::Push(_) => unreachable!("no reply to a command of a script"),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "as the server does")]
fn from_lua(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Integer(1),
        Value::Integer(number) => Reply::Integer(*number),
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Table(table) => table_from_lua(table)?,
        other => panic!("a script returns {other:?}"),
    })
}

fn table_from_lua(table: &Table) -> mlua::Result<Reply> {
    if let Some(error) = table.get::<Option<String>>("err")? {
        return Ok(Reply::Error(error));
    }
    if table.get::<Option<String>>("ok")?.is_some() {
        return Ok(Reply::OK);
    }
    let mut items = Vec::new();
    for index in 1.. {
        let item: Value = table.get(index)?;
        if item.is_nil() {
            break;
        }
        items.push(from_lua(&item)?);
    }
    Ok(Reply::Array(items))
}
