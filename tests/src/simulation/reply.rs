//! Replies of the simulated server, and requests to it.

/// A reply, or a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Nil,
    Integer(i64),
    Status(&'static str),
    Bulk(Vec<u8>),
    Error(String),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Push(Vec<Reply>),
}

impl Reply {
    pub(super) const OK: Self = Self::Status("OK");

    pub(super) fn text(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }

    pub(super) fn flag(is_set: bool) -> Self {
        Self::Integer(is_set.into())
    }

    pub(super) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).expect("few"))
    }

    /// Appends the reply in version 3 of the protocol.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let line = |to: &mut Vec<u8>, kind: char, text: &dyn std::fmt::Display| {
            to.extend(format!("{kind}{text}\r\n").into_bytes());
        };
        match self {
            Self::Nil => to.extend(b"_\r\n"),
            Self::Integer(number) => line(to, ':', number),
            Self::Status(text) => line(to, '+', text),
            Self::Error(text) => line(to, '-', text),
            Self::Bulk(bytes) => {
                line(to, '$', &bytes.len());
                to.extend(bytes);
                to.extend(b"\r\n");
            }
            Self::Array(items) | Self::Push(items) => {
                line(to, if matches!(self, Self::Push(_)) { '>' } else { '*' }, &items.len());
                for item in items {
                    item.encode(to);
                }
            }
            Self::Map(pairs) => {
                line(to, '%', &pairs.len());
                for (key, value) in pairs {
                    key.encode(to);
                    value.encode(to);
                }
            }
        }
    }
}

/// Takes the requests that are complete.
pub(super) fn take_requests(from: &mut Vec<u8>) -> Vec<Vec<Vec<u8>>> {
    let (mut requests, mut at) = (Vec::new(), 0);
    while let Some((request, length)) = request(&from[at..]) {
        requests.push(request);
        at += length;
    }
    from.drain(..at);
    requests
}

/// The first request, and its length.
fn request(from: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (count, mut at) = length(from)?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let (argument, prefix) = length(&from[at..])?;
        at += prefix;
        arguments.push(from.get(at..at + argument)?.to_vec());
        at += argument + 2;
    }
    (at <= from.len()).then_some((arguments, at))
}

/// The number in the first line, and the length of the line.
fn length(from: &[u8]) -> Option<(usize, usize)> {
    let end = from.iter().position(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(&from[1..end - 1]).expect("a length");
    Some((text.parse().expect("a length"), end + 1))
}
