//! `ls`, `who`, `wait`, `clients` and `revoke`.

use std::time::Duration;

use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;
use lock_tests::RedisServer;
use lock_tests::support::{LEASE, client, milliseconds};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RunningProcess, answered, lease, lockctl, outcome, wait_until};

fn json(server: &RedisServer, words: &[&str]) -> Value {
    let asked = answered(&server.url(), &[words, &["-o", "json"]].concat());
    serde_json::from_str(&asked.output).expect("JSON")
}

/// A command that holds a lock until its input ends.
fn holder(server: &RedisServer, options: &[&str], key: &str) -> RunningProcess {
    let words = [&["run"], options, &[key, "sh", "-c", "echo held; read line"]].concat();
    let mut holder = RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(holder.line(), "held");
    holder
}

/// The words between the columns, row by row.
fn rows(output: &str) -> Vec<Vec<&str>> {
    let row =
        |line: &'_ str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).count();
    assert!(output.lines().all(|line| row(line) > 0));
    let cells =
        |line| str::split(line, "  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    output.lines().map(cells).collect()
}

/// A client that holds `order:7` and `order:8`, and whose call waits for the first.
async fn shop(server: &RedisServer) -> (LockClient, impl Drop) {
    let client = client(&server.url()).await;
    let one = client.lock("order:7").lease(LEASE * 60).acquire().await.expect("free");
    one.fencing_token().await.expect("held");
    let two = client.lock("order:8").lease(LEASE * 30).acquire().await.expect("free");
    let waiting = client.lock("order:7").wait(LEASE * 60);
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    wait_until("it waits", || client.stats().queued == 1);
    (client, HeldLocks(vec![one, two], waiting))
}

/// Locks that are held, and a call that waits.
struct HeldLocks<W>(
    #[expect(dead_code, reason = "held")] Vec<lock_runtime::LockGuard>,
    tokio::task::JoinHandle<W>,
);

impl<W> Drop for HeldLocks<W> {
    fn drop(&mut self) {
        self.1.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ls_lists_the_locks_of_all_clients() {
    let server = RedisServer::start();
    let (_client, _held) = shop(&server).await;
    let job = holder(&server, &[], "job");
    let listed = answered(&server.url(), &["ls"]).output;
    let rows = rows(&listed);
    assert_eq!(rows[0], ["KEY", "HELD", "LEFT", "WAITING", "HOLDER", "FUNCTION"]);
    let keys: Vec<_> = rows.iter().skip(1).map(|row| (row[0], row[3])).collect();
    assert_eq!(keys, [("job", "0"), ("order:7", "1"), ("order:8", "0")]);
    assert!(rows[1][4].contains(&format!("(pid {}, lockctl ", job.id())), "{listed}");

    let keys = |words: &[&str]| -> Vec<String> {
        let found = json(&server, &[&["ls"], words].concat());
        assert_eq!((&found["v"], &found["unanswered"]), (&1.into(), &0.into()));
        let locks = found["locks"].as_array().expect("a list").clone();
        locks.iter().map(|lock| lock["key"].as_str().expect("a text").to_owned()).collect()
    };
    assert_eq!(keys(&["order:*"]), ["order:7", "order:8"]);
    assert_eq!(keys(&["?ob"]), ["job"]);
    assert_eq!(keys(&["--waiting"]), ["order:7"]);
    assert_eq!(keys(&["--sort", "left", "order:*"]), ["order:8", "order:7"]);
    assert_eq!(keys(&["--sort", "waiting", "--limit", "1"]), ["order:7"]);
    assert_eq!(keys(&["--sort", "age"]), ["order:7", "order:8", "job"]);

    let found = json(&server, &["ls", "order:7"]);
    let lock = &found["locks"][0];
    let pid = u64::from(std::process::id());
    assert_eq!((lock["client"]["pid"].as_u64(), lock["waiting"].as_u64()), (Some(pid), Some(1)));
    assert!(lock["held_seconds"].is_f64() && lock["left_seconds"].is_f64(), "{lock}");
    assert_eq!(lock["renewed"], false);
    assert!(lock["fencing_token"].is_u64());
    assert!(found["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_not_part_of_the_keys() {
    let server = RedisServer::start();
    let _job = holder(&server, &["--namespace", "shop"], "job");
    let found = json(&server, &["ls", "--namespace", "shop"]);
    assert_eq!(found["locks"][0]["key"], "job");
    let none: Value =
        serde_json::from_str(&outcome(&server.url(), &["ls", "-o", "json"]).output).expect("JSON");
    assert_eq!(none["locks"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_client_that_does_not_answer_is_missed() {
    let server = RedisServer::start();
    let job = holder(&server, &[], "job");
    job.send(Signal::STOP);
    let asked = outcome(&server.url(), &["ls", "--answer-timeout", &milliseconds_of(LEASE / 4)]);
    job.send(Signal::CONT);
    assert_eq!(asked.code, Some(0));
    assert!(asked.errors.matches("one client has not answered").count() == 1, "{asked:?}");
    assert_eq!(rows(&asked.output).len(), 1, "the header alone: {asked:?}");
}

#[test]
fn programs_see_that_a_client_does_not_answer() {
    let server = RedisServer::start();
    let job = holder(&server, &[], "job");
    job.send(Signal::STOP);
    let timeout = milliseconds_of(LEASE / 4);
    let asked = |format: &str, words: &[&str]| -> Value {
        let words = [words, &["-q", "-o", format, "--answer-timeout", &timeout]].concat();
        let text = outcome(&server.url(), &words).output;
        serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
    };
    for format in ["json", "ndjson"] {
        for words in [&["ls"][..], &["clients"], &["who", "job"]] {
            let last = asked(format, words);
            assert_eq!((&last["v"], &last["unanswered"]), (&1.into(), &1.into()), "{words:?}");
        }
    }
    job.send(Signal::CONT);
    let text = answered(&server.url(), &["ls", "-o", "ndjson"]).output;
    assert!(text.lines().count() == 1 && !text.contains("unanswered"), "{text}");
}

/// More questions than a client answers, for a part of the time for which `ls` waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_asked_too_often_is_asked_again() {
    let server = RedisServer::start();
    let _job = holder(&server, &[], "job");
    let other = client(&server.url()).await;
    let flood = async |admin: LockAdmin| {
        // Nobody waits for the answers.
        let admin = admin.answer_timeout(Duration::from_millis(10));
        loop {
            admin.clients().await.expect("the server is up");
        }
    };
    let mut floods: tokio::task::JoinSet<()> = tokio::task::JoinSet::new();
    for _ in 0..12 {
        floods.spawn(flood(LockAdmin::new(&other)));
    }
    wait_until("the job is over its limit", || {
        let words = ["clients", "-o", "json", "--answer-timeout", "20ms"];
        outcome(&server.url(), &words).errors.contains("not answered")
    });
    let words = ["ls", "job", "--answer-timeout", "10s"];
    let asking = RunningProcess::start(lockctl(&server.url(), &words));
    tokio::time::sleep(Duration::from_secs(1)).await;
    floods.shutdown().await;
    let asked = asking.end();
    assert_eq!((asked.code, &*asked.errors), (Some(0), ""), "{asked:?}");
    assert!(asked.output.contains("job"), "{asked:?}");
}

fn milliseconds_of(duration: std::time::Duration) -> String {
    milliseconds(duration) + "ms"
}

#[test]
fn who_names_a_holder_that_has_died() {
    let server = RedisServer::start();
    let mut job = holder(&server, &["--lease", "60s"], "job");
    let found = json(&server, &["who", "job"]);
    let holder = &found["holders"][0];
    let pid = u64::try_from(job.id()).expect("a process id");
    assert_eq!(
        (holder["answers"].as_bool(), holder["client"]["pid"].as_u64()),
        (Some(true), Some(pid))
    );
    assert!(holder["fencing_token"].is_u64(), "{holder}");
    job.send(Signal::KILL);
    job.close_input();
    drop(job);
    wait_until("its connections are closed", || server.channels("lock_client:*").is_empty());
    let found = json(&server, &["who", "job"]);
    let holder = &found["holders"][0];
    assert_eq!(found["held"], true);
    assert_eq!(
        (holder["answers"].as_bool(), holder["client"]["pid"].as_u64()),
        (Some(false), Some(pid))
    );
    let table = answered(&server.url(), &["who", "job"]).output;
    assert!(table.contains("does not answer: it has died"), "{table}");
}

#[test]
fn who_of_a_free_lock_and_of_one_of_another_library() {
    let server = RedisServer::start();
    let found = json(&server, &["who", "job"]);
    assert_eq!(
        (found["held"].as_bool(), found["holders"].as_array().map(Vec::len)),
        (Some(false), Some(0))
    );
    assert_eq!(rows(&answered(&server.url(), &["who", "job"]).output)[1], ["state", "not held"]);
    server.tell(&["RPUSH", "list", "a"]);
    assert_eq!(json(&server, &["who", "list"])["held"], false);
    server.tell(&["SET", "job", "something"]);
    let table = answered(&server.url(), &["who", "job"]).output;
    assert!(table.contains("a client that does not say who it is"), "{table}");
    assert!(table.contains("never expires") && table.contains("other_token"), "{table}");
    assert!(server.exists("job"));
}

/// As people copy it from an error or from the dashboard.
#[test]
fn a_key_with_its_namespace_is_understood() {
    let server = RedisServer::start();
    let _job = holder(&server, &["--namespace", "shop"], "order:7");
    let asked =
        |words: &[&str]| outcome(&server.url(), &[words, &["--namespace", "shop"]].concat());
    for key in ["order:7", "shop:order:7"] {
        let shown = asked(&["who", key]);
        assert!(shown.output.contains("held by") || shown.output.contains("holder"), "{shown:?}");
        assert_eq!(shown.errors.contains("begins with the namespace"), key.starts_with("shop"));
    }
    assert_eq!(asked(&["wait", "shop:order:7", "-w", "0s"]).code, Some(75));
    assert_eq!(asked(&["delete", "shop:order:7", "--token", "x", "--yes"]).code, Some(75));
    assert!(
        asked(&["delete", "shop:order:7", "--token", "x", "--yes"])
            .errors
            .contains("another token")
    );
    // A lock with such a key comes first.
    let _strange = holder(&server, &["--namespace", "shop"], "shop:order:7");
    assert_eq!(asked(&["who", "shop:order:7"]).errors, "");
    assert!(asked(&["revoke", "shop:order:7"]).code == Some(0));
}

#[test]
fn what_is_not_found_says_where_to_look() {
    let server = RedisServer::start();
    let _job = holder(&server, &["--namespace", "shop"], "order:7");
    let told = "all clients that can be asked have a namespace; in use: \"shop\"";
    let mut empty = outcome(&server.url(), &["ls"]);
    wait_until("the holder listens", || {
        empty = outcome(&server.url(), &["ls"]);
        empty.errors.contains(told)
    });
    assert!(empty.output.contains("No locks") && empty.output.contains("--namespace"), "{empty:?}");
    let elsewhere = outcome(&server.url(), &["who", "--namespace", "shpo", "order:7"]);
    let told = "no client that can be asked has the namespace \"shpo\"; in use: \"shop\"";
    assert!(elsewhere.errors.contains(told), "{elsewhere:?}");
    let none = answered(&server.url(), &["ls", "--namespace", "shop", "x*"]).output;
    assert_eq!(none, "No locks match.\n");
    let pattern = outcome(&server.url(), &["who", "--namespace", "shop", "order:*"]);
    assert!(pattern.code == Some(64) && pattern.errors.contains("lockctl ls"), "{pattern:?}");
    let code =
        |key| outcome(&server.url(), &["who", "--namespace", "shop", "--exit-code", key]).code;
    assert_eq!((code("order:7"), code("order:8")), (Some(0), Some(1)));
    let free = answered(&server.url(), &["who", "--namespace", "shop", "order:8"]).output;
    assert_eq!(rows(&free)[2], ["waiting", "nobody"]);
}

#[test]
fn wait_ends_when_the_lock_is_free() {
    let server = RedisServer::start();
    assert_eq!(outcome(&server.url(), &["wait", "job"]).code, Some(0));
    let job = holder(&server, &[], "job");
    let held = outcome(&server.url(), &["wait", "job", "-w", &milliseconds_of(LEASE / 10)]);
    assert_eq!(held.code, Some(75));
    assert!(held.errors.contains("is still held: held by"), "{held:?}");
    let quiet = outcome(&server.url(), &["wait", "-q", "job", "-w", "0s"]);
    assert_eq!((quiet.code, &*quiet.errors), (Some(75), ""));
    let mut waiting = RunningProcess::start(lockctl(&server.url(), &["-v", "wait", "job"]));
    assert!(waiting.error_line().contains("waiting for \"job\""));
    drop(job.end());
    assert_eq!(waiting.end().code, Some(0));
}

#[test]
fn wait_survives_an_outage() {
    let mut server = RedisServer::start();
    server.tell(&["SET", "job", "something"]);
    let waiting_for = |server: &RedisServer, words: &[&str]| {
        let words = [&["-v", "wait", "job"], words].concat();
        let mut waiting = RunningProcess::start(lockctl(&server.url(), &words));
        assert!(waiting.error_line().contains("waiting for \"job\""));
        waiting
    };
    let mut waiting = waiting_for(&server, &[]);
    // It waits for longer than the server needs to end.
    let limited = waiting_for(&server, &["-w", "3s"]);
    server.kill();
    let warning = waiting.error_line();
    assert!(warning.contains("unavailable") && warning.contains("asked again"), "{warning}");
    let ended = limited.end();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    // The key is lost.
    server.restart();
    assert_eq!(waiting.end().code, Some(0));
}

#[test]
fn revoke_ends_a_run_and_refuses_where_the_holder_does() {
    let server = RedisServer::start();
    assert_eq!(answered(&server.url(), &["revoke", "job"]).output, "Nobody holds the lock.\n");
    let stubborn = holder(&server, &["--on-lost", "ignore"], "job");
    let refused = outcome(&server.url(), &["revoke", "job"]);
    assert_eq!(refused.code, Some(75));
    assert!(refused.errors.contains("`--on-lost ignore`"), "{refused:?}");
    let quiet = outcome(&server.url(), &["revoke", "-q", "job"]);
    assert_eq!((quiet.code, &*quiet.errors), (Some(75), ""));
    assert!(server.exists("job"));
    drop(stubborn.end());
    let job = holder(&server, &[], "job");
    assert_eq!(
        answered(&server.url(), &["revoke", "job"]).output,
        "The holder gives the lock up.\n"
    );
    let ended = job.end();
    assert_eq!(ended.code, Some(79), "{ended:?}");
    assert!(!server.exists("job"));
    server.tell(&["SET", "job", "something"]);
    let foreign = outcome(&server.url(), &["revoke", "job"]);
    assert_eq!(foreign.code, Some(75), "{foreign:?}");
    assert!(server.exists("job"));
}

#[test]
fn a_revocation_tells_that_a_silent_client_may_keep_the_lock() {
    let server = RedisServer::start();
    let silent = holder(&server, &[], "other");
    silent.send(Signal::STOP);
    let job = holder(&server, &[], "job");
    let timeout = milliseconds_of(LEASE / 4);
    let revoked = outcome(&server.url(), &["revoke", "job", "--answer-timeout", &timeout]);
    silent.send(Signal::CONT);
    assert_eq!((revoked.code, &*revoked.output), (Some(0), "The holder gives the lock up.\n"));
    assert!(revoked.errors.contains("clients without an answer: 1"), "{revoked:?}");
    assert_eq!(job.end().code, Some(79));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_listed_without_lockctl_itself() {
    let server = RedisServer::start();
    let (_client, _held) = shop(&server).await;
    let _job = holder(&server, &["--lease", &lease()], "job");
    let found = json(&server, &["clients"]);
    let clients = found["clients"].as_array().expect("a list");
    assert_eq!(clients.len(), 2, "{found}");
    let own =
        clients.iter().find(|client| client["client"]["service"].is_null()).expect("this process");
    assert_eq!((own["held"].as_u64(), own["queued"].as_u64()), (Some(2), Some(1)));
    assert_eq!((own["revocable"].as_bool(), own["store_up"].as_bool()), (Some(false), Some(true)));
    let job =
        clients.iter().find(|client| client["client"]["service"] == "lockctl").expect("the run");
    assert_eq!((job["held"].as_u64(), job["revocable"].as_bool()), (Some(1), Some(true)));
    assert!(job["client"]["started"].as_str().is_some_and(|at| at.ends_with('Z')), "{job}");
    assert_eq!(rows(&answered(&server.url(), &["clients"]).output).len(), 3);
}

#[test]
fn a_user_who_may_not_ask_sees_what_the_store_knows() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let _job = holder(&server, &[], "job");
    let rights = ["~*", "resetchannels", "+@all", "-scan", "-keys", "-@pubsub"];
    server.tell(&[&["ACL", "SETUSER", "guest", "on", ">secret"], &rights[..]].concat());
    let url = server.url_as("guest:secret");
    for words in [&["ls"][..], &["clients"], &["revoke", "job"]] {
        let denied = outcome(&url, words);
        assert_eq!((denied.code, &*denied.output), (Some(77), ""), "{words:?}: {denied:?}");
        assert!(denied.errors.contains("denied access"), "{denied:?}");
    }
    let who = outcome(&url, &["who", "job"]);
    assert_eq!(who.code, Some(0));
    assert!(who.errors.contains("the clients cannot be asked"), "{who:?}");
    assert!(who.output.contains("lockctl"), "{who:?}");
    assert_eq!(outcome(&url, &["wait", "job", "-w", "0s"]).code, Some(75));
    assert!(server.exists("job"));
}
