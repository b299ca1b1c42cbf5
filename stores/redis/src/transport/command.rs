//! Commands in the form in which they are sent.
//!
//! `Cmd` and `Pipeline` of redis-rs 1.8 keep the arguments apart, and put them into this form for each
//! attempt: an eighth of the instructions of a lock and its release.

use std::io::{self, Write};

use redis::{RedisWrite, ToRedisArgs};

/// Room for most commands with one or two arguments.
const BYTES: usize = 64;

/// Room for the length of an argument, and what surrounds it.
const LENGTH: usize = 32;

/// A command, with its name as the first argument.
#[derive(Clone)]
pub(crate) struct Command {
    count: usize,
    /// Each after the end of the line before it, and its length.
    arguments: Vec<u8>,
}

/// Commands that belong to one request.
#[derive(Clone, Default)]
pub(crate) struct Commands(Vec<Command>);

impl Command {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_capacity(name, BYTES)
    }

    /// With room for arguments of this length in all, and for their own lengths.
    pub(crate) fn with_capacity(name: &str, bytes: usize) -> Self {
        let mut command = Self { count: 0, arguments: Vec::with_capacity(bytes) };
        command.write_arg(name.as_bytes());
        command
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        argument.write_redis_args(self);
        self
    }

    /// Appends the command.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.reserve(self.arguments.len() + LENGTH);
        to.push(b'*');
        write_number(to, self.count);
        to.extend_from_slice(&self.arguments);
        to.extend_from_slice(b"\r\n");
    }
}

impl RedisWrite for Command {
    fn write_arg(&mut self, argument: &[u8]) {
        self.count += 1;
        let to = &mut self.arguments;
        to.reserve(argument.len() + LENGTH);
        match u8::try_from(argument.len()) {
            // Nearly all are this short.
            Ok(short @ 10..100) => {
                to.extend_from_slice(&[
                    b'\r',
                    b'\n',
                    b'$',
                    b'0' + short / 10,
                    b'0' + short % 10,
                    b'\r',
                    b'\n',
                ]);
            }
            Ok(short @ 0..10) => {
                to.extend_from_slice(&[b'\r', b'\n', b'$', b'0' + short, b'\r', b'\n']);
            }
            _ => {
                to.extend_from_slice(b"\r\n$");
                write_number(to, argument.len());
                to.extend_from_slice(b"\r\n");
            }
        }
        to.extend_from_slice(argument);
    }

    fn writer_for_next_arg(&mut self) -> impl Write + '_ {
        NextArgument { command: self, written: Vec::new() }
    }
}

/// An argument that is complete when this is dropped.
struct NextArgument<'a> {
    command: &'a mut Command,
    written: Vec<u8>,
}

impl Write for NextArgument<'_> {
    fn write(&mut self, some: &[u8]) -> io::Result<usize> {
        self.written.write(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NextArgument<'_> {
    fn drop(&mut self) {
        self.command.write_arg(&self.written);
    }
}

impl Commands {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Adds a command, and returns it for its arguments.
    pub(crate) fn add(&mut self, name: &str) -> &mut Command {
        let index = self.0.len();
        self.0.push(Command::new(name));
        &mut self.0[index]
    }

    pub(crate) fn push(&mut self, command: Command) {
        self.0.push(command);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Command> {
        self.0.iter()
    }
}

fn write_number(to: &mut Vec<u8>, number: usize) {
    match u8::try_from(number) {
        Ok(digit @ 0..10) => to.push(b'0' + digit),
        // Into a vector, this cannot fail.
        _ => _ = write!(to, "{number}"),
    }
}

#[cfg(test)]
mod tests {
    use redis::{Cmd, Pipeline};

    use super::*;

    #[test]
    fn commands_are_encoded_as_redis_rs_encodes_them() {
        let long = vec![b'x'; 70_000];
        for length in (0..130).chain([999, 1_000, 65_536]) {
            let (mut ours, mut theirs) = (Command::new("ECHO"), Cmd::new());
            theirs.arg("ECHO");
            ours.arg(&long[..length]).arg(-7).arg(1.5).arg(("", "ä")).arg(None::<u8>);
            theirs.arg(&long[..length]).arg(-7).arg(1.5).arg(("", "ä")).arg(None::<u8>);
            for _ in 0..length {
                ours.arg(length);
                theirs.arg(length);
            }
            let mut encoded = b"before".to_vec();
            ours.encode(&mut encoded);
            assert_eq!(encoded[6..], theirs.get_packed_command(), "{length}");
        }
    }

    #[test]
    fn an_argument_may_be_written_in_pieces() {
        struct Pieces;
        impl ToRedisArgs for Pieces {
            fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
                let mut writer = out.writer_for_next_arg();
                let _ = writer.write_all(b"a\r");
                let _ = writer.write_all(b"\nb");
            }
        }
        let (mut ours, mut theirs) = (Commands::default(), Pipeline::new());
        ours.add("ECHO").arg(Pieces).arg(1);
        ours.add("PING");
        theirs.cmd("ECHO").arg(Pieces).arg(1).cmd("PING");
        let mut encoded = Vec::new();
        ours.iter().for_each(|command| command.encode(&mut encoded));
        assert_eq!(encoded, theirs.get_packed_pipeline());
    }
}
