//! More connections than the page accepts at one time.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

use lock_tests::RedisServer;
use rustix::process::Signal;

use super::site::ServedPage;
use crate::support::{FinishedRun, wait_until};

/// The most connections at one time.
const MOST: usize = 200;

fn end(page: ServedPage) -> FinishedRun {
    page.send(Signal::TERM);
    page.end()
}

/// Whether the server has not ended a connection that was sent nothing.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_connection_takes_the_place_of_the_oldest_one_without_a_request() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &[]);
    let stuck = page.stuck();
    let idle: Vec<_> = (0..MOST + 49).map(|_| page.connect()).collect();
    assert_eq!(page.get("/").status, "200");
    let replaced = idle.iter().take_while(|stream| !is_open(stream)).count();
    // Of all 251 connections. The idle ones that are left have ten seconds in all.
    assert_eq!(replaced, 51, "the oldest ones, and no others");
    assert!(is_open(&stuck), "its request is being read");
    drop((idle, stuck));
    let ended = end(page);
    assert_eq!(ended.errors.matches("all 200 connections are in use").count(), 1, "{ended:?}");
}

#[test]
fn the_page_says_so_if_all_connections_are_in_use() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &[]);
    let mut stuck: Vec<_> = (0..MOST).map(|_| page.stuck()).collect();
    for path in ["/", "/api/state"] {
        let refused = page.get(path);
        assert_eq!(refused.status, "503", "{refused:?}");
        assert!(refused.body.contains("connections of this page are in use"), "{refused:?}");
        assert!(refused.head.contains("retry-after: 5"), "{refused:?}");
    }
    // Some that say nothing, more than are refused at one time.
    let _idle: Vec<_> = (0..30).map(|_| page.connect()).collect();
    assert_eq!(page.get("/").status, "503");
    stuck.pop();
    wait_until("there is a place", || page.get("/").status == "200");
    stuck.clear();
    let ended = end(page);
    assert_eq!(ended.errors.matches("all 200 connections are in use").count(), 1, "{ended:?}");
}
