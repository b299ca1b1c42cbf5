//! What is wrong with a server is said when a client connects, in words.

use lock_runtime::{LockClient, LockError};
use lock_tests::{Log, RedisServer};

async fn refusal(server: &RedisServer) -> String {
    match LockClient::connect(server.url()).await {
        Err(LockError::Config { option: "url", problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    // As one before 6.0 answers.
    let server = RedisServer::with(&["--rename-command", "HELLO", ""]);
    let problem = refusal(&server).await;
    assert!(problem.contains("older than Redis 6.0"), "{problem}");
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    let problem = refusal(&server).await;
    assert!(problem.contains("Redis Cluster"), "{problem}");
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_warned_about() {
    let log = Log::here();
    for (memory, policy, warned) in
        [("100mb", "allkeys-lru", 1), ("100mb", "noeviction", 0), ("0", "volatile-ttl", 0)]
    {
        let server = RedisServer::with(&["--maxmemory", memory, "--maxmemory-policy", policy]);
        LockClient::connect(server.url()).await.expect("it works all the same");
        let warnings = log.lines(&["WARN", &format!(":{}", server.port()), "evict"]);
        assert_eq!(warnings.len(), warned, "{policy}: {warnings:?}");
        assert!(warnings.iter().all(|line| line.contains("noeviction")), "{warnings:?}");
    }
}

/// Why it is warned about.
#[tokio::test]
async fn a_server_that_evicts_loses_held_locks() {
    let server = RedisServer::with(&["--maxmemory-policy", "allkeys-random"]);
    let client = LockClient::connect(server.url()).await.expect("up");
    let _guard = client.lock("k").acquire().await.expect("free");
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let _: redis::RedisResult<()> =
        redis::cmd("SET").arg("other").arg("value").query(&mut server.connection());
    assert!(!server.exists("k"));
}

#[tokio::test]
async fn a_user_who_may_not_look_connects_all_the_same() {
    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "blind", "on", ">password", "~*", "&*", "+@all", "-info"]);
    let url = format!("redis://blind:password@127.0.0.1:{}", server.port());
    let client = LockClient::connect(url).await.expect("it works all the same");
    client.lock("k").run(async {}).await.expect("free");
}
