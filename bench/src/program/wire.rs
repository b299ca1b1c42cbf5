//! The physical limit: one thread that writes the bytes of `raw`'s commands to one socket, and counts the lines of the
//! replies. No runtime, no tasks, no parser. What a client in one process can reach with one connection is not more.

use std::collections::VecDeque;
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::library::LEASE;
use super::raw;
use crate::record::{self, Record, now};

/// The bytes of one command.
fn command(buffer: &mut Vec<u8>, arguments: &[&str]) -> Result<()> {
    write!(buffer, "*{}\r\n", arguments.len())?;
    for argument in arguments {
        write!(buffer, "${}\r\n{argument}\r\n", argument.len())?;
    }
    Ok(())
}

struct Wire {
    socket: TcpStream,
    /// The commands that are written next.
    commands: Vec<u8>,
    /// What was read and is not yet a whole line.
    read: Vec<u8>,
}

impl Wire {
    fn connect(url: &str) -> Result<Self> {
        let address = url.strip_prefix("redis://").context("a URL redis://HOST:PORT")?;
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut wire = Self { socket, commands: Vec::new(), read: Vec::new() };
        command(&mut wire.commands, &["SCRIPT", "LOAD", raw::RELEASE_SCRIPT])?;
        // A length and the hash.
        let mut lines = 0;
        while lines < 2 {
            wire.exchange(|line| {
                ensure!(!line.starts_with(b"-"), "{}", String::from_utf8_lossy(line));
                lines += 1;
                Ok(())
            })?;
        }
        Ok(wire)
    }

    /// Writes the commands, reads at least once, and passes on each line that is whole.
    fn exchange(&mut self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.socket.write_all(&self.commands)?;
        self.commands.clear();
        let mut chunk = [0; 16 * 1024];
        let length = self.socket.read(&mut chunk)?;
        ensure!(length > 0, "the server closed the connection");
        self.read.extend_from_slice(&chunk[..length]);
        let mut begin = 0;
        while let Some(length) = self.read[begin..].iter().position(|byte| *byte == b'\n') {
            each(&self.read[begin..begin + length])?;
            begin += length + 1;
        }
        self.read.drain(..begin);
        Ok(())
    }

    /// Keeps a pair of commands in flight for each key, for `time`.
    fn run(&mut self, keys: &[&str], time: Duration) -> Result<Vec<Record>> {
        let hash = raw::release_hash();
        let lease = LEASE.as_millis().to_string();
        let end = now() + u64::try_from(time.as_nanos())?;
        let mut pairs: Vec<Record> = Vec::with_capacity(keys.len());
        let mut in_flight = VecDeque::with_capacity(keys.len());
        let mut records = Vec::with_capacity(1024);
        let take = |commands: &mut Vec<u8>, key: usize| {
            command(commands, &["SET", keys[key], &key.to_string(), "NX", "PX", &lease])
        };
        for key in 0..keys.len() {
            let number = u32::try_from(key)?;
            pairs.push(Record {
                requested: now(),
                granted: 0,
                released: 0,
                task: number,
                key: number,
            });
            take(&mut self.commands, key)?;
            in_flight.push_back(key);
        }
        while !in_flight.is_empty() {
            let mut next = Vec::new();
            self.exchange(|line| {
                let key = in_flight.pop_front().context("a reply too many")?;
                let pair = &mut pairs[key];
                match line {
                    b"+OK\r" => {
                        pair.granted = now();
                        pair.released = pair.granted;
                        command(&mut next, &["EVALSHA", &hash, "1", keys[key], &key.to_string()])?;
                    }
                    b":1\r" => {
                        records.push(*pair);
                        pair.requested = now();
                        if pair.requested >= end {
                            return Ok(());
                        }
                        take(&mut next, key)?;
                    }
                    _ => bail!("{}: {}", keys[key], String::from_utf8_lossy(line)),
                }
                in_flight.push_back(key);
                Ok(())
            })?;
            self.commands = next;
        }
        Ok(records)
    }
}

/// Executes the command `run` of the line protocol until the end of standard input.
pub(super) fn serve(name: &str, url: &str) -> Result<()> {
    let mut wire = Wire::connect(url)?;
    println!(
        "ready {name} - | one thread and one socket; the bytes of `raw`; no runtime, no parser, no lock library"
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [number, "run", file, _, time, "0", keys @ ..] = &words[..] else {
            let number = words.first().context("an empty line")?;
            println!("{number} error unsupported");
            continue;
        };
        let records = wire.run(keys, Duration::from_millis(time.parse()?))?;
        record::write(Path::new(file), &records)?;
        println!("{number} ok {}", records.len());
    }
    Ok(())
}
