//! Questions about clients: clients that do not answer, missing permissions, garbage and floods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::admin::LockAdmin;
use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{CapturedLog, Helper, Proxy, RedisServer, running_time, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    LEASE, acquire_many, assert_all_held, client, client_with_lease, milliseconds, until,
};

/// Answers may be late on a busy machine. Questions return as soon as all clients have answered.
const PATIENT: Duration = LEASE.saturating_mul(20);

/// The locks that are told, and the number of clients that have not answered.
async fn told(admin: &LockAdmin) -> Result<(usize, Option<u64>), LockError> {
    let answers = admin.holds().await?;
    let found: usize = answers.answers.iter().map(|answer| answer.found.len()).sum();
    Ok((found, answers.unanswered))
}

/// Asks until the answers are as expected. Returns how often it has asked.
async fn until_told(admin: &LockAdmin, expected: (usize, Option<u64>)) -> u64 {
    let (begun, mut last, mut asked) = (Instant::now(), None, 0);
    while begun.elapsed() < LEASE * 30 {
        let answers = told(admin).await;
        asked += 1;
        if answers == Ok(expected) {
            return asked;
        }
        last = Some(answers);
        sleep(LEASE / 5).await;
    }
    panic!("{last:?} instead of {expected:?}");
}

fn holder(server: &RedisServer, key: &str) -> Helper {
    let args = ["hold", &server.url(), key, &milliseconds(LEASE * 20)];
    let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_eq!(process.line(), "held");
    process
}

/// A question with this channel for its answers.
fn question(kind: &str, channel: &str) -> String {
    format!("v=1\tquestion={kind}\tanswer={channel}\tnumber=1")
}

/// The number of messages that were published.
fn published(server: &RedisServer) -> u64 {
    server.calls("publish") + server.calls("spublish")
}

/// The processes are there, and one of them answers when it continues.
#[tokio::test]
async fn a_client_that_is_suspended_or_killed_delays_a_question_no_longer_than_its_timeout() {
    let server = RedisServer::start();
    let (one, mut two) = (holder(&server, "one"), holder(&server, "two"));
    let client = client(&server.url()).await;
    let patient = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&patient, (2, Some(0))).await;
    one.freeze();
    let hasty = patient.clone().answer_timeout(LEASE);
    until_told(&hasty, (1, Some(1))).await;
    let begun = Instant::now();
    let (_, unanswered) = told(&hasty).await.expect("up");
    assert!(unanswered >= Some(1), "one of them does not answer");
    assert!(begun.elapsed() >= LEASE && running_time(begun) < PATIENT, "{:?}", begun.elapsed());
    let revocation = hasty.revoke("one").await.expect("up");
    assert_eq!((revocation.revoked, revocation.refused, revocation.unanswered), (0, 0, Some(1)));
    one.thaw();
    until_told(&patient, (2, Some(0))).await;
    two.kill();
    until_told(&patient, (1, Some(0))).await;
}

/// Renewals and answers use the same runtime or connections as little as possible.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_questions_costs_few_answers_and_no_lock() {
    let server = RedisServer::start();
    // They are renewed three times during the flood, which keeps both cores busy.
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    let guards = acquire_many(&client, 200).await;
    let admin = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&admin, (200, Some(0))).await;
    let (begun, mut asked, before) = (Instant::now(), 0, published(&server));
    let question = question("holds", "lock_answer:flood");
    while begun.elapsed() < LEASE * 3 {
        server.flood("lock_ask:", &question, 1000);
        asked += 1000;
        // The test and the client share the cores.
        sleep(LEASE / 100).await;
    }
    let seconds = begun.elapsed().as_secs() + 2;
    // The harness publishes the questions.
    let answers = published(&server) - before - asked;
    assert!(asked >= 1000 * seconds, "{asked} questions are no flood");
    assert!(answers <= 10 * seconds, "{answers} answers to {asked} questions in {seconds} s");
    assert_all_held(&guards);
    // The limit is for each second. A question that is not answered ends after its timeout only.
    sleep(LEASE).await;
    until_told(&admin, (200, Some(0))).await;
}

