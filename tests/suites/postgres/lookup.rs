//! Who holds a lock, and the statements for operators in the documentation.

use lock_runtime::admin::LockAdmin;
use lock_runtime::store::PostgresStore;
use lock_runtime::{ClientInfo, LockClient, LockError};
use lock_tests::support::LEASE;
use lock_tests::within;

use crate::Database;
use crate::faults::{client_of, eventually};

/// Returns the statement that shows locks, and those that free one.
fn statements() -> (&'static str, &'static str) {
    let (_, section) = include_str!("../../../docs/postgresql.md")
        .split_once("## Looking at locks")
        .expect("the section");
    let (_, block) = section.split_once("```sql").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    block.trim().split_once("\n\n").expect("two groups of statements")
}

#[tokio::test]
async fn the_documented_statements_show_locks_and_free_one() {
    let (listing, free) = statements();
    let database = Database::new().await;
    let session = database.session(&database.name).await;
    let rows = async || session.query(listing, &[]).await.expect("valid SQL");
    let shown = async || -> Vec<(String, bool)> {
        rows().await.iter().map(|row| (row.get("key"), row.get("held"))).collect()
    };
    assert!(shown().await.is_empty());
    let lease = LEASE * 4;
    let (one, two) =
        (client_of(&database.url(), lease).await, client_of(&database.url(), lease).await);
    let held = one.lock("shop:order:1").acquire().await.expect("free");
    let hostile = one.lock("a\\'\0é").acquire().await.expect("free");
    let kept = one.lock("kept").min_hold(LEASE * 60).lease(LEASE * 60).acquire().await;
    kept.expect("free").release().await.expect("held");
    let all = [("a\\\\'\\000\\303\\251", true), ("kept", false), ("shop:order:1", true)];
    assert_eq!(shown().await, all.map(|(key, held)| (key.to_owned(), held)));

    let process = format!(" {}@", std::process::id());
    for row in rows().await {
        let holder: Option<String> = row.get("holder");
        let is_named = holder.is_some_and(|holder| holder.contains(&process));
        assert_eq!(is_named, row.get::<_, bool>("held"), "the holders are named");
    }

    let waiting = tokio::spawn({
        let lock = two.lock("shop:order:1").wait(LEASE * 60);
        async move { lock.acquire().await }
    });
    eventually("the call waits", async || {
        let wanted = "SELECT key FROM distributed_locks WHERE wanted";
        session.query_opt(wanted, &[]).await.expect("the table")
    })
    .await;
    database.run(free).await;
    let granted = waiting.await.expect("no panic").expect("the key is free");
    within(lease, held.lost()).await.expect("the next renewal notices it");
    let lost = held.release().await;
    assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    granted.release().await.expect("held");
    hostile.release().await.expect("held");
    assert_eq!(shown().await, [("kept".to_owned(), false)]);
    // One that an operator has made endless.
    database.run("UPDATE distributed_locks SET until = 'infinity'").await;
    let lock = LockAdmin::new(&one).inspect("kept").await.expect("an answer").expect("taken");
    assert_eq!(lock.holders[0].lease_left, None);
}

/// The client of the only holder of a lock, as another client sees it.
async fn holder(admin: &LockAdmin, key: &str) -> ClientInfo {
    let lock = admin.inspect(key).await.expect("an answer").expect("it is held");
    lock.holders[0].client.clone()
}

#[tokio::test]
async fn only_one_user_of_locks_can_name_a_client() {
    let database = Database::new().await;
    let (one, two) = (database.client().await, database.client().await);
    let admin = LockAdmin::new(&two);
    let guard = one.lock("k").acquire().await.expect("free");
    let known = holder(&admin, "k").await;
    assert_eq!(known.process, Some(std::process::id()));
    let id = known.id.expect("each client has one");
    let name = format!("SET application_name = 'lock-runtime {id} 1@elsewhere'");

    // Another user, who may connect, and has no permission for the table.
    let role = format!("stranger_to_{}", database.name);
    database.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let url = database.url().replace("//test@", &format!("//{role}@"));
    let stranger = crate::session_of(&url).await;
    stranger.batch_execute(&name).await.expect("everybody may");
    assert_eq!(holder(&admin, "k").await.process, Some(std::process::id()));
    // One who may acquire locks: nobody knows which name is true.
    let user = database.session(&database.name).await;
    user.batch_execute(&name).await.expect("everybody may");
    let unknown = holder(&admin, "k").await;
    assert_eq!(unknown.to_string(), format!("client {id}"));
    guard.release().await.expect("held");
}

#[tokio::test]
async fn the_last_client_of_a_store_is_named() {
    let database = Database::new().await;
    let store = PostgresStore::new(&database.url()).expect("a valid URL");
    let builder = LockClient::builder().store(store);
    drop(builder.clone().connect().await.expect("the server is up"));
    let client = builder.connect().await.expect("the server is up");
    let guard = client.lock("k").acquire().await.expect("free");
    let admin = LockAdmin::new(&database.client().await);
    assert_eq!(holder(&admin, "k").await.process, Some(std::process::id()));
    guard.release().await.expect("held");
}
