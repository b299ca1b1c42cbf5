//! Asking clients about their locks, and revoking locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::admin::{
    Deletion, HoldInfo, LockAdmin, LockScan, Revocation, StoredHolder, StoredLayout,
};
use lock_runtime::telemetry::AcquisitionOutcome;
use lock_runtime::{
    HolderKind, Identity, LockClient, LockClientBuilder, LockError, LockGuard, LockMode,
    LostReason, Permits, WireFormat, distributed_lock, with_client,
};
use lock_tests::support::until_idle;
use lock_tests::{CapturedLog, RedisServer, TestedKind, running_time, within};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::support::{LEASE, client, helper, milliseconds, on_every_store, until};

/// Answers may be late on a busy machine. Questions return as soon as all clients have answered.
fn admin(client: &LockClient) -> LockAdmin {
    LockAdmin::new(client).answer_timeout(LEASE * 20)
}

fn builder(url: &str) -> LockClientBuilder {
    LockClient::builder().url(url).lease(LEASE).wait(LEASE * 20)
}

async fn revocable(url: &str) -> LockClient {
    builder(url).revocable(true).connect().await.expect("up")
}

/// A client whose locks can be revoked, and one that revokes them.
async fn revocable_and_operator(server: &RedisServer) -> (LockClient, LockClient) {
    (revocable(&server.url()).await, client(&server.url()).await)
}

/// All locks that all clients hold.
async fn holds(admin: &LockAdmin) -> Vec<HoldInfo> {
    let answers = admin.holds().await.expect("up");
    assert_eq!(answers.unanswered, Some(0), "{answers:?}");
    let mut holds: Vec<_> = answers.answers.into_iter().flat_map(|answer| answer.found).collect();
    holds.sort_by(|one, other| one.key.cmp(&other.key));
    holds
}

/// The numbers of locks that were revoked, and that were not.
fn counts(revocation: &Revocation) -> (u64, u64) {
    assert_eq!(revocation.unanswered, Some(0));
    (revocation.revoked, revocation.refused)
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u64, body: impl Future<Output = ()> + Send) -> Result<(), LockError> {
    let _ = id;
    body.await;
    Ok(())
}

