//! The scripts, and calling them. What several of them do first, `read.lua`, stands before each.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Script as Hashed, cmd};

#[cfg(lock_controls)]
use crate::protection::Protection;

/// What most calls of a script need room for, so that a command is one piece of memory.
const ARGUMENTS: usize = 8;
const BYTES: usize = 256;

/// One script: its text, and the hash by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    text: LazyLock<&'static str>,
    hash: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(super) static $name: Script = Script {
            text: LazyLock::new(|| protected(concat!($(include_str!($file)),+))),
            hash: LazyLock::new(|| Hashed::new(*$name.text).get_hash().to_owned()),
        };
    };
}

script!(ACQUIRE, "acquire.lua");
script!(RENEW, "read.lua", "renew.lua");
script!(RELEASE, "read.lua", "release.lua");
script!(FENCE, "read.lua", "fence.lua");

/// Gives the server the text of all scripts.
pub(super) fn load_all() -> Pipeline {
    let mut load = Pipeline::new();
    for script in [&ACQUIRE, &RENEW, &RELEASE, &FENCE] {
        load.cmd("SCRIPT").arg("LOAD").arg(*script.text);
    }
    load
}

impl Script {
    /// The command that runs it by its hash, without its keys and arguments.
    pub(super) fn by_hash(&self) -> Cmd {
        let mut command = Cmd::with_capacity(ARGUMENTS, BYTES);
        command.arg("EVALSHA").arg(&*self.hash);
        command
    }

    /// The same by its text, for a server that does not know it.
    pub(super) fn by_text(&self) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(*self.text);
        command
    }
}

#[cfg(not(lock_controls))]
fn protected(text: &'static str) -> &'static str {
    text
}

/// What a control takes out of the scripts, and what it leaves in its place.
#[cfg(lock_controls)]
const SWITCHES: [(Protection, &str, &str); 7] = {
    use Protection::{
        FenceAboveClock, FenceAboveLast, GoneStaysGone, KeptUnderAnotherName, OwnerReleases,
        OwnerRenews, TriesShortenNothing,
    };
    [
        (OwnerReleases, "owner ~= ARGV[1] then\n  return -1", "false then"),
        (KeptUnderAnotherName, "'kept:' .. ", ""),
        (OwnerRenews, "owner ~= ARGV[2 * i - 1] then", "false then"),
        (
            GoneStaysGone,
            "replies[i] = 0",
            "replies[i] = 1 redis.call('set', key, ARGV[2 * i - 1], 'px', ARGV[2 * i])",
        ),
        (TriesShortenNothing, "left >= tonumber(ARGV[2])", "false"),
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

#[cfg(all(test, lock_controls))]
mod tests {
    use super::*;

    /// A script that has changed would disarm a control in silence.
    #[test]
    fn what_the_controls_take_out_is_there() {
        let scripts = [&ACQUIRE, &RENEW, &RELEASE, &FENCE].map(|script| *script.text);
        for (_, with, _) in SWITCHES {
            assert!(scripts.iter().any(|text| text.contains(with)), "{with}");
        }
    }
}
