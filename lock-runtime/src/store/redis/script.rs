//! The scripts, and calling them. Each is made of several files: what those of a format have in common,
//! and what is the same in all formats.

use std::sync::OnceLock;

use redis::{Cmd, Script as Hashed, cmd};

#[cfg(lock_controls)]
use crate::protection::Protection;

/// What most calls of a script need room for, so that a command is one piece of memory.
const ARGUMENTS: usize = 8;
const BYTES: usize = 256;

/// One script.
pub(super) struct Script {
    written: &'static str,
    sent: OnceLock<Sent>,
}

/// Its text, and the hash by which a server knows it.
struct Sent {
    text: &'static str,
    hash: String,
}

/// The script in these files.
macro_rules! script {
    ($($file:literal),+) => {
        Script::new(concat!($(include_str!($file)),+))
    };
}
pub(super) use script;

impl Script {
    pub(super) const fn new(written: &'static str) -> Self {
        Self { written, sent: OnceLock::new() }
    }

    fn sent(&self) -> &Sent {
        self.sent.get_or_init(|| {
            let text = protected(self.written);
            Sent { text, hash: Hashed::new(text).get_hash().to_owned() }
        })
    }

    pub(super) fn text(&self) -> &'static str {
        self.sent().text
    }

    /// The command that runs it by its hash, without its keys and arguments.
    pub(super) fn by_hash(&self) -> Cmd {
        let mut command = Cmd::with_capacity(ARGUMENTS, BYTES);
        command.arg("EVALSHA").arg(&self.sent().hash);
        command
    }

    /// The same by its text, for a server that does not know it.
    pub(super) fn by_text(&self) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(self.text());
        command
    }
}

#[cfg(not(lock_controls))]
fn protected(text: &'static str) -> &'static str {
    text
}

/// What a control takes out of the scripts, and what it leaves in its place.
#[cfg(lock_controls)]
pub(super) const SWITCHES: [(Protection, &str, &str); 14] = {
    use Protection::{
        Expiry, FenceAboveClock, FenceAboveLast, GoneStaysGone, KeptUnderAnotherName, OnlyIfFree,
        OwnerReleases, OwnerRenews, TriesShortenNothing,
    };
    [
        (
            OwnerReleases,
            "if state ~= 1 then\n    return state\n  end\n  local stays",
            "if state == 0 then\n    return state\n  end\n  local stays",
        ),
        (OnlyIfFree, "redis.call('hexists', KEYS[1], ARGV[1]) == 0", "false"),
        (OnlyIfFree, "held(1, ARGV[1]) ~= 1", "false"),
        (Expiry, "redis.call('pexpire', KEYS[1], ARGV[2])\nreturn", "return"),
        (Expiry, ", 'px', lease + 60000)", ")"),
        (KeptUnderAnotherName, "'kept:' .. ", ""),
        (KeptUnderAnotherName, "redis.call('hdel', KEYS[i], owner)", ""),
        (OwnerRenews, "if state == 1 then", "if state ~= 0 then state = 1"),
        (
            GoneStaysGone,
            "replies[i] = state",
            "if state == 0 then state = 1 redis.call('set', KEYS[i], owner, 'px', lease) end replies[i] = state",
        ),
        (TriesShortenNothing, "left >= tonumber(ARGV[2])", "false"),
        (TriesShortenNothing, "redis.call('pttl', KEYS[i]) < tonumber(lease)", "true"),
        (TriesShortenNothing, "tonumber(redis.call('get', KEYS[2 * i - 1])) < now + lease", "true"),
        (FenceAboveLast, "math.max(fence, last + 1)", "fence"),
        (FenceAboveClock, "time[1] * 1000000 + time[2]", "1"),
    ]
};

/// Takes out of a script what a control is to go without; see
/// [`Protection`](crate::protection::Protection).
#[cfg(lock_controls)]
fn protected(text: &'static str) -> &'static str {
    let mut text = text.to_owned();
    for (protection, with, without) in SWITCHES {
        if !protection.is_on() {
            text = text.replace(with, without);
        }
    }
    text.leak()
}