on_every_store! {
    async fn a_client_tells_how_long_a_lock_may_be_held(pair: Pair) {
        let limited = pair.one.lock("limited").max_hold(LEASE * 25);
        let limited = limited.acquire().await.expect("free");
        let endless = pair.one.lock("endless").acquire().await.expect("free");
        let found = holds(&admin(&pair.two)).await;
        let most = |key| found.iter().find(|hold| hold.key == key).expect("held").max_hold;
        assert_eq!((most("limited"), most("endless")), (Some(LEASE * 25), None));
        drop((limited, endless));
    }

    async fn a_client_tells_which_locks_it_holds(pair: Pair) {
        let (started, start) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let body = async move {
            started.send(()).expect("awaited");
            let _ = ended.await;
        };
        let paying = tokio::spawn(with_client(pair.one.clone(), pay(7, body)));
        start.await.expect("it runs");
        let other = pair.two.lock("other").lease(LEASE * 30).acquire().await.expect("free");
        let token = other.fencing_token().await.expect("held");
        let lock = pair.two.lock("other").wait(LEASE * 30);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let is_waiting = || pair.two.stats().queued == 1;
        assert!(until(LEASE * 10, is_waiting).await.is_some());
        let found = holds(&admin(&pair.two)).await;
        let [order, plain] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*order.key, &*order.template), ("order:7", "order:<id>"));
        let function = order.function.as_deref().expect("it is annotated");
        assert!(function.ends_with("admin::pay"), "{function}");
        assert!(order.is_renewed && order.lease_left <= LEASE, "{order:?}");
        assert_eq!((order.waiting, order.fencing_token), (0, None));
        assert_eq!((&*plain.key, &*plain.template, &plain.function), ("other", "(none)", &None));
        assert_eq!((plain.waiting, plain.fencing_token), (1, Some(token)));
        assert_eq!((order.lease, plain.lease), (Some(LEASE), Some(LEASE * 30)));
        assert!(!plain.is_renewed && plain.lease_left > LEASE && plain.held_for < LEASE * 29);
        // Only this one.
        let one = admin(&pair.one).holds_of("other").await.expect("up");
        let found: Vec<_> = one.answers.iter().flat_map(|answer| &answer.found).collect();
        assert_eq!(found.len(), 1, "{one:?}");
        drop(end);
        paying.await.expect("no panic").expect("paid");
        other.release().await.expect("held");
        drop(waiting.await.expect("no panic").expect("its turn"));
        until_idle(&pair.two, LEASE).await;
        assert_eq!(holds(&admin(&pair.one)).await, []);
    }

    async fn the_locks_of_all_kinds_are_told(pair: Pair) {
        for kind in TestedKind::ALL {
            let held = kind.acquire(&pair.two, &kind.name(), LEASE).await.expect("up").expect("free");
            let found = holds(&admin(&pair.one)).await;
            let count = if kind == TestedKind::Set { 2 } else { 1 };
            assert_eq!(found.len(), count, "{kind:?}: {found:?}");
            let told = found.iter().find(|hold| hold.key == kind.name()).expect("its key");
            let mode = match kind {
                TestedKind::Reader => Some(LockMode::Read),
                TestedKind::Writer => Some(LockMode::Write),
                _ => None,
            };
            let permits = (kind == TestedKind::Permits).then(|| Permits::new(2, 2));
            assert_eq!((told.mode, told.permits), (mode, permits), "{kind:?}");
            held.release().await.expect("held");
            until_idle(&pair.two, LEASE * 5).await;
        }
    }

    async fn the_calls_that_wait_are_told(pair: Pair) {
        let held = pair.one.lock("k").acquire().await.expect("free");
        let lock = pair.two.lock("k").wait(LEASE * 30);
        let calls: Vec<_> = (0..5).map(|_| tokio::spawn(lock.acquire())).collect();
        let admin = admin(&pair.one);
        let mut waiting = 0;
        for _ in 0..100 {
            let answers = admin.waiting().await.expect("up").answers;
            let mut found = answers.into_iter().flat_map(|answer| answer.found);
            waiting = found.find(|wait| wait.key == "k").map_or(0, |wait| wait.calls);
            if waiting == 5 {
                break;
            }
            tokio::time::sleep(LEASE / 5).await;
        }
        assert_eq!(waiting, 5);
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        held.release().await.expect("held");
        until_idle(&pair.two, LEASE * 10).await;
        let answers = admin.waiting().await.expect("up").answers;
        assert!(answers.iter().all(|answer| answer.found.is_empty()), "{answers:?}");
    }

    async fn measurements_arrive_as_they_are(pair: Pair) {
        for _ in 0..3 {
            with_client(pair.one.clone(), pay(7, async {})).await.expect("free");
        }
        let held = pair.one.lock("busy").acquire().await.expect("free");
        let busy = pair.two.lock("busy").template("busy").wait(Duration::ZERO).acquire().await;
        busy.expect_err("busy");
        let answers = admin(&pair.two).snapshots().await.expect("up").answers;
        assert_eq!(answers.len(), 2);
        let found = |template| answers.iter().find_map(|answer| answer.found.site(template));
        let (told, own) = (found("order:<id>").expect("told"), pair.one.snapshot());
        let own = own.site("order:<id>").expect("used");
        for outcome in AcquisitionOutcome::ALL {
            assert_eq!(told.acquisitions(outcome), own.acquisitions(outcome), "{outcome:?}");
            let waits = told.waits.iter().find(|(known, _)| *known == outcome);
            let own = own.wait(outcome).filter(|waits| waits.count() > 0);
            assert_eq!(waits.map(|(_, waits)| waits), own, "{outcome:?}");
        }
        assert_eq!((&told.hold, told.hold.count()), (&own.hold, 3));
        assert_eq!((told.held, told.waiting, told.losses.len()), (0, 0, 0));
        let busy = found("busy").expect("told");
        assert_eq!(busy.acquisitions(AcquisitionOutcome::Busy), 1);
        let held_by: Vec<_> = answers.iter().map(|answer| answer.found.held).collect();
        assert_eq!(held_by.iter().sum::<u64>(), 1, "{held_by:?}");
        assert!(answers.iter().all(|answer| answer.found.store_up));
        drop(held);
    }

    async fn a_lock_of_a_client_that_is_not_revocable_is_kept(pair: Pair) {
        let guard = pair.one.lock("k").acquire().await.expect("free");
        assert_eq!(counts(&admin(&pair.two).revoke("k").await.expect("up")), (0, 1), "refused");
        assert_eq!(counts(&admin(&pair.two).revoke("other").await.expect("up")), (0, 0));
        assert!(guard.is_held());
        guard.release().await.expect("it was kept");
    }

    async fn the_holder_of_one_lock_is_read_from_the_store(pair: Pair) {
        let admin = admin(&pair.one);
        assert_eq!(admin.holder("k").await, Ok(None));
        for (holder, kind) in
            [(&pair.one, HolderKind::ThisProcess), (&pair.two, HolderKind::Elsewhere)]
        {
            let guard = holder.lock("k").acquire().await.expect("free");
            let found = admin.holder("k").await.expect("up").expect("held");
            assert_eq!(found.kind, kind);
            assert!(found.held_for.is_some() && found.client.is_some(), "{found:?}");
            guard.release().await.expect("held");
        }
    }
}

