//! The scripts, and calling them.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Script as Hashed, cmd};

/// One script: its text, and the hash by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    text: LazyLock<&'static str>,
    hash: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: Script = Script {
            text: LazyLock::new(|| protected(include_str!($file))),
            hash: LazyLock::new(|| Hashed::new(*$name.text).get_hash().to_owned()),
        };
    };
}

script!(ACQUIRE, "acquire.lua");
script!(RENEW, "renew.lua");
script!(RELEASE, "release.lua");
script!(FENCE, "fence.lua");

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
        let mut command = cmd("EVALSHA");
        command.arg(&*self.hash);
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

/// Takes out of a script what a control is to go without; see
/// [`Protection`](crate::protection::Protection).
#[cfg(lock_controls)]
fn protected(text: &'static str) -> &'static str {
    use crate::protection::Protection::{
        FenceAboveClock, FenceAboveLast, KeptUnderAnotherName, OwnerReleases, OwnerRenews,
    };

    let mut text = text.to_owned();
    for (protection, with, without) in [
        (OwnerReleases, "owner ~= ARGV[1] then\n  return 0", "false then"),
        (KeptUnderAnotherName, "'kept:' .. ", ""),
        (OwnerRenews, "not owner then", "false then"),
        (OwnerRenews, "owner ~= ARGV[2 * i - 1] then", "false then"),
        (OwnerRenews, "'pexpire', key,", "'set', key, ARGV[2 * i - 1], 'px',"),
        (FenceAboveLast, "math.max(fence, last + 1)", "fence"),
        (FenceAboveClock, "time[1] * 1000000 + time[2]", "1"),
    ] {
        if !protection.is_on() {
            text = text.replace(with, without);
        }
    }
    text.leak()
}
