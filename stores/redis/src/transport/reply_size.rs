//! The size of replies.
//!
//! A reply has to be complete before redis-rs parses it. A server that sends a text of 4 GiB would make the
//! client take more than that. No reply to this library has more than [`LIMIT`] bytes, so a longer one ends
//! its connection.

use std::io;

/// The largest reply, in bytes. Pages of scans are the longest ones.
const LIMIT: u64 = 16 << 20;

/// Follows the boundaries of replies (RESP3,
/// <https://redis.io/docs/latest/develop/reference/protocol-spec/>).
#[derive(Debug, Default)]
pub(crate) struct ReplySize {
    /// The first character of the current line; 0 at its beginning.
    kind: u8,
    /// The number in the current line, and whether it is negative.
    number: u64,
    is_negative: bool,
    /// The rest of a text, with its end.
    rest: u64,
    /// How many elements are still to come, of each value that is not complete.
    open: Vec<u64>,
    /// The bytes of the reply so far.
    bytes: u64,
}

impl ReplySize {
    /// Follows what has arrived, up to the end of the current reply: returns the number of bytes up to there,
    /// if it has arrived. Fails if the reply is too long, or says that it will be.
    pub(crate) fn add(&mut self, arrived: &[u8]) -> io::Result<Option<usize>> {
        let mut data = arrived;
        while let Some((&byte, after)) = data.split_first() {
            if self.rest > 0 {
                let part = usize::try_from(self.rest).unwrap_or(usize::MAX).min(data.len());
                data = &data[part..];
                self.count(part as u64)?;
                self.rest -= part as u64;
                if self.rest == 0 && self.complete() {
                    return Ok(Some(arrived.len() - data.len()));
                }
                continue;
            }
            data = after;
            self.count(1)?;
            match (self.kind, byte) {
                (0, first) => (self.kind, self.number, self.is_negative) = (first, 0, false),
                (_, b'\n') if self.end_line()? => return Ok(Some(arrived.len() - data.len())),
                (_, b'-') => self.is_negative = true,
                (_, b'0'..=b'9') => {
                    let digit = u64::from(byte - b'0');
                    self.number = self.number.saturating_mul(10).saturating_add(digit);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Returns whether the reply is complete.
    fn end_line(&mut self) -> io::Result<bool> {
        let (kind, number) = (std::mem::take(&mut self.kind), self.number);
        // An attribute comes before its value.
        let elements = match kind {
            b'$' | b'=' | b'!' if !self.is_negative => {
                self.check(number)?;
                self.rest = number + 2;
                return Ok(false);
            }
            b'*' | b'~' | b'>' if !self.is_negative => number,
            b'%' => number.saturating_mul(2),
            b'|' => number.saturating_mul(2).saturating_add(1),
            _ => 0,
        };
        if elements == 0 {
            return Ok(self.complete());
        }
        // Each of them has three bytes at least.
        self.check(elements.saturating_mul(3))?;
        self.open.push(elements);
        Ok(false)
    }

    /// A value is complete. Returns whether the reply is.
    fn complete(&mut self) -> bool {
        while let Some(elements) = self.open.last_mut() {
            *elements -= 1;
            if *elements > 0 {
                return false;
            }
            self.open.pop();
        }
        self.bytes = 0;
        true
    }

    fn count(&mut self, bytes: u64) -> io::Result<()> {
        self.bytes += bytes;
        self.check(0)
    }

    /// Fails if the reply is too long with so many more bytes.
    fn check(&self, more: u64) -> io::Result<()> {
        if self.bytes.saturating_add(more) <= LIMIT {
            return Ok(());
        }
        let problem = "the reply has more than 16 MiB, and no reply to this library is as long";
        Err(io::Error::new(io::ErrorKind::InvalidData, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] = b"+OK\r\n$5\r\na\r\n$9\r\n*2\r\n:1\r\n*-1\r\n$-1\r\n_\r\n%1\r\n+a\r\n$0\r\n\r\n\
        |1\r\n+ttl\r\n:3\r\n~1\r\n#t\r\n>2\r\n+message\r\n=5\r\ntxt:a\r\n-ERR 123456789012\r\n,1.5\r\n(12345678901234567890\r\n*0\r\n";

    /// Follows all replies in these bytes. Returns how many have ended.
    fn follow(size: &mut ReplySize, mut bytes: &[u8]) -> io::Result<usize> {
        let mut ended = 0;
        while let Some(length) = size.add(bytes)? {
            bytes = &bytes[length..];
            ended += 1;
        }
        Ok(ended)
    }

    #[test]
    fn replies_of_all_kinds_have_boundaries() {
        for step in 1..REPLIES.len() {
            let mut size = ReplySize::default();
            let ended = REPLIES.chunks(step).map(|part| follow(&mut size, part));
            let ended: usize = ended.map(|ended| ended.expect("short replies")).sum();
            assert_eq!(ended, 12, "{step}");
            assert_eq!((size.bytes, size.open.len(), size.rest), (0, 0, 0), "{step}");
        }
    }

    #[test]
    fn many_replies_may_be_as_long_as_one_may_not() {
        let mut size = ReplySize::default();
        let text = format!("$1048576\r\n{}\r\n", "x".repeat(1 << 20)).into_bytes();
        for _ in 0..40 {
            size.add(&text).expect("1 MiB each");
        }
        size.add(b"*40\r\n").expect("not long yet");
        let fails = (0..40).position(|_| size.add(&text).is_err());
        assert_eq!(fails, Some(15), "the elements count together");
    }

    #[test]
    fn a_reply_that_will_be_too_long_fails_before_it_arrives() {
        for header in [
            &b"$4294967296\r\n"[..],
            b"*99999999999999999999\r\n",
            b"%9000000\r\n",
            b"*2\r\n*1\r\n=16777217\r\n",
        ] {
            let failed = ReplySize::default().add(header).expect_err("too long");
            assert!(failed.to_string().contains("16 MiB"), "{failed}");
        }
        let mut endless = ReplySize::default();
        let fails = (0..20).position(|_| endless.add("+".repeat(1 << 20).as_bytes()).is_err());
        assert_eq!(fails, Some(16), "a line without an end");
    }
}
