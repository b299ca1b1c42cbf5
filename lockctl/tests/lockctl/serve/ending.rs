//! Connections that end, that do not, and the end of the command.

use lock_tests::RedisServer;
use rustix::process::Signal;

use super::site::ServedPage;
use crate::support::wait_until;

/// What is written about connections that have not ended in time.
const CUT: &str = "connections without an end";

#[test]
fn a_signal_ends_the_streams_of_events() {
    let server = RedisServer::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let page = ServedPage::start(&server.url(), &[]);
        let mut events = [page.events(), page.events()];
        for events in &mut events {
            events.until("event: state");
        }
        page.send(signal);
        for events in events {
            assert!(events.ends_as_a_whole(), "the browser sees that nothing is missing");
        }
        let ended = page.end();
        assert_eq!(ended.code, Some(128 + signal.as_raw()), "{ended:?}");
        assert!(!ended.errors.contains(CUT), "{ended:?}");
    }
}

#[test]
fn a_request_that_does_not_end_delays_the_end_for_a_limited_time() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &[]);
    let _stuck = page.stuck();
    page.send(Signal::TERM);
    let ended = page.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.errors.contains(&format!("{CUT} after 5.0s: 1")), "{ended:?}");
}

#[test]
fn a_second_signal_ends_the_command_at_once() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &[]);
    let _stuck = page.stuck();
    page.send(Signal::TERM);
    wait_until("nothing is accepted any more", || !page.listens());
    page.send(Signal::INT);
    let ended = page.end();
    assert_eq!(ended.code, Some(143), "that of the first one: {ended:?}");
    assert!(!ended.errors.contains(CUT), "{ended:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn browsers_that_go_away_leave_nothing_behind() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &[]);
    let descriptors = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", page.id())).expect("it runs");
        open.count()
    };
    let visit = |count| {
        let mut viewers: Vec<_> = (0..count).map(|_| page.events()).collect();
        for viewer in &mut viewers {
            viewer.until("event: state");
        }
        viewers
    };
    // The first one opens the connections to the store, with a few more descriptors for a moment.
    let _first = visit(1);
    let before = descriptors();
    let viewers = visit(60);
    assert!(descriptors() > before + 30, "connections are counted");
    drop(viewers);
    wait_until("the connections are closed", || descriptors() <= before);
    page.send(Signal::TERM);
    assert_eq!(page.end().code, Some(143));
}
