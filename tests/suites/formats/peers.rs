//! Peers: clients of other languages, reproduced command by command.

use std::time::{Duration, SystemTime};

use lock_runtime::WireFormat;
use lock_tests::RedisServer;
use redis::{Connection, Script, Value};

use crate::support::milliseconds;

/// A client of another library that uses one lock.
pub(super) trait PeerLock {
    /// Makes one attempt.
    fn try_lock(&mut self, lease: Duration) -> bool;

    /// Frees the lock if the peer believes that it holds the lock. Returns whether it did.
    fn unlock(&mut self) -> bool;
}

/// A peer that uses this wire format.
pub(super) fn peer(wire_format: WireFormat, server: &RedisServer, key: &str) -> Box<dyn PeerLock> {
    match wire_format {
        WireFormat::Token => Box::new(Python::new(server, key)),
        WireFormat::Redisson => Box::new(Java::new(server, key, 1)),
        WireFormat::Timestamp => Box::new(Stepwise::new(server, key)),
        other => panic!("{other:?}"),
    }
}

/// The `Lock` of redis-py. Most other libraries with a lock in one string do the same.
pub(super) struct Python {
    connection: Connection,
    key: String,
    token: String,
}

impl Python {
    fn new(server: &RedisServer, key: &str) -> Self {
        let token = format!("{:032x}", fastrand::u128(..));
        Self { connection: server.connection(), key: key.to_owned(), token }
    }
}

impl PeerLock for Python {
    fn try_lock(&mut self, lease: Duration) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&self.token).arg("NX").arg("PX").arg(milliseconds(lease));
        let taken: Option<String> = set.query(&mut self.connection).expect("a reply");
        taken.is_some()
    }

    fn unlock(&mut self) -> bool {
        let script = Script::new(
            "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('del', KEYS[1])",
        );
        let deleted = script.key(&self.key).arg(&self.token).invoke(&mut self.connection);
        deleted.expect("a reply")
    }
}

/// A thread of a service that uses the plain `RLock` of Redisson. The scripts do the same as those
/// of Redisson 4, with the same keys and arguments in the same order.
pub(super) struct Java {
    connection: Connection,
    key: String,
    channel: String,
    owner: String,
    lease: Duration,
}

impl Java {
    pub(super) fn new(server: &RedisServer, key: &str, thread: u64) -> Self {
        let channel = if key.contains('{') {
            format!("redisson_lock__channel:{key}")
        } else {
            format!("redisson_lock__channel:{{{key}}}")
        };
        let owner = format!("b983c153-7421-469a-addb-44fb92259a1b:{thread}");
        let lease = Duration::from_secs(30);
        Self { connection: server.connection(), key: key.to_owned(), channel, owner, lease }
    }

    /// Tries to lock. Returns `None` if the lock was granted, and otherwise its time to live.
    pub(super) fn lock(&mut self, lease: Duration) -> Option<i64> {
        self.lease = lease;
        let script = Script::new(
            "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
               redis.call('hincrby', KEYS[1], ARGV[2], 1)
               redis.call('pexpire', KEYS[1], ARGV[1])
               return nil
             end
             return redis.call('pttl', KEYS[1])",
        );
        let mut call = script.key(&self.key);
        call.arg(milliseconds(lease)).arg(&self.owner);
        call.invoke(&mut self.connection).expect("a reply")
    }

    /// Releases once. Returns 1 if the lock is free now, 0 if this thread still holds it, and
    /// `None` if this thread does not hold it.
    pub(super) fn release(&mut self) -> Option<i64> {
        let script = Script::new(
            "local done = redis.call('get', KEYS[3])
             if done ~= false then
               return tonumber(done)
             end
             if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
               return nil
             end
             if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
               redis.call('pexpire', KEYS[1], ARGV[2])
               redis.call('set', KEYS[3], 0, 'px', ARGV[5])
               return 0
             end
             redis.call('del', KEYS[1])
             redis.call(ARGV[4], KEYS[2], ARGV[1])
             redis.call('set', KEYS[3], 1, 'px', ARGV[5])
             return 1",
        );
        let latch = format!("redisson_unlock_latch:{{{}}}:{:032x}", self.key, fastrand::u128(..));
        let mut call = script.key(&self.key);
        call.key(&self.channel).key(&latch).arg(0).arg(milliseconds(self.lease)).arg(&self.owner);
        call.arg("publish").arg(16_000);
        let released = call.invoke(&mut self.connection).expect("a reply");
        redis::cmd("DEL").arg(&latch).exec(&mut self.connection).expect("a reply");
        released
    }