/// The client has time for each question, so only its limit prevents the answers.
#[tokio::test]
async fn questions_in_quick_succession_get_few_answers() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guards = acquire_many(&client, 1).await;
    let admin = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&admin, (1, Some(0))).await;
    let (begun, before) = (Instant::now(), published(&server));
    let question = question("holds", "lock_answer:quick");
    for _ in 0..60 {
        server.flood("lock_ask:", &question, 10);
        sleep(LEASE / 50).await;
    }
    let seconds = begun.elapsed().as_secs() + 2;
    // The harness publishes the questions.
    let answers = published(&server) - before - 600;
    assert!(answers >= 10, "{answers} answers are too few");
    assert!(answers <= 10 * seconds, "{answers} answers to 600 questions in {seconds} s");
    assert_all_held(&guards);
    // The limit is for each second. A question that is not answered ends after its timeout only.
    sleep(LEASE).await;
    until_told(&admin, (1, Some(0))).await;
}

/// A client that waits until an answer is sent reads on meanwhile.
#[tokio::test]
async fn a_flood_of_questions_prevents_no_revocation() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let holder = LockClient::builder().url(proxy.url()).lease(LEASE * 30).revocable(true);
    let holder = holder.connect().await.expect("up");
    let guard = holder.lock("k").acquire().await.expect("free");
    let operator = client(&server.url()).await;
    let admin = LockAdmin::new(&operator).answer_timeout(PATIENT);
    until_told(&admin, (1, Some(0))).await;
    let channel = "lock_answer:flood";
    let question = question("holds", channel) + "\tpadding=" + &"x".repeat(7000);
    proxy.hold(channel);
    server.publish("lock_ask:", &question);
    let is_held = || proxy.triggered() == 1;
    assert!(until(LEASE, is_held).await.is_some(), "an answer is being sent");
    server.flood("lock_ask:", &question, 100);
    let revoking = tokio::spawn(async move { admin.revoke("k").await });
    assert_eq!(timeout(LEASE, guard.lost()).await, Ok(LostReason::Revoked));
    proxy.deliver();
    let revocation = revoking.await.expect("no panic").expect("up");
    assert_eq!((revocation.revoked, revocation.unanswered), (1, Some(0)));
}

#[tokio::test]
async fn garbage_is_no_question_and_no_answer() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guards = acquire_many(&client, 3).await;
    let admin = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&admin, (3, Some(0))).await;
    let long = "x".repeat(1024 * 1024);
    let before = published(&server);
    let questions = [
        "",
        "garbage",
        "\0\t\n",
        &long,
        &question("holds", "lock_answer:a b"),
        &question("revoke", "lock_answer:x"),
        &question("holds", &long),
    ];
    for text in questions {
        server.publish("lock_ask:", text);
    }
    // The channel of the answers, which is otherwise known to the clients only.
    let answers = || {
        let names = ["CHANNELS", "SHARDCHANNELS"]
            .into_iter()
            .flat_map(|kind| server.command::<Vec<String>>(&["PUBSUB", kind, "lock_answer:*"]));
        names.collect::<Vec<_>>()
    };
    let [channel] = &answers()[..] else { panic!("{:?}", answers()) };
    let texts = ["", "garbage", "v=1\tnumber=9\tfrom=x\tpage=0\tpages=1\tknown=1\nkey=a", &long];
    for text in texts {
        server.publish(channel, text);
    }
    let own = (questions.len() + texts.len()) as u64;
    let asked = until_told(&admin, (3, Some(0))).await;
    let messages = published(&server) - before - own;
    assert!(messages <= 2 * asked, "{messages} messages for {asked} questions and their answers");
    assert_all_held(&guards);
}

/// Otherwise, anybody who may ask could send messages to any channel.
#[tokio::test]
async fn answers_go_to_channels_for_answers_only() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _guards = acquire_many(&client, 3).await;
    let is_asked = || server.publish("lock_ask:", "") == 1;
    assert!(until(LEASE * 10, is_asked).await.is_some(), "it listens");
    let before = published(&server);
    for channel in ["news", "lock_client:x", "lock_ask:"] {
        server.publish("lock_ask:", &question("holds", channel));
    }
    sleep(LEASE).await;
    assert_eq!(published(&server) - before, 3, "no answer was published");
    server.publish("lock_ask:", &question("holds", "lock_answer:x"));
    let is_answered = || published(&server) - before == 5;
    assert!(until(LEASE * 10, is_answered).await.is_some(), "the client answers");
}