#[tokio::test]
async fn a_revoked_lock_is_free_for_others_when_its_body_was_dropped() {
    /// Says so when it is dropped, after a moment in which nobody else may have the lock.
    struct Dropped(Arc<AtomicBool>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            std::thread::sleep(LEASE / 10);
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let server = RedisServer::start();
    let (one, two) = revocable_and_operator(&server).await;
    for kind in TestedKind::ALL.into_iter().filter(|kind| *kind != TestedKind::Leader) {
        let kind = kind.exclusive();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let (started, start) = oneshot::channel();
        let dropped = Dropped(Arc::clone(&is_dropped));
        let body = async move {
            let _dropped = dropped;
            started.send(()).expect("awaited");
            std::future::pending::<()>().await;
        };
        // On a thread of its own, because the destructor blocks.
        let run = kind.run(one.clone(), kind.name(), body);
        let thread = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(run)
        });
        start.await.expect("it runs");
        let begun = tokio::time::Instant::now();
        assert_eq!(counts(&admin(&two).revoke(kind.name()).await.expect("up")), (1, 0), "{kind:?}");
        let next = kind.acquire(&two, &kind.name(), LEASE * 10).await.expect("up").expect("freed");
        assert!(is_dropped.load(Ordering::SeqCst), "{kind:?}: the body outlived its lock");
        // Not only by the end of its lease.
        assert!(begun.elapsed() < LEASE * 9 / 10, "{kind:?}: {:?}", begun.elapsed());
        match thread.join().expect("no panic") {
            Err(LockError::Lost { reason: LostReason::Revoked, .. }) => {}
            other => panic!("{kind:?}: {other:?}"),
        }
        next.release().await.expect("held");
        until_idle(&two, LEASE * 5).await;
    }
    until_idle(&one, LEASE * 5).await;
}

#[tokio::test]
async fn a_guard_that_is_revoked_is_lost_at_once_and_freed_when_it_is_dropped() {
    let server = RedisServer::start();
    let (one, two) = revocable_and_operator(&server).await;
    let guard = one.lock("k").acquire().await.expect("free");
    assert_eq!(counts(&admin(&two).revoke("k").await.expect("up")), (1, 0));
    assert_eq!(timeout(LEASE, guard.lost()).await, Ok(LostReason::Revoked));
    assert!(!guard.is_held());
    assert!(two.lock("k").try_acquire().await.expect("up").is_none(), "the guard is there");
    assert_eq!(counts(&admin(&two).revoke("k").await.expect("up")), (0, 0), "it is lost already");
    drop(guard);
    two.lock("k")
        .wait(LEASE * 9 / 10)
        .acquire()
        .await
        .expect("freed")
        .release()
        .await
        .expect("held");
}

#[tokio::test]
async fn a_lock_of_one_client_is_revoked_and_the_log_says_by_whom() {
    let (log, server) = (CapturedLog::here(), RedisServer::start());
    let clients = [revocable(&server.url()).await, revocable(&server.url()).await];
    let operator = Identity::named("operator-of-this-test");
    let operator = builder(&server.url()).identity(operator).connect().await.expect("up");
    let guards = [
        clients[0].read_write("shared").read().acquire().await.expect("shared"),
        clients[1].read_write("shared").read().acquire().await.expect("shared"),
    ];
    let admin = admin(&operator);
    let answers = admin.holds_of("shared").await.expect("up").answers;
    let holding = answers.iter().filter(|answer| !answer.found.is_empty());
    let ids: Vec<_> = holding.map(|answer| answer.client.id.clone().expect("an id")).collect();
    assert_eq!(ids.len(), 2, "{answers:?}");
    assert_eq!(counts(&admin.revoke_from("shared", "another").await.expect("up")), (0, 0));
    assert!(guards.iter().all(LockGuard::is_held));
    assert_eq!(counts(&admin.revoke_from("shared", &ids[0]).await.expect("up")), (1, 0));
    assert_eq!(guards.iter().filter(|guard| guard.is_held()).count(), 1);
    assert_eq!(counts(&admin.revoke_from("shared", &ids[0]).await.expect("up")), (0, 0));
    assert_eq!(counts(&admin.revoke_from("shared", &ids[1]).await.expect("up")), (1, 0));
    let lines = || log.lines(&["lock revoked", "operator-of-this-test"]).len();
    assert!(until(LEASE * 5, || lines() == 2).await.is_some(), "{}", lines());
}

#[tokio::test]
async fn a_leader_that_is_revoked_steps_down() {
    let server = RedisServer::start();
    let (one, two) = revocable_and_operator(&server).await;
    let leader = one.leadership("reports").campaign().await.expect("free");
    assert_eq!(counts(&admin(&two).revoke("reports").await.expect("up")), (1, 0));
    assert_eq!(leader.lost().await, LostReason::Revoked);
    drop(leader);
    let next = within(LEASE * 10, two.leadership("reports").campaign()).await;
    next.expect("freed").expect("elected").resign().await.expect("it leads");
}

#[tokio::test]
async fn all_readers_and_all_permits_of_a_key_are_revoked() {
    let server = RedisServer::start();
    let clients = [revocable(&server.url()).await, revocable(&server.url()).await];
    let mut guards = Vec::new();
    for client in &clients {
        guards.push(client.read_write("shared").read().acquire().await.expect("shared"));
        guards.push(client.read_write("shared").read().acquire().await.expect("shared"));
        guards.push(client.semaphore("permits", 10).permits(2).acquire().await.expect("free"));
        guards.push(client.semaphore("permits", 10).permits(3).acquire().await.expect("free"));
    }
    let admin = admin(&clients[0]);
    // The readers of a client share one lock.
    assert_eq!(counts(&admin.revoke("shared").await.expect("up")), (2, 0));
    assert_eq!(counts(&admin.revoke("permits").await.expect("up")), (4, 0));
    assert!(guards.iter().all(|guard| !guard.is_held()));
}

