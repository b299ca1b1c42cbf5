//! The commands of one request.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisResult, Value, cmd};

/// What is sent in one request.
#[derive(Clone, Copy)]
pub(crate) enum Outgoing<'a> {
    Command(&'a Cmd),
    /// The reply is an array of all replies, with errors.
    Commands(&'a Pipeline),
    /// After `ASKING`.
    Asking(&'a Cmd),
    /// After `CLIENT CACHING YES`.
    Tracked(&'a Cmd),
}

impl Outgoing<'_> {
    pub(crate) async fn query(self, commands: &mut MultiplexedConnection) -> RedisResult<Value> {
        match self {
            Self::Command(command) => command.query_async(commands).await,
            // Boxed, because all of these are rare.
            Self::Commands(pipeline) => {
                let count = pipeline.len();
                Box::pin(commands.req_packed_commands(pipeline, 0, count)).await.map(Value::Array)
            }
            Self::Asking(command) | Self::Tracked(command) => {
                let is_tracked = matches!(self, Self::Tracked(_));
                Box::pin(send_after(is_tracked, command, commands)).await
            }
        }
    }
}

/// Sends a command right after `ASKING`, or after `CLIENT CACHING YES`. Both apply to the next command of
/// the connection only, so no other request may be sent between the two.
async fn send_after(
    is_tracked: bool,
    command: &Cmd,
    commands: &mut MultiplexedConnection,
) -> RedisResult<Value> {
    let before = if is_tracked { caching() } else { cmd("ASKING") };
    let mut both = Pipeline::with_capacity(2);
    both.add_command(before).add_command(command.clone());
    let replies = commands.req_packed_commands(&both, 1, 1).await?;
    let reply = replies.into_iter().next();
    reply.unwrap_or(Value::Nil).extract_error()
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