#[tokio::test]
async fn a_client_is_asked_again_after_a_reconnection_and_after_a_restart() {
    // The lock survives the restart: the client would notice that it is lost, and not tell it.
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let admin = LockAdmin::new(&two).answer_timeout(PATIENT);
    let guard = one.lock("k").lease(LEASE * 600).acquire().await.expect("free");
    until_told(&admin, (1, Some(0))).await;
    server.kill_all_connections();
    // A client that is not subscribed again yet is not counted.
    until_told(&admin, (1, Some(0))).await;
    server.restart();
    until_told(&admin, (1, Some(0))).await;
    drop(guard);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_error() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let admin = LockAdmin::new(&client).answer_timeout(LEASE);
    until_told(&admin, (0, Some(0))).await;
    server.freeze();
    for _ in 0..2 {
        let begun = Instant::now();
        let error = within(LEASE * 20, admin.holds()).await.expect("it ends").expect_err("frozen");
        assert!(matches!(error, LockError::Unavailable { key: None, .. }), "{error:?}");
        assert!(running_time(begun) < LEASE * 10, "{:?}", begun.elapsed());
    }
    let error = admin.holder("k").await.expect_err("frozen");
    assert!(matches!(error, LockError::Unavailable { key: Some(_), .. }), "{error:?}");
    server.thaw();
    until_told(&admin, (0, Some(0))).await;
}

/// A user with all permissions but those for these channels.
fn user(server: &RedisServer, name: &str, channels: &[&str]) -> String {
    let acl = ["ACL", "SETUSER", name, "on", ">password", "~*", "+@all", "resetchannels"];
    server.tell(&[&acl[..], channels].concat());
    server.url_as(&format!("{name}:password"))
}

#[tokio::test]
async fn without_permissions_for_questions_everything_else_works() {
    let _alone = crate::support::MISSING_PERMISSION.lock().await;
    let (log, server) = (CapturedLog::here(), RedisServer::start());
    let asking = client(&server.url()).await;
    let admin = LockAdmin::new(&asking).answer_timeout(LEASE);
    let unheard = "no permission to subscribe to questions";
    let mute = "no permission to publish answers";
    for (name, channels, unanswered, said) in [
        ("unheard", vec!["&lock_client:*", "&lock_answer:*"], 0, unheard),
        ("mute", vec!["&lock_client:*", "&lock_ask:*"], 1, mute),
    ] {
        let url = user(&server, name, &channels);
        let client = client(&url).await;
        let guard = client.lock(name).acquire().await.expect("free");
        until_told(&admin, (0, Some(unanswered))).await;
        sleep(LEASE * 3 / 2).await;
        assert!(guard.is_held(), "{name}: the lease is renewed");
        let lock = client.lock(name).wait(LEASE * 10);
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        guard.release().await.expect("held");
        waiting.await.expect("no panic").expect("its turn");
        let lines = || log.lines(&["INFO", said]).len();
        assert!(until(LEASE * 5, || lines() == 1).await.is_some(), "{name}: once: {}", lines());
        client.shutdown().await.expect("idle");
    }
    assert!(log.lines(&["WARN", "lock_ask"]).is_empty());
}

