//! Locks of several wire formats in one client, on one server, and on one key.

use lock_runtime::{Holder, HolderKind, LockClient, LockError, LockGuard, WireFormat};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, running_time};
use tokio::time::{Instant, sleep};

use super::{FormatFixture, connect, is_free};
use crate::support::LEASE;
use crate::waits::assert_foreign_values_are_errors;

const FORMATS: [WireFormat; 3] = [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp];

/// A key in one wire format blocks locks in another. It is reported as `WrongFormat`, and not as
/// busy, if the formats can be distinguished.
#[tokio::test]
async fn a_key_in_another_format_is_reported_and_not_changed() {
    let server = RedisServer::start();
    let token = format!("{:032}", 7);
    for (found, words, wanted) in [
        (WireFormat::Redisson, vec!["HSET", "k", "b983c153-7421-469a-addb-44fb92259a1b:1", "1"], 0),
        (WireFormat::Token, vec!["SET", "k", &token], 1),
        (WireFormat::Timestamp, vec!["SET", "k", "1700000000000"], 1),
        (WireFormat::Timestamp, vec!["SET", "k", "1700000000000"], 0),
        (WireFormat::Token, vec!["SET", "k", &token], 2),
        (WireFormat::Token, vec!["SET", "k", "1700000000"], 2),
        (WireFormat::Redisson, vec!["HSET", "k", "b983c153-7421-469a-addb-44fb92259a1b:1", "1"], 2),
    ] {
        let wanted = FORMATS[wanted];
        server.tell(&["DEL", "k"]);
        server.tell(&words);
        let before: Vec<u8> = server.command(&["DUMP", "k"]);
        let lock = connect(wanted, &server).await.lock("k");
        for outcome in [lock.acquire().await.map(drop), lock.try_acquire().await.map(drop)] {
            match outcome {
                Err(error @ LockError::WrongFormat { .. }) => {
                    let names = match found {
                        WireFormat::Redisson => "holds a hash (as in `WireFormat::Redisson`)",
                        WireFormat::Timestamp if wanted == WireFormat::Token => {
                            "holds a Unix time in ms (13 digits, as in `WireFormat::Timestamp`)"
                        }
                        _ => "holds a string (as in `WireFormat::Token`)",
                    };
                    let belongs = match wanted {
                        WireFormat::Token => "instead of a string (as in `WireFormat::Token`)",
                        WireFormat::Redisson => "instead of a hash (as in `WireFormat::Redisson`)",
                        _ => {
                            "instead of a Unix time in ms (13 digits, as in `WireFormat::Timestamp`)"
                        }
                    };
                    let text = error.to_string();
                    assert!(text.contains(names) && text.contains(belongs), "{text}");
                }
                other => panic!("{found:?} for {wanted:?}: {other:?}"),
            }
        }
        assert_eq!(server.command::<Vec<u8>>(&["DUMP", "k"]), before);
    }
}

/// Fair calls, leaderships and runs of periods have locks of the format `Token`.
#[tokio::test]
async fn values_of_every_other_kind_are_named_and_not_changed() {
    let server = RedisServer::start();
    let client = connect(WireFormat::Token, &server).await;
    for lock in [client.lock("k"), client.lock("k").fair()] {
        let call = async || lock.acquire().await.expect_err("no lock");
        assert_foreign_values_are_errors(&server, &client, "string", call).await;
    }
    let leadership = client.leadership("k");
    let call = async || leadership.campaign().await.expect_err("no lock");
    assert_foreign_values_are_errors(&server, &client, "string", call).await;
    let periodic = client.periodic("k", LEASE * 60);
    let call = async || periodic.run(async {}).await.expect_err("no lock");
    assert_foreign_values_are_errors(&server, &client, "string", call).await;
}

