//! A `lockctl serve`, and requests to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;

use crate::support::{FinishedRun, PATIENCE, RunningProcess, lockctl};

/// The headers with which the page revokes a lock.
pub(crate) const ACTION: &str = "sec-fetch-site: same-origin\r\nx-lock-dashboard: 1";

/// A page that is served.
#[derive(Debug)]
pub(crate) struct ServedPage {
    process: RunningProcess,
    pub(crate) address: SocketAddr,
    /// What was written before the address.
    pub(crate) warnings: String,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl ServedPage {
    /// On a free port.
    pub(crate) fn start(url: &str, options: &[&str]) -> Self {
        Self::start_at(url, "127.0.0.1:0", options)
    }

    pub(crate) fn start_at(url: &str, address: &str, options: &[&str]) -> Self {
        let own = ["serve", "--refresh", "500ms", "--listen", address];
        let mut process = RunningProcess::start(lockctl(url, &[&own, options].concat()));
        let mut warnings = String::new();
        loop {
            let line = process.error_line();
            if let Some((_, page)) = line.split_once("listening on http://") {
                let page = page.trim_end_matches('/').replace("localhost", "127.0.0.1");
                let address = page.parse().expect("an address");
                return Self { process, address, warnings };
            }
            warnings = warnings + &line + "\n";
        }
    }

    pub(crate) fn id(&self) -> i32 {
        self.process.id()
    }

    pub(crate) fn send(&self, signal: Signal) {
        self.process.send(signal);
    }

    /// Waits for the end. Nothing is ever written to stdout.
    pub(crate) fn end(self) -> FinishedRun {
        let ended = self.process.end();
        assert_eq!(ended.output, "", "{ended:?}");
        ended
    }

    pub(crate) fn get(&self, path: &str) -> RawAnswer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: {}", self.address), "")
    }

    /// As a browser that has entered this host.
    pub(crate) fn get_from(&self, host: &str, path: &str) -> RawAnswer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: {host}"), "")
    }

    pub(crate) fn revoke(&self, headers: &str, key: &str) -> RawAnswer {
        let (host, body) = (self.address, format!("{{\"key\":\"{key}\"}}"));
        let head = format!(
            "POST /api/revoke HTTP/1.1\r\nhost: {host}\r\n{headers}\r\ncontent-type: application/json"
        );
        self.ask(&head, &body)
    }

    fn ask(&self, head: &str, body: &str) -> RawAnswer {
        let mut stream = self.connect();
        let length = body.len();
        let request =
            format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status");
        RawAnswer { status: status.to_owned(), head: head.to_owned(), body: body.to_owned() }
    }

    /// A connection that nothing was sent to.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    /// A connection whose request is being read, and never ends.
    pub(crate) fn stuck(&self) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "POST /api/revoke HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             expect: 100-continue\r\ncontent-length: 10\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).expect("it listens");
        // The server waits for the body from now on.
        let mut answer = [0; 25];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream
    }

    /// Whether it accepts connections.
    pub(crate) fn listens(&self) -> bool {
        match TcpStream::connect(self.address) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                false
            }
        }
    }

    pub(crate) fn events(&self) -> PageEvents<'_> {
        PageEvents { page: self, stream: self.open(), text: String::new() }
    }

    fn open(&self) -> TcpStream {
        let mut stream = self.connect();
        let request = format!("GET /api/events HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).expect("it listens");
        stream
    }
}

/// A stream of events.
pub(crate) struct PageEvents<'a> {
    page: &'a ServedPage,
    stream: TcpStream,
    /// What has come since the last text that was awaited.
    text: String,
}

impl PageEvents<'_> {
    /// Reads until this text comes, of a later event than the last one. A stream that ends after its time is opened
    /// again.
    pub(crate) fn until(&mut self, text: &str) {
        let begun = std::time::Instant::now();
        loop {
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{text:?} does not come: {}", self.text);
            if self.read() == 0 {
                self.stream = self.page.open();
            }
        }
    }

    /// Reads to the end. Returns whether it is that of a whole answer.
    pub(crate) fn ends_as_a_whole(mut self) -> bool {
        while self.read() > 0 {}
        self.text.ends_with("\r\n0\r\n\r\n")
    }

    fn read(&mut self) -> usize {
        let mut part = [0; 4096];
        let length = self.stream.read(&mut part).expect("more events, or their end");
        self.text.push_str(&String::from_utf8_lossy(&part[..length]));
        length
    }
}
