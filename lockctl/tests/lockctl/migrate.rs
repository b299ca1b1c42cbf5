//! `lockctl migrate`.

use lock_tests::DatabaseServer;

use crate::support::outcome;

#[test]
fn migrate_creates_the_table_once_and_leaves_other_tables_alone() {
    // Another test may create the table in a server that is shared.
    let server = DatabaseServer::postgres_alone(&[], &[]);
    let run = |database: &str, words: &[&str]| outcome(&server.url(database), words);
    let created = run("postgres", &["migrate"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert!(created.errors.contains("was created"), "{created:?}");
    let again = run("postgres", &["migrate"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.errors.contains("is there"), "{again:?}");
    let locked = run("postgres", &["run", "job", "--", "true"]);
    assert_eq!(locked.code, Some(0), "{locked:?}");
    // The control: another database has no table.
    let missing = run("template1", &["run", "job", "--", "true"]);
    assert_eq!(missing.code, Some(78), "{missing:?}");
    assert!(missing.errors.contains("lockctl migrate"), "{missing:?}");
    for other in ["memory:", "etcd://localhost"] {
        let elsewhere = outcome(other, &["migrate"]);
        assert_eq!(elsewhere.code, Some(78), "{elsewhere:?}");
        assert!(elsewhere.errors.contains("the URL of a PostgreSQL database"), "{elsewhere:?}");
    }
}

#[test]
fn migrate_prints_the_sql_without_a_server() {
    let printed = outcome("", &["migrate", "--print"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.output.contains("CREATE TABLE distributed_locks"), "{printed:?}");
}
