//! Credentials that change or end while locks are held, and functions of the program that supply
//! none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_runtime::{Credentials, LockClient, LockError};
use lock_tests::{CapturedLog, Proxy, RedisServer, running_time_between};
use tokio::time::sleep;

use crate::support::{LEASE, acquire_many, assert_all_held, until};

/// A service that issues tokens: each one is a user of its own, who is deleted when it ends. The
/// server then closes the connections that are logged in as this user.
#[derive(Clone)]
struct Tokens {
    server: Arc<RedisServer>,
    lifetime: Duration,
    issued: Arc<AtomicUsize>,
    /// The number of the request that fails. The server rejects the token of the next one.
    failing: usize,
    valid: Arc<Mutex<VecDeque<(Instant, String)>>>,
}

impl Tokens {
    fn new(server: Arc<RedisServer>, lifetime: Duration, failing: usize) -> Self {
        Self { server, lifetime, issued: Arc::default(), failing, valid: Arc::default() }
    }

    fn issue(&self) -> Result<Credentials, String> {
        let number = self.issued.fetch_add(1, Ordering::SeqCst);
        if number == self.failing {
            return Err("the token service is down".into());
        }
        if number == self.failing + 1 {
            return Ok(Credentials::new("s3cret").user("nobody"));
        }
        let user = format!("token{number}");
        let expires = Instant::now() + self.lifetime;
        self.server.tell(&["ACL", "SETUSER", &user, "on", ">s3cret", "~*", "&*", "+@all"]);
        self.valid.lock().expect("no panic").push_back((expires, user.clone()));
        Ok(Credentials::new("s3cret").user(user).valid_for(self.lifetime))
    }