    /// Frees the lock of any owner.
    pub(super) fn force_unlock(&mut self) -> bool {
        let script = Script::new(
            "if redis.call('del', KEYS[1]) == 0 then
               return 0
             end
             redis.call(ARGV[2], KEYS[2], ARGV[1])
             return 1",
        );
        let mut call = script.key(&self.key);
        call.key(&self.channel).arg(0).arg("publish");
        call.invoke(&mut self.connection).expect("a reply")
    }

    /// Sends the renewal of the Redisson watchdog.
    pub(super) fn renew(&mut self) -> bool {
        let script = Script::new(
            "local found = {}
             for i = 1, #KEYS do
               found[i] = redis.call('hexists', KEYS[i], ARGV[i + 1])
               if found[i] == 1 then
                 redis.call('pexpire', KEYS[i], ARGV[1])
               end
             end
             return found",
        );
        let mut call = script.key(&self.key);
        call.arg(milliseconds(self.lease)).arg(&self.owner);
        call.invoke::<Vec<i64>>(&mut self.connection).expect("a reply") == [1]
    }

    /// Whether the lock is held, and whether it is held by this thread.
    pub(super) fn state(&mut self) -> (bool, bool) {
        let mut ask = redis::pipe();
        ask.exists(&self.key).hexists(&self.key, &self.owner);
        ask.query(&mut self.connection).expect("a reply")
    }

    /// Subscribes. The thread returns the first message, which would wake a waiting thread of
    /// Redisson.
    pub(super) fn listen(&self, server: &RedisServer) -> std::thread::JoinHandle<String> {
        let (mut connection, channel) = (server.connection(), self.channel.clone());
        let (subscribed, ready) = std::sync::mpsc::channel();
        let listener = std::thread::spawn(move || {
            let mut messages = connection.as_pubsub();
            messages.subscribe(channel).expect("a reply");
            subscribed.send(()).expect("the receiver waits");
            messages.set_read_timeout(Some(Duration::from_secs(20))).expect("a plain socket");
            messages.get_message().expect("a message").get_payload().expect("text")
        });
        ready.recv().expect("subscribed");
        listener
    }
}

impl PeerLock for Java {
    fn try_lock(&mut self, lease: Duration) -> bool {
        self.lock(lease).is_none()
    }

    fn unlock(&mut self) -> bool {
        self.release() == Some(1)
    }
}

/// A client that uses `SETNX` and `GETSET` in separate steps, and its own clock.
pub(super) struct Stepwise {
    connection: Connection,
    key: String,
    /// The end of the lease, as known to this client.
    until: u64,
}

impl Stepwise {
    pub(super) fn new(server: &RedisServer, key: &str) -> Self {
        Self { connection: server.connection(), key: key.to_owned(), until: 0 }
    }

    pub(super) fn now() -> u64 {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(since_1970.expect("after 1970").as_millis()).expect("before 2286")
    }

    fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&self.key).arg(&words[1..]).query(&mut self.connection).expect("a reply")
    }

    /// The first step: takes a key that does not exist.
    pub(super) fn set_if_absent(&mut self, until: u64) -> bool {
        let set = self.ask(&["SETNX", &until.to_string()]);
        if set {
            self.until = until;
        }
        set
    }

    /// The second step: checks whether the lock has expired.
    pub(super) fn sees_it_expired(&mut self) -> bool {
        let value: Option<u64> = self.ask(&["GET"]);
        value.is_some_and(|value| value < Self::now())
    }

    /// The third step: takes over an expired lock. If another client was faster, the step fails,
    /// but has overwritten the time of that client.
    pub(super) fn swap(&mut self, until: u64) -> bool {
        let before: Option<u64> = self.ask(&["GETSET", &until.to_string()]);
        let taken = before.is_some_and(|before| before < Self::now());
        if taken {
            self.until = until;
        }
        taken
    }
}

impl PeerLock for Stepwise {
    fn try_lock(&mut self, lease: Duration) -> bool {
        let until = Self::now() + u64::try_from(lease.as_millis()).expect("short");
        self.set_if_absent(until) || (self.sees_it_expired() && self.swap(until))
    }

    fn unlock(&mut self) -> bool {
        if Self::now() >= self.until {
            return false;
        }
        let _: Value = self.ask(&["DEL"]);
        true
    }
}
