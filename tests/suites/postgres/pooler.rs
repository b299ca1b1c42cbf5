//! PgBouncer between the client and PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use lock_runtime::store::PostgresStore;
use lock_runtime::{LockClient, LockError};
use lock_tests::Pooler;
use lock_tests::support::LEASE;
use tokio_postgres::SimpleQueryMessage;

use crate::faults::{alone, client_of, eventually};
use crate::{Database, session_of};

/// How long it takes at most until a client knows whether notifications arrive.
const KNOWN: Duration = Duration::from_secs(4);

/// A client at this URL, and its store.
async fn watched(url: &str, lease: Duration) -> (LockClient, Arc<PostgresStore>) {
    let store = Arc::new(PostgresStore::new(url).expect("a valid URL"));
    let client = LockClient::builder().store(Arc::clone(&store)).lease(lease);
    (client.connect().await.expect("the server is up"), store)
}

async fn hears_within(store: &PostgresStore, within: Duration) -> bool {
    let hears = async {
        while !store.hears_notifications() {
            tokio::time::sleep(LEASE / 50).await;
        }
    };
    tokio::time::timeout(within, hears).await.is_ok()
}

#[tokio::test]
async fn behind_a_pooler_in_transaction_mode_calls_poll() {
    let database = Database::new().await;
    let pooler = Pooler::start(&database.server, "transaction", 3);
    // Long enough for renewals on a slow machine.
    let (url, lease) = (pooler.url(&database.name), LEASE * 4);
    let (one, store) = watched(&url, lease).await;
    let (two, _) = watched(&url, lease).await;
    assert!(!hears_within(&store, KNOWN).await, "notifications are expected from a pooler");
    let guard = one.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(two.lock("k").wait(LEASE * 60).acquire());
    tokio::time::sleep(lease * 2).await;
    // The session may have another client next.
    let session = database.session(&database.name).await;
    let named = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'lock-runtime %'";
    assert_eq!(session.query(named, &[]).await.expect("a view").len(), 0);
    assert!(guard.is_held() && !waiting.is_finished(), "renewed over the pooler");
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("polled").release().await.expect("held");
    assert_eq!(database.count().await, 0);
}

/// The control: over connections that belong to the client, notifications arrive.
#[tokio::test]
async fn without_a_pooler_or_in_session_mode_notifications_arrive() {
    let database = Database::new().await;
    let pooler = Pooler::start(&database.server, "session", 20);
    for url in [database.url(), pooler.url(&database.name)] {
        let (client, store) = watched(&url, LEASE).await;
        assert!(hears_within(&store, LEASE * 30).await);
        client.lock("k").acquire().await.expect("free").release().await.expect("held");
    }
}

/// In a session of the pooler, another client may have prepared something else under the same name.
#[tokio::test]
async fn nothing_is_prepared_in_the_sessions_of_a_pooler() {
    let database = Database::new().await;
    let pooler = Pooler::start(&database.server, "transaction", 1);
    let client = client_of(&pooler.url(&database.name), LEASE * 30).await;
    for number in 0..16 {
        let guard = client.lock(format!("k{number}")).acquire().await.expect("nothing is lost");
        guard.release().await.expect("held");
    }
    // The only session of the pooler.
    let session = session_of(&pooler.url(&database.name)).await;
    let prepared = session.simple_query("SELECT name FROM pg_prepared_statements").await;
    let prepared = prepared.expect("a view of the system");
    let is_row = |message: &&SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(_));
    let names = prepared.iter().filter(is_row).count();
    assert_eq!(names, 0, "{names} statements are prepared in a session of the pooler");
}

#[tokio::test]
async fn many_calls_share_few_connections_of_a_pooler() {
    let database = Database::new().await;
    database.run(crate::verify::ACCOUNT).await;
    let pooler = Pooler::start(&database.server, "transaction", 2);
    let url = pooler.url(&database.name);
    let clients = [client_of(&url, LEASE).await, client_of(&url, LEASE).await];
    let calls = (0..40).map(|number| {
        let (client, url) = (clients[number % 2].clone(), pooler.url(&database.name));
        tokio::spawn(async move {
            let guard = client.lock(format!("k{}", number % 3)).wait(LEASE * 60).acquire().await?;
            let (mut session, connection) =
                tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("it is up");
            tokio::spawn(connection);
            let mut transaction = session.transaction().await.expect("it is up");
            transaction.batch_execute(crate::verify::DEPOSIT).await.expect("the table");
            guard.verify_in(&mut transaction).await?;
            transaction.commit().await.expect("it is up");
            guard.release().await
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut committed = 0;
    for call in calls {
        match call.await.expect("no panic") {
            Ok(()) => committed += 1,
            // On a slow machine, a lock can be lost while its transaction waits for a connection.
            Err(error) => assert!(matches!(error, LockError::Lost { .. }), "{error}"),
        }
    }
    assert!(committed > 0);
    assert_eq!(crate::verify::balance(&database).await, committed);
}

/// How many of the sessions of a pool listen. Uses all of them at the same time.
async fn listening_sessions(url: &str, pool: u32) -> usize {
    let (mut sessions, mut listening) = (Vec::new(), 0);
    for _ in 0..pool {
        let session = session_of(url).await;
        let answer = session.simple_query("BEGIN; SELECT pg_listening_channels()").await;
        let answer = answer.expect("it is up");
        let channels = answer.iter().filter(|it| matches!(it, SimpleQueryMessage::Row(_)));
        listening += channels.count();
        sessions.push(session);
    }
    for session in sessions {
        session.batch_execute("COMMIT").await.expect("it is up");
    }
    listening
}

#[tokio::test]
async fn no_session_of_a_pooler_listens_in_vain() {
    const POOL: u32 = 3;
    let server = alone(&["log_statement=all"]).await;
    let pooler = Pooler::start(&server, "transaction", POOL);
    let url = pooler.url("postgres");
    let (client, store) = watched(&url, LEASE).await;
    let executed = |statement: &str| server.log().contains(&format!("statement: {statement} "));
    let listens = async || executed("LISTEN").then_some(());
    eventually("the client listens", listens).await;
    // Before that, nothing here may change which session the pooler uses next.
    let ends = async || executed("UNLISTEN").then_some(());
    eventually("a session of the pooler listens in vain", ends).await;
    eventually("another session has ended its listening", async || {
        (listening_sessions(&url, POOL).await == 0).then_some(())
    })
    .await;
    assert!(!store.hears_notifications(), "calls poll");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    // The control: a session that listens is seen.
    session_of(&url).await.batch_execute("LISTEN other").await.expect("it is up");
    assert_eq!(listening_sessions(&url, POOL).await, 1);
}
