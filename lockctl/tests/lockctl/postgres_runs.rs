//! Locks in PostgreSQL, as operators see them.

use lock_tests::DatabaseServer;

use crate::support::outcome;
use crate::unasked::assert_a_lock_is_seen_and_deleted;

#[test]
fn operators_see_locks_in_postgresql_with_their_processes_and_delete_one() {
    let server = DatabaseServer::postgres();
    let url = server.url("postgres");
    assert_eq!(outcome(&url, &["migrate"]).code, Some(0));
    let (client, process) = assert_a_lock_is_seen_and_deleted(&url, "other");
    assert_eq!(client["pid"], process);
    assert_eq!(
        (&client["service"], &client["version"]),
        (&"lockctl".into(), &env!("CARGO_PKG_VERSION").into())
    );
    // The control: without the name of a connection, nobody knows.
    let url = format!("{url}?application_name=mine");
    let (client, _) = assert_a_lock_is_seen_and_deleted(&url, "another");
    assert!(client["pid"].is_null() && client["id"].is_string(), "{client}");
}