/// A number with an expiry is a valid token of another client.
#[tokio::test]
async fn a_time_that_expires_is_a_foreign_token() {
    let server = RedisServer::start();
    server.tell(&["SET", "k", "1700000000000", "PX", "60000"]);
    match connect(WireFormat::Token, &server).await.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy {
            holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(_), .. },
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

/// Text that starts with digits is a token, however long it is.
#[tokio::test]
async fn a_long_string_of_digits_is_a_foreign_token() {
    let server = RedisServer::start();
    server.tell(&["SET", "k", &format!("{}x", "1".repeat(80_000))]);
    let client = connect(WireFormat::Token, &server).await;
    let asked = Instant::now();
    match client.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy { holder: Holder { kind: HolderKind::NoExpiry, .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(running_time(asked) < LEASE, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_lock_may_have_another_format_than_its_client() {
    let server = RedisServer::start();
    let client = connect(WireFormat::Token, &server).await;
    let type_of = |key: &str| server.command::<String>(&["TYPE", key]);
    let _token = client.lock("a").acquire().await.expect("free");
    let java = client.lock("b").wire_format(WireFormat::Redisson);
    let java = java.acquire().await.expect("free");
    let old = client.lock("c").wire_format(WireFormat::Timestamp).acquire().await.expect("free");
    assert_eq!([type_of("a"), type_of("b"), type_of("c")], ["string", "hash", "string"]);
    assert_eq!(server.command::<String>(&["GET", "c"]).len(), 13);
    java.release().await.expect("held");
    old.release().await.expect("held");

    let java = connect(WireFormat::Redisson, &server).await;
    let _back = java.lock("d").wire_format(WireFormat::Token).acquire().await.expect("free");
    assert_eq!(type_of("d"), "string");
}

#[tokio::test]
async fn two_formats_of_one_key_exclude_each_other_within_a_client() {
    let server = RedisServer::start();
    let client = connect(WireFormat::Token, &server).await;
    let formats = FORMATS.iter().cycle().take(30);
    let mut waiters = Vec::new();
    for format in formats {
        let (lock, url) = (client.lock("k").wire_format(*format), server.plain_url());
        let expected = if *format == WireFormat::Redisson { "hash" } else { "string" };
        waiters.push(tokio::spawn(async move {
            let body = async {
                let client = redis::Client::open(url).expect("a valid URL");
                let mut connection = client.get_connection().expect("up");
                redis::cmd("TYPE").arg("k").query::<String>(&mut connection).expect("a reply")
            };
            assert_eq!(lock.run(body).await.expect("granted"), expected);
        }));
    }
    for waiter in waiters {
        waiter.await.expect("locked in its own format");
    }
    until_idle(&client, LEASE).await;
    assert!(!server.exists("k"));
}

#[tokio::test]
async fn a_nested_lock_in_another_format_is_refused() {
    let server = RedisServer::start();
    let client = connect(WireFormat::Token, &server).await;
    let body = async {
        drop(client.lock("k").acquire().await.expect("shared"));
        match client.lock("k").wire_format(WireFormat::Redisson).acquire().await {
            Err(LockError::WrongFormat { expected, found, .. }) => {
                assert_eq!(expected, "hash");
                assert_eq!(found, "string that the enclosing body has locked");
            }
            other => panic!("{other:?}"),
        }
    };
    client.lock("k").run(body).await.expect("held until the end");
}

#[tokio::test]
async fn locks_of_all_formats_are_renewed_together() {
    let server = RedisServer::start();
    let client = connect(WireFormat::Token, &server).await;
    let mut guards = Vec::new();
    for n in 0..300 {
        let lock = client.lock(format!("k{n}")).wire_format(FORMATS[n % 3]);
        guards.push(lock.acquire().await.expect("free"));
    }
    sleep(LEASE * 2).await;
    assert!(guards.iter().all(LockGuard::is_held));
    drop(guards);
    client.shutdown().await.expect("released");
    assert_eq!(server.keys(), [""; 0]);
}

#[tokio::test]
async fn the_memory_store_takes_any_format() {
    for format in FORMATS {
        let client = LockClient::builder().url("memory:").wire_format(format);
        let client = client.connect().await.expect("memory");
        let guard = client.lock("k").acquire().await.expect("free");
        assert!(!is_free(&client).await);
        guard.fencing_token().await.expect("held");
        guard.release().await.expect("held");
    }
}

/// The owner in the lock value of this format must not be shown.
#[tokio::test]
async fn debug_output_shows_no_owner() {
    let fixture = FormatFixture::new(WireFormat::Redisson).await;
    let lock = fixture.one.lock("k");
    let guard = lock.acquire().await.expect("free");
    let owners: Vec<String> = fixture.server.command(&["HKEYS", "k"]);
    let number = owners[0].split(':').next_back().expect("a number");
    let shown = format!("{:?} {lock:?} {guard:#?} {:?}", fixture.one, fixture.two);
    assert!(!shown.contains(number), "{shown}");
    assert!(shown.contains("Redisson"), "{shown}");
}
