//! The stores that may make up a quorum.

use crate::error::LockError;
use crate::store::{Settings, StoreAddress, open};

fn refused(urls: &[&str]) -> String {
    let urls = urls.iter().map(|url| (*url).to_owned()).collect();
    match open(&StoreAddress::Quorum(urls), &Settings::default()).map(drop) {
        Err(LockError::Config { option: "quorum", problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_quorum_has_an_odd_number_of_stores_and_at_least_three() {
    for urls in [&[][..], &["memory:"], &["memory:"; 2]] {
        let problem = refused(urls);
        assert!(problem.contains("name 3 or 5 servers"), "{problem}");
    }
    for urls in [&["memory:"; 4][..], &["memory:"; 6]] {
        let problem = refused(urls);
        assert!(problem.contains("name an odd number"), "{problem}");
    }
    for urls in [&["memory:"; 3][..], &["memory:"; 7]] {
        let urls = urls.iter().map(|url| (*url).to_owned()).collect();
        open(&StoreAddress::Quorum(urls), &Settings::default()).expect("valid");
    }
}

#[test]
fn a_store_is_named_once() {
    let problem = refused(&["memory:a", "memory:b", "memory://a"]);
    assert!(problem.contains("memory:a is named twice"), "{problem}");
}
#[test]
fn servers_of_a_url_or_of_several_are_checked_without_a_connection() {
    let settings = Settings::default();
    let url = |url: &str| open(&StoreAddress::Url(url.to_owned()), &settings).map(drop);
    url("redis+redlock://one,two,three:7000/1").expect("valid");
    for (servers, words) in [
        ("redis+redlock://one", "one server"),
        ("redis+redlock://one,two,three,four", "odd number"),
        ("valkey+redlock://one,two,one", "a host twice"),
    ] {
        match url(servers) {
            Err(LockError::Config { option: "url", problem, .. }) => {
                assert!(problem.contains(words), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
    let problem = refused(&["redis://:c4nary@one", "redis://two", "redis://one:6379/1"]);
    assert!(
        problem.contains("one:6379 is named twice") && !problem.contains("c4nary"),
        "{problem}"
    );
    let nested = ["redis+redlock://a,b,c", "redis://two", "redis://three"].map(str::to_owned);
    let nested = open(&StoreAddress::Quorum(nested.to_vec()), &settings).map(drop);
    assert!(nested.is_err_and(|error| error.to_string().contains("no server of another quorum")));
}
