//! Scripts, and the commands that run them. A script consists of one or more files: some are shared
//! by all formats, others by the scripts of one format.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use redis::{Cmd, Script as Hashed, cmd};

#[cfg(lock_controls)]
use lock_core::safeguard::Safeguard;

/// The capacity of a command, so that most calls of a script allocate only once for each.
const ARGUMENTS: usize = 8;
const BYTES: usize = 256;

pub(crate) struct Script {
    source: &'static str,
    publish: Publish,
    /// Whether the script has an additional argument if it is sent after `ASKING`.
    pub(crate) notes_asking: bool,
    prepared: OnceLock<Prepared>,
}

/// How the messages of a script reach their subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Over all nodes of a cluster, if there is one.
    Everywhere,
    /// Over the nodes of a cluster that have the slot of the channel.
    ToShard,
}

/// A script in the form in which it is sent.
struct Prepared {
    text: &'static str,
    /// Identifies the script at the server.
    hash: String,
}

/// The script that consists of these files. With `notes_asking`, it has an additional argument if it
/// is sent after `ASKING`.
macro_rules! script {
    ($($file:literal),+) => {
        Script::new(concat!($(include_str!($file)),+), false)
    };
    (notes_asking: $($file:literal),+) => {
        Script::new(concat!($(include_str!($file)),+), true)
    };
}
pub(crate) use script;

impl Script {
    pub(crate) const fn new(source: &'static str, notes_asking: bool) -> Self {
        let publish = Publish::Everywhere;
        Self { source, publish, notes_asking, prepared: OnceLock::new() }
    }

    /// The same script, which publishes its messages in this way.
    pub(crate) const fn publishing(&self, publish: Publish) -> Self {
        let Self { source, notes_asking, .. } = *self;
        Self { source, publish, notes_asking, prepared: OnceLock::new() }
    }

    fn prepared(&self) -> &Prepared {
        self.prepared.get_or_init(|| {
            let text = without_switched_off(self.source);
            let text = match self.publish {
                Publish::Everywhere => text,
                // Once for each script of the program.
                Publish::ToShard => {
                    let text = text.replace("'publish'", "'spublish'");
                    text.replace("'numsub'", "'shardnumsub'").leak()
                }
            };
            Prepared { text, hash: Hashed::new(text).get_hash().to_owned() }
        })
    }

    pub(crate) fn text(&self) -> &'static str {
        self.prepared().text
    }

    /// The commands that it calls, in lower case.
    pub(crate) fn commands(&self) -> BTreeSet<&'static str> {
        let calls = self.text().split("call('").skip(1);
        calls.filter_map(|call| call.split_once('\'')).map(|(name, _)| name).collect()
    }

    /// The command that runs the script by its hash, without keys and arguments.
    pub(crate) fn by_hash(&self) -> Cmd {
        let mut command = Cmd::with_capacity(ARGUMENTS, BYTES);
        command.arg("EVALSHA").arg(&self.prepared().hash);
        command
    }

    /// The command that runs the script by its text, for a server that does not have it.
    pub(crate) fn by_text(&self) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(self.text());
        command
    }
}

#[cfg(not(lock_controls))]
fn without_switched_off(text: &'static str) -> &'static str {
    text
}

/// Pieces of the scripts that belong to safeguards, and what replaces them when these are off.
#[cfg(lock_controls)]
pub(crate) const SWITCHES: [(Safeguard, &str, &str); 20] = {
    use Safeguard::{
        AttemptsDoNotShorten, Expiry, FenceAboveLast, OnlyIfFree, OnlyOwnerReleases,
        OnlyOwnerRenews, PermitsInOrder, ReadersWaitForWriters, RenewalNeverRecreates,
        UnreachableArePassedOver,
    };
    [
        (
            OnlyOwnerReleases,
            "if state ~= 'OWNED' then\n    return state\n  end\n  local stays",
            "if state == 'GONE' then\n    return state\n  end\n  local stays",
        ),
        (
            OnlyOwnerReleases,
            "if state ~= 'OWNED' then\n    return state\n  end\n  time",
            "if state == 'GONE' then\n    return state\n  end\n  time",
        ),
        (UnreachableArePassedOver, "count[2] == 0", "false"),
        (UnreachableArePassedOver, "(count[2] or 0) > 0", "true"),
        (OnlyIfFree, "redis.call('hexists', KEYS[1], ARGV[1]) == 0", "false"),
        (OnlyIfFree, "held(1, ARGV[1]) ~= 'OWNED'", "false"),
        (OnlyIfFree, "redis.call('exists', unpack(KEYS)) > 0", "false"),
        (Expiry, "if over[1] then", "if false then"),
        (OnlyIfFree, "taken(key) + shares <= tonumber(capacity)", "true"),
        (OnlyIfFree, "and first[2] + shares <= tonumber(capacity) and", "and"),
        (
            PermitsInOrder,
            "        return admitted, unsent, true\n      end\n      passed",
            "      end\n      passed",
        ),
        (
            ReadersWaitForWriters,
            "if fits() and redis.pcall('exists', queue) == 0 then",
            "if fits() then",
        ),
        (Expiry, "redis.call('pexpire', KEYS[1], ARGV[2])\nreturn", "return"),
        (Expiry, ", 'px', lease + 60000)", ")"),
        (OnlyOwnerRenews, "if state == 'OWNED' then", "if state ~= 'GONE' then"),
        (
            RenewalNeverRecreates,
            "replies[i] = state",
            "if state == 'GONE' then state = 'EXTENDED' redis.call('set', KEYS[i], owner, 'px', lease:match('%d+$')) end replies[i] = state",
        ),
        (AttemptsDoNotShorten, "left >= tonumber(ARGV[2])", "false"),
        (AttemptsDoNotShorten, "redis.call('pttl', KEYS[i]) < tonumber(lease)", "true"),
        (
            AttemptsDoNotShorten,
            "tonumber(redis.call('get', KEYS[2 * i - 1])) < now + lease",
            "true",
        ),
        (FenceAboveLast, "math.max(fence, last + 1)", "fence"),
    ]
};

/// Replaces the pieces of a script whose safeguards are off.
#[cfg(lock_controls)]
fn without_switched_off(text: &'static str) -> &'static str {
    let mut text = text.to_owned();
    for (safeguard, with, without) in SWITCHES {
        if !safeguard.is_on() {
            text = text.replace(with, without);
        }
    }
    text.leak()
}
