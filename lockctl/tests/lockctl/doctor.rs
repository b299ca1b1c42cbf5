//! `doctor`.

use lock_tests::{Authority, Cluster, RedisServer, Sentinels, Validity};
use serde_json::Value;

use crate::support::{FinishedRun, outcome};

fn doctor(url: &str) -> (FinishedRun, Vec<Value>) {
    let ended = outcome(url, &["doctor", "--namespace", "shop", "-o", "json"]);
    let found: Value = serde_json::from_str(&ended.output).expect("JSON");
    let findings = found["findings"].as_array().expect("a list").clone();
    (ended, findings)
}

/// The result of a check.
fn result<'a>(findings: &'a [Value], check: &str) -> &'a str {
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.and_then(|finding| finding["result"].as_str()).expect("it was made")
}

#[test]
fn doctor_judges_a_server_and_leaves_nothing() {
    let server = RedisServer::with(&["--appendonly", "yes"]);
    let (ended, findings) = doctor(&server.plain_url());
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""));
    for check in ["connect", "version", "role", "persistence", "eviction", "clock", "rights"] {
        assert_eq!(result(&findings, check), "ok", "{findings:?}");
    }
    for check in ["lock", "messages"] {
        assert_eq!(result(&findings, check), "ok", "{findings:?}");
    }
    assert_eq!(server.key_count(), 1, "only the fence is left: {:?}", server.keys());
    assert_eq!(doctor(&server.plain_url()).0.code, Some(0));
    assert_eq!(server.key_count(), 1, "the same one: {:?}", server.keys());
    let table = outcome(&server.plain_url(), &["doctor"]).output;
    assert!(table.starts_with("CHECK") && table.lines().count() > 9, "{table}");
}

#[test]
fn doctor_stays_in_the_database_of_the_url() {
    let server = RedisServer::start();
    for _ in 0..2 {
        let (ended, findings) = doctor(&format!("{}/3", server.plain_url()));
        assert_eq!((ended.code, result(&findings, "rights")), (Some(0), "ok"), "{findings:?}");
        let script = "redis.call('SELECT', 3) return redis.call('KEYS', '*')";
        let mut keys = server.command::<Vec<String>>(&["EVAL", script, "0"]);
        keys.retain(|key| !key.starts_with("lock_client:"));
        assert_eq!((keys.len(), server.key_count()), (1, 0), "only the fence is left: {keys:?}");
    }
}

#[test]
fn doctor_fails_on_a_server_that_may_lose_locks() {
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = RedisServer::with(&options);
    let (ended, findings) = doctor(&server.plain_url());
    assert_eq!(ended.code, Some(1), "{findings:?}");
    assert_eq!((result(&findings, "eviction"), result(&findings, "persistence")), ("fail", "warn"));
    let change = findings.iter().find(|finding| finding["check"] == "eviction");
    let change = change.and_then(|finding| finding["change"].as_str()).expect("a text");
    assert!(change.contains("noeviction"), "{change}");
}

#[test]
fn doctor_names_the_rights_that_are_missing() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let page = include_str!("../../../docs/redis.md");
    let line = page.split("ACL SETUSER locker on >password").nth(1).expect("the line");
    let line = line.split("```").next().expect("its end").replace('\\', "");
    let rights: Vec<&str> = line.split_whitespace().collect();
    server.tell(&[&["ACL", "SETUSER", "locker", "on", ">secret"], &rights[..]].concat());
    let url = server.url_as("locker:secret");
    let (ended, findings) = doctor(&url);
    assert_eq!((ended.code, result(&findings, "rights")), (Some(0), "ok"), "{findings:?}");
    server.tell(&["ACL", "SETUSER", "locker", "-hset", "-pubsub|numsub"]);
    let (ended, findings) = doctor(&url);
    assert_eq!(ended.code, Some(0), "{findings:?}");
    let found = findings.iter().filter(|finding| finding["check"] == "rights");
    let found: Vec<_> = found.map(|it| (it["result"].as_str(), it["found"].as_str())).collect();
    let missing = |name| (Some("warn"), Some(name));
    let expected = ["no permission for hset", "no permission for pubsub|numsub"].map(missing);
    assert_eq!(found, expected);
    server.tell(&["ACL", "SETUSER", "locker", "-pexpire"]);
    let (ended, findings) = doctor(&url);
    assert_eq!(ended.code, Some(1), "{findings:?}");
}

/// The addresses that a check names, with its results.
fn results_of(findings: &[Value], check: &str) -> Vec<(String, String)> {
    let of_check = findings.iter().filter(|finding| finding["check"] == check);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_check.map(|finding| (text(&finding["server"]), text(&finding["result"]))).collect()
}

/// The addresses of servers on these ports, with the same result each, in order.
fn with_result(ports: impl IntoIterator<Item = u16>, result: &str) -> Vec<(String, String)> {
    let address = |port| (format!("127.0.0.1:{port}"), result.to_owned());
    let mut all: Vec<_> = ports.into_iter().map(address).collect();
    all.sort();
    all
}

fn sorted(mut results: Vec<(String, String)>) -> Vec<(String, String)> {
    results.sort();
    results
}

