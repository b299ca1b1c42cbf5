//! The commands of one request, and the replies that make up its answer.

use std::sync::Arc;

use redis::{Cmd, Pipeline, PushKind, Value, cmd};

/// What is sent in one request.
pub(crate) enum Outgoing<'a> {
    Command(&'a Cmd),
    /// The answer is an array of all replies, with errors.
    Commands(&'a Pipeline),
    /// After `ASKING`, which applies to the next command of the connection only.
    Asking(&'a Cmd),
    /// After `CLIENT CACHING YES`, of which the same is true.
    Tracked(&'a Cmd),
    /// A change of subscriptions. The server confirms each channel with a message of this kind.
    Subscription {
        change: PushKind,
        channels: &'a [Arc<str>],
    },
}

/// The replies that make up an answer.
pub(super) enum Expected {
    One,
    /// The reply to the second command.
    Second,
    All {
        left: usize,
        replies: Vec<Value>,
    },
    /// Messages of this kind, about this channel if there is only one. The last one is the answer. An error
    /// stands for all of them.
    Confirmations {
        kind: PushKind,
        of: Option<Arc<str>>,
        left: usize,
    },
}

impl Expected {
    /// Whether there is nothing to wait for.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::All { left: 0, .. } | Self::Confirmations { left: 0, .. })
    }
}

impl Outgoing<'_> {
    /// Appends the request.
    pub(super) fn encode(self, to: &mut Vec<u8>) -> Expected {
        match self {
            Self::Command(command) => {
                command.write_packed_command(to);
                Expected::One
            }
            Self::Commands(commands) => {
                commands.cmd_iter().for_each(|command| command.write_packed_command(to));
                let left = commands.len();
                Expected::All { left, replies: Vec::with_capacity(left) }
            }
            Self::Asking(command) => {
                cmd("ASKING").write_packed_command(to);
                command.write_packed_command(to);
                Expected::Second
            }
            Self::Tracked(command) => {
                caching().write_packed_command(to);
                command.write_packed_command(to);
                Expected::Second
            }
            Self::Subscription { change, channels } => {
                if channels.is_empty() {
                    return Expected::Confirmations { kind: change, of: None, left: 0 };
                }
                let mut command = cmd(match change {
                    PushKind::Subscribe => "SUBSCRIBE",
                    PushKind::Unsubscribe => "UNSUBSCRIBE",
                    PushKind::SSubscribe => "SSUBSCRIBE",
                    _ => "SUNSUBSCRIBE",
                });
                for channel in channels {
                    command.arg(&**channel);
                }
                command.write_packed_command(to);
                let of = if let [channel] = channels { Some(Arc::clone(channel)) } else { None };
                Expected::Confirmations { kind: change, of, left: channels.len() }
            }
        }
    }
}

/// The command after which the server tracks the keys that the next command reads.
pub(crate) fn caching() -> Cmd {
    let mut caching = cmd("CLIENT");
    caching.arg("CACHING").arg("YES");
    caching
}

/// The same commands, each after `CLIENT CACHING YES`.
pub(crate) fn tracked(commands: &Pipeline) -> Pipeline {
    let mut tracked = Pipeline::with_capacity(2 * commands.len());
    for command in commands.cmd_iter() {
        tracked.add_command(caching()).add_command(command.clone());
    }
    tracked
}
