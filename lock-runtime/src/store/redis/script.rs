//! The scripts, and calling them.

use std::sync::LazyLock;

use redis::{Cmd, Pipeline, Script as Hashed, cmd};

/// One script: its text, and the hash by which a server knows it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: Script = Script {
            text: include_str!($file),
            hash: LazyLock::new(|| Hashed::new(include_str!($file)).get_hash().to_owned()),
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
        load.cmd("SCRIPT").arg("LOAD").arg(script.text);
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
        command.arg(self.text);
        command
    }
}