#[test]
fn doctor_checks_each_node_of_a_cluster() {
    let cluster = Cluster::with(&["--maxmemory-policy", "noeviction"]);
    let ports = || (0..6).map(|index| cluster.node(index).port());
    let (ended, findings) = doctor(&cluster.url());
    assert_eq!(ended.code, Some(0), "{findings:?}");
    for check in ["version", "role", "eviction", "clock", "rights"] {
        assert_eq!(
            sorted(results_of(&findings, check)),
            with_result(ports(), "ok"),
            "{findings:?}"
        );
    }
    cluster.node(4).tell(&[
        "CONFIG",
        "SET",
        "maxmemory",
        "100mb",
        "maxmemory-policy",
        "allkeys-lru",
    ]);
    let (ended, findings) = doctor(&cluster.url());
    assert_eq!(ended.code, Some(1), "a replica may become the master: {findings:?}");
    let failed: Vec<_> = findings.iter().filter(|finding| finding["result"] == "fail").collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    let address = format!("127.0.0.1:{}", cluster.node(4).port());
    assert_eq!((&failed[0]["check"], &failed[0]["server"]), (&"eviction".into(), &address.into()));
}

#[test]
fn doctor_checks_each_sentinel_and_the_servers_that_they_name() {
    let sentinels = Sentinels::steady(&[]);
    let (ended, findings) = doctor(&sentinels.url());
    assert_eq!(ended.code, Some(0), "{findings:?}");
    assert_eq!(results_of(&findings, "sentinel").len(), 3, "{findings:?}");
    let ports = || (0..3).map(|index| sentinels.server(index).port());
    for check in ["version", "role", "eviction", "clock", "rights"] {
        assert_eq!(
            sorted(results_of(&findings, check)),
            with_result(ports(), "ok"),
            "{findings:?}"
        );
    }
    let table = outcome(&sentinels.url(), &["doctor"]).output;
    assert!(table.starts_with("SERVER"), "{table}");
    // The other two sentinels are enough for clients.
    let missing = sentinels.sentinel(0).address();
    sentinels.sentinel(0).kill();
    let (ended, findings) = doctor(&sentinels.url());
    assert_eq!(ended.code, Some(1), "{findings:?}");
    let failed: Vec<_> = findings.iter().filter(|finding| finding["result"] == "fail").collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0]["server"], missing);
}

#[test]
fn doctor_checks_a_server_with_tls() {
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"], Validity::Now);
    let server = RedisServer::with_tls(&authority, &identity, &[]);
    let (ended, findings) = doctor(&server.trusted_tls_url());
    assert_eq!(ended.code, Some(0), "{findings:?}");
    for check in ["version", "role", "eviction", "clock", "rights"] {
        assert_eq!(result(&findings, check), "ok", "{findings:?}");
    }
    // A certificate of another name is only known to the library.
    let url = format!("{}&tls_server_name=localhost", server.trusted_tls_url());
    let (ended, findings) = doctor(&url);
    assert_eq!((ended.code, result(&findings, "server")), (Some(0), "warn"), "{findings:?}");
    assert!(ended.output.contains("tls_server_name"), "{ended:?}");
}

#[test]
fn doctor_says_that_a_store_without_a_server_is_not_looked_at() {
    let (ended, findings) = doctor("memory:");
    assert_eq!((ended.code, result(&findings, "server")), (Some(0), "warn"), "{findings:?}");
    assert_eq!(result(&findings, "lock"), "ok", "{findings:?}");
}

#[test]
fn doctor_knows_the_rights_of_each_format() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let rights = ["~*", "&*", "+@all", "-hexists", "-select"];
    server.tell(&[&["ACL", "SETUSER", "locker", "on", ">secret"], &rights[..]].concat());
    let url = server.url_as("locker:secret");
    let missing = |format: &str| {
        let words = ["doctor", "--namespace", "shop", "--format", format, "-o", "json"];
        let ended = outcome(&url, &words);
        let found: Value = serde_json::from_str(&ended.output).expect("JSON");
        let of_rights = found["findings"].as_array().expect("a list").iter();
        let of_rights = of_rights.filter(|finding| finding["check"] == "rights");
        let found = of_rights.map(|finding| finding["found"].as_str().unwrap_or_default());
        (ended.code, found.map(ToOwned::to_owned).collect::<Vec<_>>())
    };
    let select = "no permission for select".to_owned();
    let hexists = "no permission for hexists".to_owned();
    assert_eq!(missing("token"), (Some(0), vec![select.clone()]));
    assert_eq!(missing("timestamp"), (Some(0), vec![select.clone()]));
    let (code, found) = missing("redisson");
    assert_eq!((code, found), (Some(1), vec![hexists, select]));
}

#[test]
fn doctor_of_a_server_that_is_down_is_a_table_with_a_failure() {
    let server = RedisServer::start();
    let url = server.plain_url();
    drop(server);
    let (ended, findings) = doctor(&url);
    assert_eq!((ended.code, &*ended.errors), (Some(1), ""), "{findings:?}");
    assert_eq!(result(&findings, "connect"), "fail", "{findings:?}");
    let table = outcome(&url, &["doctor"]);
    assert_eq!(table.code, Some(1), "{table:?}");
    assert!(table.output.lines().any(|line| line.starts_with("connect  fail ")), "{table:?}");
}

#[test]
fn doctor_of_a_user_without_scripts_names_the_missing_rights() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let rights = ["~*", "&*", "+@all", "-evalsha", "-subscribe"];
    let locker = [&["ACL", "SETUSER", "locker", "on", ">secret"], &rights[..]].concat();
    server.tell(&locker);
    let url = server.url_as("locker:secret");
    let (ended, findings) = doctor(&url);
    assert_eq!(ended.code, Some(1), "{findings:?}");
    assert_eq!(result(&findings, "connect"), "fail", "{findings:?}");
    assert!(ended.output.contains("no permission for evalsha"), "{findings:?}");
    server.tell(&["ACL", "SETUSER", "locker", "+evalsha"]);
    let (ended, findings) = doctor(&url);
    assert_eq!(result(&findings, "messages"), "warn", "{findings:?}");
    assert!(ended.output.contains("+subscribe"), "{findings:?}");
}