#[tokio::test]
async fn only_the_clients_of_the_namespace_are_asked() {
    for url in ["memory:namespaces".to_owned(), RedisServer::start().url()] {
        let server = (url != "memory:namespaces").then(RedisServer::start);
        let url = server.as_ref().map_or(url, RedisServer::url);
        let in_namespace = async |name: &str| {
            builder(&url).namespace(name).revocable(true).connect().await.expect("up")
        };
        let (shop, mail) = (in_namespace("shop").await, in_namespace("mail").await);
        let _held = [
            shop.lock("k").acquire().await.expect("free"),
            mail.lock("k").acquire().await.expect("free"),
        ];
        let admin = admin(&shop);
        let found = holds(&admin).await;
        assert_eq!(found.iter().map(|hold| &*hold.key).collect::<Vec<_>>(), ["shop:k"]);
        assert_eq!(counts(&admin.revoke("k").await.expect("up")), (1, 0));
        assert_eq!(holds(&self::admin(&mail)).await.len(), 1);
        assert!(admin.holder("k").await.expect("up").is_some());
    }
}

#[tokio::test]
async fn clients_say_who_they_are_and_a_client_without_an_identity_is_not_asked() {
    let server = RedisServer::start();
    let identity = Identity::named("web-3").service("shop", "1.4.2");
    let one = builder(&server.url()).identity(identity).connect().await.expect("up");
    let silent = builder(&server.url()).identity(Identity::none()).connect().await.expect("up");
    let mut process = helper(&["hold", &server.url(), "theirs", &milliseconds(LEASE)]);
    assert_eq!(process.line(), "held");
    let _held = silent.lock("silent").acquire().await.expect("free");
    let admin = admin(&silent);
    let clients = admin.clients().await.expect("up");
    assert_eq!((clients.answers.len(), clients.unanswered), (2, Some(0)), "{clients:?}");
    let named =
        clients.answers.iter().find(|answer| answer.client.name.as_deref() == Some("web-3"));
    let named = &named.expect("it has answered").client;
    assert_eq!(named.to_string(), format!("web-3 (pid {}, shop 1.4.2)", std::process::id()));
    assert!(named.id.is_some() && named.started.is_some() && named.library.is_some());
    let other = clients.answers.iter().find(|answer| answer.client.process == Some(process.id()));
    assert!(other.is_some(), "{clients:?}");
    assert_eq!(holds(&admin).await.iter().map(|hold| &*hold.key).collect::<Vec<_>>(), ["theirs"]);
    let holder = admin.holder("silent").await.expect("up").expect("held");
    assert_eq!(holder.client.and_then(|client| client.name), None);
    drop(one);
}

/// Nobody can be asked any more who has it.
#[tokio::test]
async fn the_holder_that_was_killed_is_read_from_the_store() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut process = helper(&["hold", &server.url(), "k", &milliseconds(LEASE * 3)]);
    assert_eq!(process.line(), "held");
    let admin = admin(&client);
    let holder = async || admin.holder("k").await.expect("up");
    let mut named = false;
    for _ in 0..100 {
        let client = holder().await.expect("held").client.expect("told");
        named = client.process == Some(process.id());
        if named {
            break;
        }
        tokio::time::sleep(LEASE / 20).await;
    }
    assert!(named, "its presence follows the grant");
    process.kill();
    let mut asked = 0;
    while let Some(holder) = holder().await {
        assert_eq!(holder.client.and_then(|client| client.process), Some(process.id()));
        asked += 1;
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(asked > 3, "{asked}");
}

#[tokio::test]
async fn a_foreign_holder_does_not_say_who_it_is() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let admin = admin(&client);
    for command in [["SET", "k", "stranger"].as_slice(), &["HSET", "k", "x", "1"]] {
        server.tell(&["DEL", "k"]);
        server.tell(command);
        let holder = admin.holder("k").await.expect("up").expect("held");
        let client = holder.client.expect("told");
        assert_eq!(client.to_string(), "a client that does not say who it is", "{command:?}");
    }
    assert_eq!(holds(&admin).await, []);
}

#[tokio::test]
async fn any_key_arrives_as_it_is() {
    let server = RedisServer::start();
    let (one, two) = revocable_and_operator(&server).await;
    let keys = [
        "<img src=x onerror=alert(1)>".to_owned(),
        "tab\tline\nreturn\r\u{0}\u{7f}".to_owned(),
        "100%41=\u{85}\u{202e}".to_owned(),
        "\u{1}".repeat(1024),
        "é".repeat(512),
    ];
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(one.lock(key.clone()).acquire().await.expect("free"));
    }
    let admin = admin(&two);
    let mut expected = keys.to_vec();
    expected.sort();
    let found = holds(&admin).await;
    assert_eq!(found.iter().map(|hold| hold.key.clone()).collect::<Vec<_>>(), expected);
    for (key, guard) in keys.iter().zip(&guards) {
        assert_eq!(counts(&admin.revoke(key.clone()).await.expect("up")), (1, 0), "{key:?}");
        assert!(!guard.is_held());
    }
}