#[tokio::test]
async fn asking_without_a_permission_is_an_error_that_says_which() {
    let _alone = crate::support::MISSING_PERMISSION.lock().await;
    let server = RedisServer::start();
    for (name, channels) in [
        ("cannot-ask", vec!["&lock_client:*", "&lock_answer:*"]),
        ("cannot-hear", vec!["&lock_client:*", "&lock_ask:*"]),
    ] {
        let client = client(&user(&server, name, &channels)).await;
        // The second one too, although the server is not asked again soon.
        for _ in 0..2 {
            let admin = LockAdmin::new(&client).answer_timeout(LEASE);
            match admin.holds().await {
                Err(LockError::Denied { cause, .. }) => {
                    assert!(cause.contains("channel"), "{cause}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let guard = client.lock(name).acquire().await.expect("free");
        guard.release().await.expect("held");
    }
}

/// The channel is that of the namespace, so an operator can give the permission for one of them.
#[tokio::test]
async fn a_permission_for_one_namespace_is_enough() {
    let _alone = crate::support::MISSING_PERMISSION.lock().await;
    let server = RedisServer::start();
    let channels = ["&lock_client:*", "&lock_ask:shop", "&lock_answer:*"];
    let url = user(&server, "shop", &channels);
    let in_namespace = async |name: &str| {
        let builder = LockClient::builder().url(&url).namespace(name).lease(LEASE);
        builder.connect().await.expect("up")
    };
    let shop = in_namespace("shop").await;
    let _held = shop.lock("k").acquire().await.expect("free");
    let admin = LockAdmin::new(&shop).answer_timeout(PATIENT);
    until_told(&admin, (1, Some(0))).await;
    let mail = in_namespace("mail").await;
    let denied = LockAdmin::new(&mail).holds().await;
    assert!(matches!(denied, Err(LockError::Denied { .. })), "{denied:?}");
}

/// The channel of the answers is known to everybody who sees a question.
#[tokio::test]
async fn a_flood_of_answers_delays_neither_the_question_nor_other_tasks() {
    let server = RedisServer::start();
    let silent = holder(&server, "silent");
    let client = client(&server.url()).await;
    let admin = LockAdmin::new(&client).answer_timeout(LEASE);
    until_told(&admin, (1, Some(0))).await;
    silent.freeze();
    let names = ["CHANNELS", "SHARDCHANNELS"].map(|kind| ["PUBSUB", kind, "lock_answer:*"]);
    let names = names.into_iter().flat_map(|words| server.command::<Vec<String>>(&words));
    let channels: Vec<String> = names.collect();
    let [channel] = &channels[..] else { panic!("{channels:?}") };
    let page = "v=1\tnumber=2\tfrom=x\tpage=0\tpages=16\tknown=1\n".to_owned();
    let texts = [page + &"a=\t".repeat(20_000), "a=\t".repeat(300_000)];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for text in &texts {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    server.flood(channel, text, 10);
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let admin = &admin;
        let asking = std::thread::Builder::new().spawn_scoped(scope, move || {
            runtime.block_on(async {
                let polls = Arc::new(AtomicUsize::new(0));
                let counted = Arc::clone(&polls);
                let other = tokio::spawn(async move {
                    loop {
                        counted.fetch_add(1, Ordering::SeqCst);
                        sleep(LEASE / 50).await;
                    }
                });
                let begun = Instant::now();
                let answers = told(admin).await;
                let took = running_time(begun);
                other.abort();
                (answers, took, polls.load(Ordering::SeqCst))
            })
        });
        let (answers, took, polls) = asking.expect("a thread").join().expect("no panic");
        is_over.store(true, Ordering::SeqCst);
        // The server may close a connection whose reader is too slow.
        let is_told =
            matches!(answers, Ok((_, Some(1..) | None)) | Err(LockError::Unavailable { .. }));
        assert!(is_told, "{answers:?}");
        assert!(took < LEASE * 4, "{took:?}");
        assert!(polls > 5, "the other task was polled {polls} times in {took:?}");
    });
    silent.thaw();
}

#[tokio::test]
async fn an_admin_that_is_dropped_leaves_no_subscription() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let admin = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&admin, (0, Some(0))).await;
    assert_eq!(server.channels("lock_answer:*").len(), 1);
    drop(admin);
    let is_gone = || server.channels("lock_answer:*").is_empty();
    assert!(until(LEASE * 10, is_gone).await.is_some(), "{:?}", server.channels("lock_answer:*"));
}

/// A client answers ten in a second, so the others wait.
#[tokio::test]
async fn many_questions_of_one_admin_are_all_answered() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _held = client.lock("k").acquire().await.expect("free");
    let admin = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&admin, (1, Some(0))).await;
    for n in 0..15 {
        assert_eq!(told(&admin).await, Ok((1, Some(0))), "{n}");
    }
}

/// The thread that receives questions does not depend on the executor of the program.
#[tokio::test]
async fn a_client_whose_executor_is_blocked_answers() {
    let server = RedisServer::start();
    let url = server.url();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let (end, is_over) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let client = client_with_lease(&url, LEASE * 20).await;
            let _guard = client.lock("k").acquire().await.expect("free");
            ready.send(()).expect("awaited");
            // Blocks the executor.
            let _ = is_over.recv();
        });
    });
    is_ready.await.expect("it holds the lock");
    let client = client(&server.url()).await;
    let admin = LockAdmin::new(&client).answer_timeout(PATIENT);
    until_told(&admin, (1, Some(0))).await;
    drop(end);
    thread.join().expect("no panic");
}
