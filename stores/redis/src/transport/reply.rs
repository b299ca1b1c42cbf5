//! Replies as they arrive: where one ends, how long it may be, and its value.

use redis::{RedisResult, Value};

use super::reply_size::ReplySize;

/// How much memory an idle connection keeps, in bytes.
pub(crate) const KEPT: usize = 64 << 10;

/// The room for what is read at once, in bytes.
const ROOM: usize = 4 << 10;

/// How deep arrays may be inside each other here. The parser of redis-rs, which has a limit of its own, reads
/// what is deeper.
const DEPTH: usize = 8;

/// Puts replies together.
#[derive(Default)]
pub(crate) struct ReplyReader {
    buffer: Vec<u8>,
    /// The replies before were taken.
    begin: usize,
    /// The current reply was followed up to here.
    followed: usize,
    /// The bytes before have arrived.
    end: usize,
    size: ReplySize,
}

impl ReplyReader {
    /// The room for more bytes.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.begin == self.end {
            (self.begin, self.followed, self.end) = (0, 0, 0);
            if self.buffer.len() > KEPT {
                self.buffer = Vec::new();
            }
        }
        if self.buffer.len() - self.end < ROOM / 2 {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.followed, self.end) = (self.followed - self.begin, self.end - self.begin);
            self.begin = 0;
            if self.buffer.len() - self.end < ROOM / 2 {
                self.buffer.resize((self.buffer.len() * 2).max(ROOM), 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes have arrived in the room.
    pub(crate) fn add(&mut self, count: usize) {
        self.end += count;
    }

    /// The next reply, if it is complete.
    pub(crate) fn next(&mut self) -> RedisResult<Option<Value>> {
        let Some(length) = self.size.add(&self.buffer[self.followed..self.end])? else {
            self.followed = self.end;
            return Ok(None);
        };
        let end = self.followed + length;
        let reply = &self.buffer[self.begin..end];
        (self.begin, self.followed) = (end, end);
        value(reply).map(Some)
    }
}

/// The value of a complete reply.
fn value(reply: &[u8]) -> RedisResult<Value> {
    let mut rest = reply;
    match frequent(&mut rest, DEPTH) {
        Some(value) if rest.is_empty() => Ok(value),
        _ => redis::parse_redis_value(reply),
    }
}

/// The next value, if it has one of the kinds that replies to locks have.
fn frequent(rest: &mut &[u8], depth: usize) -> Option<Value> {
    let (line, after) = rest.split_at_checked(rest.iter().position(|byte| *byte == b'\r')?)?;
    let (kind, text) = line.split_first()?;
    *rest = after.strip_prefix(b"\r\n")?;
    let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    Some(match kind {
        b'+' if text == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(std::str::from_utf8(text).ok()?.to_owned()),
        b':' => Value::Int(number()?),
        b'_' => Value::Nil,
        b'$' | b'*' if text == b"-1" => Value::Nil,
        b'$' => {
            let (text, after) = rest.split_at_checked(usize::try_from(number()?).ok()?)?;
            *rest = after.strip_prefix(b"\r\n")?;
            Value::BulkString(text.to_vec())
        }
        b'*' if depth > 0 => {
            let count = usize::try_from(number()?).ok()?;
            let mut elements = Vec::with_capacity(count.min(rest.len()));
            for _ in 0..count {
                elements.push(frequent(rest, depth - 1)?);
            }
            Value::Array(elements)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply of any kind, from a sequence of random numbers.
    fn reply(random: &mut fastrand::Rng, depth: usize) -> Vec<u8> {
        let text = |random: &mut fastrand::Rng| {
            let length = random.usize(..20);
            (0..length).map(|_| random.alphanumeric()).collect::<String>()
        };
        let number = |random: &mut fastrand::Rng| random.i64(-300..300);
        let kinds = if depth == 0 { 9 } else { 13 };
        let several = |random: &mut fastrand::Rng, kind: &str, each: usize| {
            let count = random.usize(..5);
            let mut all = format!("{kind}{count}\r\n").into_bytes();
            (0..count * each).for_each(|_| all.extend(reply(random, depth - 1)));
            all
        };
        match random.usize(..kinds) {
            0 => format!("+{}\r\n", text(random)).into_bytes(),
            1 => b"+OK\r\n".to_vec(),
            2 => format!(":{}\r\n", number(random)).into_bytes(),
            3 => b"$-1\r\n".to_vec(),
            4 => b"_\r\n".to_vec(),
            5 => b"#t\r\n".to_vec(),
            6 => format!("-ERR {}\r\n", text(random)).into_bytes(),
            7 => b"*-1\r\n".to_vec(),
            8 => {
                // With line ends, and bytes that are no text.
                let length = random.usize(..40);
                let bytes: Vec<_> =
                    (0..length).map(|_| *random.choice(b"\r\n$*:\xff").expect("some")).collect();
                [format!("${length}\r\n").as_bytes(), &bytes, b"\r\n"].concat()
            }
            9 => several(random, "*", 1),
            10 => several(random, "~", 1),
            11 => several(random, "%", 2),
            _ => {
                let mut message = b">2\r\n+message\r\n".to_vec();
                message.extend(reply(random, 0));
                message
            }
        }
    }

    /// What arrives in pieces of random sizes.
    fn read(bytes: &[u8], random: &mut fastrand::Rng) -> RedisResult<Vec<Value>> {
        let (mut reader, mut values, mut rest) = (ReplyReader::default(), Vec::new(), bytes);
        while !rest.is_empty() {
            let room = reader.room();
            let count = random.usize(1..=64).min(room.len()).min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            reader.add(count);
            rest = &rest[count..];
            while let Some(value) = reader.next()? {
                values.push(value);
            }
        }
        Ok(values)
    }

    #[test]
    fn replies_in_pieces_have_the_values_that_redis_rs_finds() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let replies: Vec<_> = (0..random.usize(1..20)).map(|_| reply(&mut random, 4)).collect();
            let expected: RedisResult<Vec<_>> =
                replies.iter().map(|reply| redis::parse_redis_value(reply)).collect();
            assert_eq!(read(&replies.concat(), &mut random), expected, "seed {seed}");
        }
    }

    #[test]
    fn bytes_of_any_kind_are_values_or_an_error() {
        let mut errors = 0;
        for seed in 0..5_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = (0..5).flat_map(|_| reply(&mut random, 4)).collect::<Vec<_>>();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] =
                    if random.bool() { random.u8(..) } else { b"\r\n$*:-1"[random.usize(..7)] };
            }
            errors += usize::from(read(&bytes, &mut random).is_err());
        }
        assert!(errors > 500, "{errors}");
    }

    #[test]
    fn arrays_inside_each_other_end_somewhere() {
        let deep = b"*1\r\n".repeat(100_000);
        let mut reader = ReplyReader::default();
        for part in deep.chunks(ROOM / 2) {
            reader.room()[..part.len()].copy_from_slice(part);
            reader.add(part.len());
            assert_eq!(reader.next(), Ok(None));
        }
        reader.room()[..4].copy_from_slice(b":1\r\n");
        reader.add(4);
        assert!(reader.next().is_err(), "not a value, and no overflow of the stack");
    }

    #[test]
    fn a_long_reply_is_not_kept() {
        let text = "x".repeat(KEPT * 4);
        let reply = format!("${}\r\n{text}\r\n", text.len());
        let mut reader = ReplyReader::default();
        for part in reply.as_bytes().chunks(ROOM / 2) {
            reader.room()[..part.len()].copy_from_slice(part);
            reader.add(part.len());
        }
        assert_eq!(reader.next(), Ok(Some(Value::BulkString(text.into_bytes()))));
        assert!(reader.room().len() <= KEPT);
    }
}