#[tokio::test]
async fn thousands_of_locks_of_several_clients_are_told() {
    const LOCKS: usize = 2000;
    let server = RedisServer::start();
    let mut clients = Vec::new();
    let mut guards = Vec::new();
    for n in 0..3 {
        let client = builder(&server.url()).lease(LEASE * 600).connect().await.expect("up");
        for chunk in 0..LOCKS / 50 {
            let keys = (0..50).map(|key| format!("client:{n}:{chunk}:{key}"));
            guards.push(client.lock_all(keys).acquire().await.expect("free"));
        }
        clients.push(client);
    }
    let answers = admin(&clients[0]).holds().await.expect("up");
    assert_eq!((answers.answers.len(), answers.unanswered), (3, Some(0)));
    for answer in &answers.answers {
        assert!(answer.is_complete);
        assert_eq!(answer.found.len(), LOCKS);
        let ages: Vec<_> = answer.found.iter().map(|hold| hold.held_for).collect();
        assert!(ages.is_sorted_by(|one, other| one >= other), "the oldest come first");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_long_has_the_oldest_locks() {
    let client = LockClient::memory();
    let mut guards = Vec::new();
    for chunk in 0..40 {
        let keys = (0..50).map(|key| format!("{chunk:02}:{key:02}:{}", "x".repeat(800)));
        guards.push(client.lock_all(keys).acquire().await.expect("free"));
    }
    let answers = admin(&client).holds().await.expect("up").answers;
    assert!(!answers[0].is_complete);
    let found = &answers[0].found;
    assert!((1000..1400).contains(&found.len()), "{}", found.len());
    assert!(found.iter().any(|hold| hold.key.starts_with("00:")));
    assert!(found.iter().all(|hold| !hold.key.starts_with("39:")));
}

#[tokio::test]
async fn the_clones_of_an_admin_may_ask_at_the_same_time() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _held = client.lock("k").acquire().await.expect("free");
    let admin = admin(&client);
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let admin = admin.clone();
        asking.spawn(async move { holds(&admin).await.len() });
    }
    while let Some(found) = asking.join_next().await {
        assert_eq!(found.expect("no panic"), 1);
    }
}

