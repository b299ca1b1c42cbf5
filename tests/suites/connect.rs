//! A client that connects to an unsuitable server gets an error that describes the problem.

use lock_runtime::{LockClient, LockError, Wait};
use lock_tests::{CapturedLog, RedisServer};

async fn refusal(server: &RedisServer) -> String {
    match LockClient::connect(server.url()).await {
        Err(LockError::Config { option: "url", problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    // Servers before 6.0 do not know this command.
    let server = RedisServer::with(&["--rename-command", "HELLO", ""]);
    let problem = refusal(&server).await;
    assert!(problem.contains("older than Redis 6.0"), "{problem}");
}

/// Without scripts, the first call could not free its key, and the next call would wait for it.
#[tokio::test]
async fn a_server_that_runs_no_scripts_is_refused() {
    for command in ["EVALSHA", "EVAL"] {
        let rename = ["--rename-command", "EVALSHA", "", "--rename-command", "SCRIPT", ""];
        let mut options = rename.to_vec();
        options[1] = command;
        let server = RedisServer::with(&options);
        let problem = refusal(&server).await;
        assert!(problem.contains(command) && problem.contains("EVALSHA"), "{problem}");
        assert!(!server.exists("k"));
    }
}

#[tokio::test]
async fn a_user_without_permission_for_scripts_is_refused() {
    for denied in [&["-evalsha"][..], &["-eval", "-script"]] {
        let server = RedisServer::start();
        let acl = ["ACL", "SETUSER", "mute", "on", ">password", "~*", "&*", "+@all"];
        server.tell(&[&acl[..], denied].concat());
        let url = server.url_as("mute:password");
        match LockClient::connect(url).await {
            Err(LockError::Denied { cause, .. }) => assert!(cause.contains("NOPERM"), "{cause}"),
            other => panic!("{other:?}"),
        }
    }
}

/// `EVAL` is needed only for scripts that the server does not know.
#[tokio::test]
async fn a_user_with_permission_only_for_loaded_scripts_can_connect() {
    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "hash", "on", ">password", "~*", "&*", "+@all", "-eval"]);
    let url = server.url_as("hash:password");
    let client = LockClient::connect(url).await.expect("the permissions suffice");
    client.lock("k").run(async {}).await.expect("free");
    assert!(!server.exists("k"));
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_reported_in_one_line() {
    use tokio::io::AsyncWriteExt;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let serve = async {
        loop {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let _ =
                socket.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
        }
    };
    let connect = LockClient::connect(format!("redis://127.0.0.1:{port}"));
    let outcome = tokio::select! {
        outcome = connect => outcome,
        () = serve => unreachable!("the server runs forever"),
    };
    match outcome {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("Redis server") && !cause.contains('\n'), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused() {
    let server = RedisServer::start_node();
    let problem = refusal(&server).await;
    assert!(problem.contains("Redis Cluster"), "{problem}");
}

#[tokio::test]
async fn a_server_that_may_evict_locks_causes_a_warning() {
    let log = CapturedLog::here();
    for (memory, policy, warned) in
        [("100mb", "allkeys-lru", 1), ("100mb", "noeviction", 0), ("0", "volatile-ttl", 0)]
    {
        let server = RedisServer::plain(&["--maxmemory", memory, "--maxmemory-policy", policy]);
        LockClient::connect(server.url()).await.expect("the client connects");
        let warnings = log.lines(&["WARN", &server.address(), "evict"]);
        assert_eq!(warnings.len(), warned, "{policy}: {warnings:?}");
        assert!(warnings.iter().all(|line| line.contains("noeviction")), "{warnings:?}");
    }
}

/// The reason for the warning of the test above.
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
async fn a_command_of_a_script_that_the_server_does_not_have_is_named() {
    for missing in ["TIME", "ZADD"] {
        let server = RedisServer::plain(&["--rename-command", missing, ""]);
        let client = LockClient::connect(server.url()).await.expect("it can run scripts");
        let lock = client.read_write("k").write().wait(Wait::Forever);
        match lock.acquire().await.map(drop) {
            Err(LockError::Config { problem, .. }) => {
                assert!(problem.contains(&format!("`{missing}`")), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_user_without_permission_for_info_can_connect() {
    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "blind", "on", ">password", "~*", "&*", "+@all", "-info"]);
    let url = server.url_as("blind:password");
    let client = LockClient::connect(url).await.expect("the client connects");
    client.lock("k").run(async {}).await.expect("free");
}

#[tokio::test]
async fn the_server_lists_connections_with_the_host_and_the_process() {
    let server = RedisServer::start();
    let client = LockClient::connect(server.url()).await.expect("up");
    client.lock("k").run(async {}).await.expect("free");
    let list: String = server.command(&["CLIENT", "LIST"]);
    let suffix = format!(":{}", std::process::id());
    let named = |line: &&str| {
        let name = line.split(' ').find_map(|field| field.strip_prefix("name="));
        name.is_some_and(|name| name.starts_with("lock-runtime:") && name.ends_with(&suffix))
    };
    let ours: Vec<&str> = list.lines().filter(named).collect();
    assert!(ours.len() >= 3, "of the caller, of the renewals, of the messages:\n{list}");
    // Redis 7.2 and newer.
    if list.contains(" lib-name=") {
        assert!(ours.iter().all(|line| line.contains(" lib-name=lock-runtime ")), "{list}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_name_connections_connects_without_a_name() {
    let server = RedisServer::start();
    let acl = ["ACL", "SETUSER", "nameless", "on", ">password", "~*", "&*", "+@all", "-client"];
    server.tell(&acl);
    let url = server.url_as("nameless:password");
    let client = LockClient::connect(url).await.expect("the permissions suffice");
    client.lock("k").run(async {}).await.expect("free");
    let list: String = server.command(&["CLIENT", "LIST"]);
    assert!(!list.contains("name=lock-runtime:"), "{list}");
}