    /// Ends the tokens whose time is over.
    fn expire(&self) {
        let mut valid = self.valid.lock().expect("no panic");
        while valid.front().is_some_and(|(expires, _)| *expires <= Instant::now()) {
            let (_, user) = valid.pop_front().expect("not empty");
            self.server.tell(&["ACL", "DELUSER", &user]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_log_in_again_before_their_tokens_end() {
    let log = CapturedLog::here();
    let server = Arc::new(RedisServer::start());
    // The first three requests are those of the first connections.
    let tokens = Tokens::new(Arc::clone(&server), LEASE * 4, 7);
    let source = tokens.clone();
    let url = server.url_without_login();
    // In a cluster, subscriptions have a connection of their own.
    let connections = if url.starts_with("redis+cluster") { 4 } else { 3 };
    let client = LockClient::builder().url(url).lease(LEASE).credentials(move || {
        let issued = source.issue();
        async { issued }
    });
    let client = client.connect().await.expect("the first tokens are valid");
    let guards = acquire_many(&client, 20).await;
    let address = format!(":{}", server.port());
    let disconnected = || log.lines(&["disconnected", &address]).len();
    let before = disconnected();
    let end = Instant::now() + LEASE * 16;
    while Instant::now() < end {
        tokens.expire();
        client.lock("other").run(async {}).await.expect("logged in");
        sleep(LEASE / 50).await;
    }
    assert_eq!(disconnected(), before, "a token ended");
    assert_all_held(&guards);
    // They log in again after 70 to 80 % of the lifetime, and two requests are repeated.
    let issued = tokens.issued.load(Ordering::SeqCst);
    assert!((11..=connections * 7 + 2).contains(&issued), "{issued} tokens");
    let warnings = log.lines(&["WARN", "cannot renew the credentials", "token service", &address]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(log.lines(&["s3cret"]).is_empty());
}

/// The password changes while all connections are lost. The function supplies the old password once
/// more, as one that reads a file just before the change.
#[tokio::test]
async fn new_connections_use_new_passwords() {
    let mut server = RedisServer::with(&["--requirepass", "old"]);
    let passwords = Arc::new(Mutex::new(VecDeque::from(["old"])));
    let source = Arc::clone(&passwords);
    let url = server.url_without_login();
    // A busy machine barely renews a thousand locks within a second.
    let lease = LEASE * 3;
    let builder = LockClient::builder().url(url).lease(lease).credentials(move || {
        let mut passwords = source.lock().expect("no panic");
        let password = passwords.pop_front().expect("a password");
        if passwords.is_empty() {
            passwords.push_back(password);
        }
        async move { Ok::<_, LockError>(Credentials::new(password)) }
    });
    let client = builder.connect().await.expect("the password is right");
    let guards = acquire_many(&client, 1000).await;
    server.set_password("new");
    *passwords.lock().expect("no panic") = VecDeque::from(["old", "new"]);
    server.kill_all_connections();
    client.lock("other").run(async {}).await.expect("the function was called again");
    sleep(lease * 2).await;
    assert_all_held(&guards);
}

/// A new login can help only if the server asks for one, and if the credentials may have changed.
#[tokio::test]
async fn a_request_that_needs_a_new_login_is_repeated_with_new_credentials() {
    let server = RedisServer::with(&["--requirepass", "any"]);
    let proxy = Proxy::to(server.port());
    let address = proxy.url();
    for (has_source, reply, is_repeated) in [
        (true, "-NOAUTH Authentication required.\r\n", true),
        (true, "-NOPERM this user has no permissions\r\n", false),
        (false, "-NOAUTH Authentication required.\r\n", false),
    ] {
        let builder = if has_source {
            let source = || async { Ok::<_, LockError>(Credentials::new("any")) };
            LockClient::builder().url(&address).credentials(source)
        } else {
            LockClient::builder().url(address.replace("//", "//:any@"))
        };
        let client = builder.lease(LEASE).wait(LEASE * 3).connect().await.expect("logged in");
        // Afterwards, no other request is in flight.
        client.lock("k").run(async {}).await.expect("free");
        proxy.replace_reply_to("SET", reply.as_bytes());
        let outcome = client.lock("k").run(async {}).await;
        let is_denied = matches!(outcome, Err(LockError::Denied { .. }));
        assert_eq!((outcome.is_ok(), is_denied), (is_repeated, !is_repeated), "{outcome:?}");
    }
}

/// The requests for the marker of a quarantine, and for the process id of a server with replicas.
#[tokio::test]
async fn a_request_before_a_grant_that_needs_a_new_login_is_repeated() {
    let master = RedisServer::plain(&["--repl-diskless-sync-delay", "0"]);
    let _replica = RedisServer::plain(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let proxy = Proxy::to(master.port());
    let source = || async { Ok::<_, LockError>(Credentials::new("any")) };
    let builder = LockClient::builder().url(proxy.url()).credentials(source).lease(LEASE);
    let builder = builder.quarantine(LEASE).wait(LEASE * 30);
    let client = builder.connect().await.expect("any password is right");
    let acknowledged = client.lock("k").acknowledged_by(1);
    for (word, lock) in [("lock_quarantine:", client.lock("k")), ("server", acknowledged)] {
        let triggered = proxy.triggered();
        proxy.replace_reply_to(word, b"-NOAUTH Authentication required.\r\n");
        lock.run(async {}).await.expect("granted after a new login");
        assert_eq!(proxy.triggered(), triggered + 1, "{word}");
    }
}

/// What a program's function may do instead of supplying credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceFault {
    Error,
    Panic,
    Block,
}

/// Locks stay held as long as their connections last, bodies end at their deadlines, and the calls
/// say what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_supplies_no_credentials_delays_no_deadline() {
    for fault in [SourceFault::Error, SourceFault::Panic, SourceFault::Block] {
        let server = RedisServer::with(&["--requirepass", "any"]);
        let broken = Arc::new(Mutex::new(None));
        let source = Arc::clone(&broken);
        let url = server.url_without_login();
        let builder = LockClient::builder().url(url).lease(LEASE).credentials(move || {
            let fault = *source.lock().expect("no panic");
            async move {
                match fault {
                    None => Ok(Credentials::new("any")),
                    Some(SourceFault::Error) => Err("the token service is down"),
                    Some(SourceFault::Panic) => panic!("a mistake in the program"),
                    Some(SourceFault::Block) => {
                        std::thread::sleep(LEASE * 30);
                        Err("too late")
                    }
                }
            }
        });
        let client = builder.connect().await.expect("the credentials are right");
        let ended = client.lock("k").run(std::future::pending::<()>());
        let ended = tokio::spawn(async move {
            let outcome = ended.await;
            (outcome, Instant::now())
        });
        assert!(until(LEASE * 10, || server.exists("k")).await.is_some());
        *broken.lock().expect("no panic") = Some(fault);
        let cut = Instant::now();
        server.kill_all_connections();
        let cause = match client.lock("other").wait(LEASE).acquire().await.map(drop) {
            Err(LockError::Unavailable { cause, .. }) => cause,
            other => panic!("{fault:?}: {other:?}"),
        };
        let words = match fault {
            SourceFault::Error => "the token service is down",
            SourceFault::Panic => "panicked",
            SourceFault::Block => "no connection",
        };
        assert!(cause.contains(words), "{fault:?}: {cause}");
        let (outcome, at) = ended.await.expect("no panic");
        assert!(matches!(outcome, Err(LockError::Lost { .. })), "{fault:?}: {outcome:?}");
        let late = running_time_between(cut + LEASE, at);
        assert!(late < LEASE / 2, "{fault:?}: {:?}", at - cut);
    }
}

#[tokio::test]
async fn credentials_in_two_places_are_refused() {
    let source = || async { Ok::<_, LockError>(Credentials::new("any")) };
    for (url, words) in [("redis://:any@localhost", "choose one"), ("memory:", "needs none")] {
        let refused = LockClient::builder().url(url).credentials(source).connect().await;
        match refused {
            Err(LockError::Config { option: "credentials", problem, .. }) => {
                assert!(problem.contains(words), "{problem}");
            }
            other => panic!("{url}: {other:?}"),
        }
    }
}

/// Short, missing and endless lifetimes do not make a connection log in all the time, and requests
/// whose senders gave up do not pile up.
#[tokio::test(flavor = "multi_thread")]
async fn extreme_lifetimes_and_functions_without_end_cause_few_calls() {
    for valid_for in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let server = RedisServer::with(&["--requirepass", "any"]);
        let (calls, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = (Arc::clone(&calls), Arc::clone(&running));
        let url = server.url_without_login();
        let client = LockClient::builder().url(url).lease(LEASE).credentials(move || {
            let number = counted.0.fetch_add(1, Ordering::SeqCst);
            let running = Running::new(&counted.1);
            async move {
                let _running = running;
                if number >= 3 {
                    std::future::pending::<()>().await;
                }
                Ok::<_, LockError>(Credentials::new("any").valid_for(valid_for))
            }
        });
        let client = client.connect().await.expect("the password is right");
        sleep(LEASE * 4).await;
        client.lock("k").run(async {}).await.expect("the connection stays");
        // Three connections. Each asks for new credentials at most twice a second, and a request
        // ends after three seconds.
        let called = calls.load(Ordering::SeqCst);
        assert!(called <= 3 * 4, "{valid_for:?}: {called} calls");
        assert!(running.load(Ordering::SeqCst) <= 3, "{valid_for:?}");
        drop(client);
        let ended = || running.load(Ordering::SeqCst) == 0;
        assert!(until(LEASE * 10, ended).await.is_some(), "the thread ends with the client");
    }
}

/// Counts the calls of a function that have not ended.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