/// A question that is dropped leaves its answers unread.
#[tokio::test]
async fn answers_to_an_earlier_question_do_not_count() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let admin = admin(&client);
    for n in 0..5 {
        let key = format!("k{n}");
        let guard = client.lock(&*key).acquire().await.expect("free");
        let _ = timeout(Duration::from_micros(200 * n), admin.holds()).await;
        guard.release().await.expect("held");
        assert_eq!(holds(&admin).await, [], "{n}");
        // More than ten questions in a second are not answered.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

#[tokio::test]
async fn wrong_calls_are_errors() {
    let client = LockClient::memory();
    for answer_timeout in [Duration::ZERO, Duration::from_secs(61)] {
        match LockAdmin::new(&client).answer_timeout(answer_timeout).holds().await {
            Err(LockError::Config { option: "answer_timeout", problem, .. }) => {
                assert!(problem.contains("from 10 ms to 60 s"), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
    let admin = LockAdmin::new(&client);
    for key in [String::new(), "x".repeat(1025), "lock_fence:k".to_owned()] {
        assert!(matches!(admin.revoke(&*key).await, Err(LockError::InvalidKey { .. })), "{key}");
        assert!(matches!(admin.holds_of(&*key).await, Err(LockError::InvalidKey { .. })), "{key}");
        assert!(matches!(admin.holder(&*key).await, Err(LockError::InvalidKey { .. })), "{key}");
    }
    client.shutdown().await.expect("idle");
    assert_eq!(admin.clients().await, Err(LockError::ShutDown));
    assert_eq!(admin.holder("k").await, Err(LockError::ShutDown));
    assert!(format!("{admin:?}").starts_with("LockAdmin"));
}

/// A client of another wire format answers as well.
#[tokio::test]
async fn the_locks_of_every_format_are_told() {
    let server = RedisServer::start();
    for format in [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp] {
        let client = builder(&server.url()).wire_format(format).revocable(true);
        let client = client.connect().await.expect("up");
        let guard = client.lock(format!("{format:?}")).acquire().await.expect("free");
        let admin = admin(&client);
        assert_eq!(holds(&admin).await.len(), 1, "{format:?}");
        assert_eq!(counts(&admin.revoke(format!("{format:?}")).await.expect("up")), (1, 0));
        assert_eq!(guard.lost().await, LostReason::Revoked);
        drop(guard);
        until_idle(&client, LEASE * 5).await;
    }
}

/// The only holder that the key of a lock names.
async fn stored(admin: &LockAdmin, key: &str) -> (StoredLayout, StoredHolder) {
    let state = admin.inspect(key).await.expect("up").expect("held");
    let [holder] = &state.holders[..] else { panic!("{state:?}") };
    (state.layout, holder.clone())
}

#[tokio::test]
async fn the_key_of_a_lock_of_each_kind_tells_its_holders() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let admin = admin(&two);
    for kind in TestedKind::ALL {
        let held = kind.acquire(&one, &kind.name(), LEASE).await.expect("up").expect("free");
        let (layout, holder) = stored(&admin, &kind.name()).await;
        let expected = match kind {
            TestedKind::Reader | TestedKind::Writer => StoredLayout::ReadWrite,
            TestedKind::Permits => StoredLayout::Semaphore,
            _ => StoredLayout::Token,
        };
        assert_eq!(layout, expected, "{kind:?}");
        assert_eq!(holder.mode.is_some(), layout == StoredLayout::ReadWrite);
        assert_eq!(holder.permits, (kind == TestedKind::Permits).then(|| Permits::new(2, 2)));
        let left = holder.lease_left.expect("it expires");
        assert!(left > Duration::ZERO && left <= LEASE, "{kind:?}: {left:?}");
        assert!(holder.held_for.is_some() && !holder.is_released, "{kind:?}: {holder:?}");
        held.release().await.expect("held");
        until_idle(&one, LEASE * 5).await;
    }
    for format in [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp] {
        let key = format!("{format:?}");
        let lock = one.lock(&*key).wire_format(format);
        let guard = lock.acquire().await.expect("free");
        let (layout, holder) = stored(&admin, &key).await;
        assert_eq!(layout.as_str(), key.to_lowercase());
        assert_eq!(holder.client.process, Some(std::process::id()), "{holder:?}");
        guard.release().await.expect("held");
        lock.min_hold(LEASE * 10).run(async {}).await.expect("free");
        assert!(stored(&admin, &key).await.1.is_released, "{key}");
    }
}

#[tokio::test]
async fn the_processes_that_wait_are_counted() {
    let server = RedisServer::start();
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let guard = client(&server.url()).await.lock("k").lease(LEASE * 60).acquire().await;
    let guard = guard.expect("free");
    let waiting = clients.each_ref().map(|client| tokio::spawn(client.lock("k").acquire()));
    assert!(until(LEASE * 10, || server.queued("k") == 2).await.is_some());
    let state = admin(&clients[0]).inspect("k").await.expect("up").expect("held");
    assert_eq!((state.queued, state.holders.len()), (2, 1));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_lock_is_deleted_for_the_next_process_that_waits() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let admin = admin(&two);
    for kind in TestedKind::ALL {
        let kind = kind.exclusive();
        if matches!(kind, TestedKind::Leader | TestedKind::Run | TestedKind::Set) {
            continue;
        }
        let name = kind.name();
        // Held by nobody who would notice.
        let mut process = helper(&["under", &server.url(), &name, &milliseconds(LEASE * 60)]);
        assert_eq!(process.line(), "held");
        process.kill();
        let waiting = tokio::spawn({
            let (one, name) = (one.clone(), name.clone());
            async move { kind.acquire(&one, &name, LEASE * 30).await }
        });
        assert!(until(LEASE * 10, || server.queued(&name) == 1).await.is_some(), "{kind:?}");
        let (_, holder) = stored(&admin, &name).await;
        let wrong = format!("{}x", &holder.token.as_str()[1..]);
        assert_eq!(admin.delete(&*name, &wrong).await, Ok(Deletion::Changed), "{kind:?}");
        assert_eq!(stored(&admin, &name).await.1.token, holder.token, "{kind:?}: not changed");
        let begun = tokio::time::Instant::now();
        assert_eq!(admin.delete(&*name, &holder.token).await, Ok(Deletion::Deleted), "{kind:?}");
        let next = waiting.await.expect("no panic").expect("up").expect("its turn");
        assert!(running_time(begun) < LEASE * 10, "{kind:?}: {:?}", begun.elapsed());
        assert_ne!(stored(&admin, &name).await.1.token, holder.token);
        assert_eq!(admin.delete(&*name, &holder.token).await, Ok(Deletion::Changed), "{kind:?}");
        next.release().await.expect("held");
        until_idle(&one, LEASE * 5).await;
        assert_eq!(admin.delete(&*name, &holder.token).await, Ok(Deletion::Gone), "{kind:?}");
    }
}

#[tokio::test]
async fn a_lock_of_any_library_is_deleted_if_its_value_is_the_same() {
    let server = RedisServer::start();
    let admin = admin(&client(&server.url()).await);
    let time = "9999999999999";
    for (command, token, layout) in [
        (vec!["SET", "k", "stranger"], "stranger", StoredLayout::OtherToken),
        (vec!["SET", "k", time], time, StoredLayout::Timestamp),
        (
            vec!["HSET", "k", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"],
            "285475da-9152-4c83-822a-67ee2f116a79:52",
            StoredLayout::Redisson,
        ),
    ] {
        server.tell(&command);
        let (found, holder) = stored(&admin, "k").await;
        assert_eq!((found, holder.token.as_str()), (layout, token));
        assert_eq!(admin.delete("k", "other").await, Ok(Deletion::Changed), "{layout:?}");
        assert!(server.exists("k"));
        assert_eq!(admin.delete("k", token).await, Ok(Deletion::Deleted), "{layout:?}");
        assert!(!server.exists("k"));
        assert_eq!(admin.delete("k", token).await, Ok(Deletion::Gone), "{layout:?}");
    }
    for other in
        [&["RPUSH", "k", "x"][..], &["HSET", "k", "a", "1", "b", "2"], &["ZADD", "k", "1", "x"]]
    {
        server.tell(&["DEL", "k"]);
        server.tell(other);
        assert_eq!(admin.inspect("k").await, Ok(None), "{other:?}");
        assert_eq!(admin.delete("k", "x").await, Ok(Deletion::Gone), "{other:?}");
        assert!(server.exists("k"), "it is no lock");
    }
}

#[tokio::test]
async fn a_scan_finds_the_locks_of_the_namespace_and_no_other_keys() {
    let server = RedisServer::start();
    let name = "sh*p";
    let shop = builder(&server.url()).namespace(name).lease(LEASE * 600).connect().await;
    let shop = shop.expect("up");
    let mut expected = std::collections::BTreeSet::new();
    let mut guards = Vec::new();
    for n in 0..300 {
        expected.insert(format!("{name}:order:{n}"));
        guards.push(shop.lock(format!("order:{n}")).acquire().await.expect("free"));
    }
    guards.push(shop.lock("other").acquire().await.expect("free"));
    guards[0].fencing_token().await.expect("held");
    let _elsewhere =
        client(&server.url()).await.lock("shop:order:1").acquire().await.expect("free");
    for (key, value) in [("sh*p:order:text", "hello"), ("sh*p:order:foreign", "f00")] {
        server.tell(&["SET", key, value]);
    }
    server.tell(&["RPUSH", "sh*p:order:list", "x"]);
    for n in 0..5000 {
        server.tell(&["SET", &format!("noise:{n}"), "x"]);
    }
    let admin = admin(&shop);
    let found = async |mut scan: LockScan| {
        let (mut found, mut steps) = (std::collections::BTreeSet::new(), 0);
        while let Some(locks) = scan.next().await.expect("up") {
            found.extend(locks.into_iter().map(|lock| lock.key));
            steps += 1;
        }
        assert!(steps > 1, "a step has a limited number of keys");
        assert_eq!(scan.next().await, Ok(None), "it stays at the end");
        found
    };
    assert_eq!(found(admin.scan("order:*").pause(0)).await, expected);
    expected.extend(["sh*p:order:text", "sh*p:order:foreign"].map(ToOwned::to_owned));
    assert_eq!(found(admin.scan("order:*").pause(0).others(true)).await, expected);
    assert_eq!(found(admin.scan("*ther").pause(0)).await.len(), 1);
    assert_eq!(found(admin.scan("nothing*").pause(0)).await.len(), 0);
}

/// The foreign keys of a server do not end a scan.
#[tokio::test]
async fn keys_that_the_user_may_not_read_are_left_out_and_counted() {
    let server = RedisServer::start();
    let acl = ["ACL", "SETUSER", "shop", "on", ">password", "~shop:*", "~lock_*", "&*", "+@all"];
    server.tell(&acl);
    let shop = client(&server.url_as("shop:password")).await;
    let _guard = shop.lock("shop:order").acquire().await.expect("free");
    for key in ["mail:order", "mail:basket"] {
        server.tell(&["SET", key, "x"]);
    }
    let mut scan = admin(&shop).scan("*").pause(0).others(true);
    let mut found = Vec::new();
    while let Some(locks) = scan.next().await.expect("permitted") {
        found.extend(locks.into_iter().map(|lock| lock.key));
    }
    assert_eq!((found, scan.unreadable()), (vec!["shop:order".to_owned()], 2));
}

#[tokio::test]
async fn a_holder_that_was_not_read_is_not_deleted() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let admin = admin(&client);
    let permits =
        |count, leases| client.semaphore("k", 5000).permits(count).lease(LEASE * leases).acquire();
    let _last = permits(10, 300).await.expect("free");
    let (_, last) = stored(&admin, "k").await;
    let mut guards = Vec::new();
    for _ in 0..1000 {
        guards.push(permits(2, 100).await.expect("free"));
    }
    let state = admin.inspect("k").await.expect("up").expect("held");
    let counts: Vec<_> = state.holders.iter().filter_map(|holder| holder.permits).collect();
    assert!(counts.iter().all(|permits| *permits == Permits::new(2, 5000)), "{counts:?}");
    assert!(!state.is_complete);
    match admin.delete("k", &last.token).await {
        Err(LockError::Config { option: "token", problem, .. }) => {
            assert!(problem.contains("1,000"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    let taken = || server.command::<usize>(&["ZSCORE", "k", "taken"]);
    assert_eq!(taken(), 2010);
    assert_eq!(admin.delete("k", &state.holders[0].token).await, Ok(Deletion::Deleted));
    assert_eq!(taken(), 2008);
    assert!(admin.inspect("k").await.expect("up").expect("held").is_complete);
    assert_eq!(admin.delete("k", &last.token).await, Ok(Deletion::Deleted));
    assert_eq!(taken(), 1998);
}

#[tokio::test]
async fn a_token_that_is_known_in_part_only_is_refused() {
    let server = RedisServer::start();
    let admin = admin(&client(&server.url()).await);
    for (value, length) in
        [("('x'):rep(256)", None), ("('x'):rep(300)", Some(257)), ("'x\\200'", Some(4))]
    {
        let set = format!("return redis.call('set', KEYS[1], {value})");
        server.tell(&["EVAL", &set, "1", "k"]);
        let (_, holder) = stored(&admin, "k").await;
        let deletion = admin.delete("k", &holder.token).await;
        let Some(length) = length else {
            assert_eq!(deletion, Ok(Deletion::Deleted));
            continue;
        };
        assert_eq!(holder.token.as_str().len(), length);
        match deletion {
            Err(LockError::Config { option: "token", problem, .. }) => {
                assert!(problem.contains("256 bytes"), "{problem}");
            }
            other => panic!("{value}: {other:?}"),
        }
    }
}

/// Whoever has the token can release the lock.
#[tokio::test]
async fn tokens_are_not_shown_as_a_whole() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _guard = client.lock("k").acquire().await.expect("free");
    let state = admin(&client).inspect("k").await.expect("up").expect("held");
    let token = state.holders[0].token.as_str();
    assert_eq!(server.command::<String>(&["GET", "k"]), token);
    assert!(!format!("{state:?}").contains(token));
}

#[tokio::test]
async fn a_step_of_a_scan_reads_each_client_once_and_a_deletion_reads_none() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let admin = admin(&two);
    let mut guards = Vec::new();
    for n in 0..20 {
        let client = if n % 2 == 0 { &one } else { &two };
        guards.push(client.lock(format!("k{n}")).lease(LEASE * 600).acquire().await.expect("free"));
    }
    // The presence is written in the background.
    let names = || server.command::<Vec<String>>(&["KEYS", "lock_client:*"]);
    assert!(until(LEASE * 30, || names().len() == 2).await.is_some());
    let (mut scan, mut steps, before) = (admin.scan("k*").pause(0), 0, server.calls("getrange"));
    let mut found = Vec::new();
    while let Some(locks) = scan.next().await.expect("up") {
        found.extend(locks);
        steps += 1;
    }
    assert!(found.iter().all(|lock| lock.holders[0].client.process.is_some()), "{found:?}");
    // The script reads the value.
    let of_script = 1;
    let read = server.calls("getrange") - before - of_script * 20;
    assert!(read <= 2 * steps, "{read} presences in {steps} steps");
    let before = server.calls("getrange");
    let token = &found[0].holders[0].token;
    assert_eq!(admin.delete(&*found[0].key, token).await, Ok(Deletion::Deleted));
    assert_eq!(server.calls("getrange") - before, of_script);
}

#[tokio::test]
async fn losses_are_told() {
    let server = RedisServer::start();
    let (one, two) = revocable_and_operator(&server).await;
    let admin = admin(&two);
    for (key, reason) in [
        ("over", LostReason::LeaseOver),
        ("gone", LostReason::Gone),
        ("revoked", LostReason::Revoked),
    ] {
        let lock = one.lock(key).template("<key>");
        let lock = if key == "over" { lock.lease(LEASE / 2) } else { lock };
        let guard = lock.acquire().await.expect("free");
        match key {
            "gone" => server.tell(&["DEL", key]),
            "revoked" => assert_eq!(counts(&admin.revoke(key).await.expect("up")), (1, 0)),
            _ => {}
        }
        assert_eq!(guard.lost().await, reason);
    }
    let answers = admin.losses().await.expect("up").answers;
    let losses: Vec<_> = answers.into_iter().flat_map(|answer| answer.found).collect();
    let found: Vec<_> = losses.iter().map(|loss| (&*loss.key, loss.reason)).collect();
    let expected = [
        ("revoked", LostReason::Revoked),
        ("gone", LostReason::Gone),
        ("over", LostReason::LeaseOver),
    ];
    assert_eq!(found, expected, "the latest comes first");
    for loss in &losses {
        assert_eq!(loss.template.as_deref(), Some("<key>"));
        assert!(loss.held_for.is_some() && loss.at <= std::time::SystemTime::now(), "{loss:?}");
    }
}

#[tokio::test]
async fn the_memory_store_has_no_keys_to_inspect() {
    let admin = LockAdmin::new(&LockClient::memory());
    let is_refused = |error: Option<LockError>| match error {
        Some(LockError::Config { option: "url", problem, .. }) => {
            assert!(problem.contains("use a server"), "{problem}");
        }
        other => panic!("{other:?}"),
    };
    is_refused(admin.inspect("k").await.err());
    is_refused(admin.delete("k", "x").await.err());
    is_refused(admin.scan("*").next().await.err());
}
