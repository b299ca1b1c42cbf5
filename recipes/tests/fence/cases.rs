//! What a fence promises, in every database. Each case has a database of its own.

use std::collections::BTreeMap;
use std::error::Error;

use lock_runtime::fence::{self, FenceDatabase, FenceError};
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Transaction};

/// What the cases do besides raising a fence, which is different in each database.
pub(crate) trait TestedDatabase: FenceDatabase<Connection: Send> {
    /// The statement that creates the table of fences.
    const TABLE: &'static str;

    /// Runs a statement without data.
    async fn execute(connection: &mut Self::Connection, sql: &'static str);

    /// A number from a statement without data.
    async fn number(connection: &mut Self::Connection, sql: &'static str) -> i64;

    /// The table of fences.
    async fn recorded(connection: &mut Self::Connection) -> BTreeMap<String, i64>;
}

/// Implements [`TestedDatabase`] for a database, whose table has resources of this type.
macro_rules! tested_database {
    ($database:ty, $table:expr, $resource:ty) => {
        impl crate::cases::TestedDatabase for $database {
            const TABLE: &'static str = $table;

            async fn execute(connection: &mut Self::Connection, sql: &'static str) {
                sqlx::raw_sql(sql).execute(connection).await.expect(sql);
            }

            async fn number(connection: &mut Self::Connection, sql: &'static str) -> i64 {
                sqlx::query_scalar(sql).fetch_one(connection).await.expect(sql)
            }

            async fn recorded(
                connection: &mut Self::Connection,
            ) -> std::collections::BTreeMap<String, i64> {
                let sql = "SELECT resource, token FROM lock_fence";
                let rows: Vec<($resource, i64)> =
                    sqlx::query_as(sql).fetch_all(connection).await.expect(sql);
                let text = |resource| String::from_utf8(Vec::from(resource)).expect("UTF-8");
                rows.into_iter().map(|(resource, token)| (text(resource), token)).collect()
            }
        }
    };
}
pub(crate) use tested_database;

/// Makes a test of each case. `$database` returns a pool, and what the database needs to stay.
macro_rules! every_case {
    ($database:path) => {
        crate::cases::every_case! {
            $database:
            a_stale_token_is_refused
            equal_and_higher_tokens_are_accepted
            a_rollback_leaves_no_trace
            hostile_resources_are_kept_apart
            resources_that_do_not_fit_are_refused
            a_token_that_does_not_fit_is_refused
            a_missing_table_is_reported
            another_table_of_this_name_is_an_error
            a_late_write_is_refused
            without_a_fence_a_late_write_is_accepted
        }
    };
    ($database:path: $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                let (pool, _kept) = $database().await;
                crate::cases::$case(pool).await;
            }
        )*
    };
}
pub(crate) use every_case;

/// A new database, for one test.
pub(crate) struct FenceFixture<DB: TestedDatabase>(pub(crate) Pool<DB>);

impl<DB: TestedDatabase> FenceFixture<DB> {
    /// With the table of fences.
    pub(crate) async fn new(pool: Pool<DB>) -> Self {
        let fixture = Self(pool);
        fixture.execute(DB::TABLE).await;
        fixture
    }

    /// The same, with an account that has a balance of 100.
    pub(crate) async fn with_account(pool: Pool<DB>) -> Self {
        let fixture = Self::new(pool).await;
        fixture.execute("CREATE TABLE account (balance BIGINT NOT NULL)").await;
        fixture.execute("INSERT INTO account VALUES (100)").await;
        fixture
    }

    async fn connection(&self) -> PoolConnection<DB> {
        self.0.acquire().await.expect("the database is up")
    }

    pub(crate) async fn begin(&self) -> Transaction<'static, DB> {
        self.0.begin().await.expect("the database is up")
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        DB::execute(&mut *self.connection().await, sql).await;
    }

    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        DB::number(&mut *self.connection().await, sql).await
    }

    /// Raises a fence in a transaction of its own.
    pub(crate) async fn raise(&self, resource: &str, token: u64) -> Result<(), FenceError> {
        let mut transaction = self.begin().await;
        fence::raise(&mut transaction, resource, token).await?;
        transaction.commit().await.expect("the database is up");
        Ok(())
    }

    /// All resources and their tokens.
    async fn all_recorded(&self) -> BTreeMap<String, i64> {
        DB::recorded(&mut *self.connection().await).await
    }

    /// The token on record.
    pub(crate) async fn recorded(&self, resource: &str) -> Option<i64> {
        self.all_recorded().await.get(resource).copied()
    }
}

#[track_caller]
pub(crate) fn assert_stale(refused: Result<(), FenceError>, expected: (&str, u64, u64)) {
    match refused {
        Err(FenceError::Stale { resource, token, recorded, .. }) => {
            assert_eq!((resource.as_str(), token, recorded), expected);
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_stale_token_is_refused<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    database.raise("order:7", 5).await.expect("the first");
    let refused = database.raise("order:7", 4).await;
    let text = refused.as_ref().expect_err("a later holder").to_string();
    let expected = "token 4 for \"order:7\" is stale: a later lock holder has recorded 5; roll back, and acquire the \
                    lock again";
    assert_eq!(text, expected);
    assert_stale(refused, ("order:7", 4, 5));
    assert_stale(database.raise("order:7", 0).await, ("order:7", 0, 5));
    assert_eq!(database.recorded("order:7").await, Some(5));
    database.raise("order:8", 4).await.expect("another resource");
}

pub(crate) async fn equal_and_higher_tokens_are_accepted<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    // Zero is also what MySQL replies for a new row.
    for (token, is_new) in [(0, true), (0, false), (1, true), (1, false), (6, true), (6, false)] {
        let mut transaction = database.begin().await;
        fence::raise(&mut transaction, "order:7", token).await.expect("not lower");
        fence::raise(&mut transaction, "order:7", token).await.expect("the same holder");
        if is_new {
            assert_stale_below(&mut transaction, token).await;
        }
        transaction.commit().await.expect("the database is up");
        assert_eq!(database.recorded("order:7").await, Some(token.cast_signed()));
    }
}

/// A transaction sees the token that it has recorded itself.
async fn assert_stale_below<DB: TestedDatabase>(transaction: &mut Transaction<'_, DB>, token: u64) {
    if let Some(lower) = token.checked_sub(1) {
        assert_stale(fence::raise(transaction, "order:7", lower).await, ("order:7", lower, token));
    }
}

pub(crate) async fn a_rollback_leaves_no_trace<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    let mut transaction = database.begin().await;
    fence::raise(&mut transaction, "order:7", 9).await.expect("the first");
    transaction.rollback().await.expect("the database is up");
    assert_eq!(database.recorded("order:7").await, None);
    database.raise("order:7", 3).await.expect("9 is not on record");
    let mut transaction = database.begin().await;
    fence::raise(&mut transaction, "order:7", 9).await.expect("higher");
    // As at the end of a body that is dropped because its lock is lost.
    drop(transaction);
    database.raise("order:7", 3).await.expect("9 is not on record");
    assert_eq!(database.recorded("order:7").await, Some(3));
}

pub(crate) async fn hostile_resources_are_kept_apart<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    let long = "x".repeat(1023);
    let hostile = [
        "a",
        "A",
        "a ",
        "a  ",
        " a",
        "ä",
        "a\u{308}",
        "á",
        "æ",
        "ae",
        "ß",
        "ss",
        "ı",
        "i",
        "I",
        "🦀",
        "🦞",
        "\u{200b}",
        "'",
        "''",
        "\"",
        "`",
        "\\",
        "\\'",
        "\\0",
        "%",
        "_",
        "?",
        "$1",
        "?1",
        ":a",
        "@a",
        "\t",
        "\n",
        "\r\n",
        "\u{1}",
        "NULL",
        "--",
        "/*",
        "x'); DROP TABLE lock_fence; --",
        "x\"; DELETE FROM lock_fence; --",
        "1",
        "01",
        "1.0",
        "0x31",
    ];
    let mut resources: Vec<String> = hostile.map(str::to_owned).into();
    resources.extend([format!("{long}y"), format!("{long}z"), format!("{long} "), long]);
    resources.push("🦀".repeat(256));
    for (resource, token) in resources.iter().zip(1..) {
        database.raise(resource, token).await.expect(resource);
    }
    let expected: BTreeMap<String, i64> = resources.iter().cloned().zip(1..).collect();
    assert_eq!(expected.len(), resources.len());
    assert_eq!(database.all_recorded().await, expected);
    for (resource, token) in resources.iter().zip(1..) {
        assert_stale(database.raise(resource, token - 1).await, (resource, token - 1, token));
    }
}

pub(crate) async fn resources_that_do_not_fit_are_refused<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    let too_long = "x".repeat(1025);
    for (resource, problem) in [
        ("", "it is empty"),
        ("a\0b", "it contains a zero byte"),
        (too_long.as_str(), "it is longer than 1024 bytes"),
    ] {
        let refused = database.raise(resource, 1).await.expect_err(problem);
        assert!(matches!(refused, FenceError::InvalidResource { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.starts_with("invalid resource \"") && text.ends_with(problem), "{text}");
        assert!(text.len() < 120, "{text}");
    }
    assert_eq!(database.all_recorded().await, BTreeMap::new());
}

pub(crate) async fn a_token_that_does_not_fit_is_refused<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::new(pool).await;
    let highest = i64::MAX.unsigned_abs();
    for token in [highest + 1, u64::MAX] {
        let refused = database.raise("order:7", token).await.expect_err("too high");
        assert!(matches!(refused, FenceError::TokenTooHigh { .. }), "{refused:?}");
        let expected = format!("token {token} for \"order:7\" is higher than {highest}");
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
    assert_eq!(database.recorded("order:7").await, None);
    database.raise("order:7", highest).await.expect("it fits");
    database.raise("order:7", highest).await.expect("equal");
    assert_stale(database.raise("order:7", highest - 1).await, ("order:7", highest - 1, highest));
}

pub(crate) async fn a_missing_table_is_reported<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture(pool);
    let refused = database.raise("order:7", 1).await.expect_err("no table");
    assert!(matches!(refused, FenceError::NoTable { .. }), "{refused:?}");
    let expected = "the table `lock_fence` does not exist; create it in a migration";
    assert!(refused.to_string().starts_with(expected), "{refused}");
    assert!(refused.source().is_some());
    // A migration may run again.
    for _ in 0..2 {
        database.execute(DB::TABLE).await;
        database.raise("order:7", 1).await.expect("the table is there");
    }
}

pub(crate) async fn another_table_of_this_name_is_an_error<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture(pool);
    database.execute("CREATE TABLE lock_fence (resource VARCHAR(20) PRIMARY KEY)").await;
    let refused = database.raise("order:7", 1).await.expect_err("no column");
    assert!(matches!(refused, FenceError::Database { .. }), "{refused:?}");
    let expected = "token 1 for \"order:7\" was not recorded: ";
    assert!(refused.to_string().starts_with(expected), "{refused}");
}

/// What two holders do whose holds overlap, because the first one was late: both read, the later one writes, and then the
/// first one.
async fn late_write<DB: TestedDatabase>(
    database: &FenceFixture<DB>,
    has_fence: bool,
) -> Result<(), FenceError> {
    assert_eq!(database.number("SELECT balance FROM account").await, 100);
    let mut later = database.begin().await;
    if has_fence {
        fence::raise(&mut later, "account", 2).await?;
    }
    DB::execute(&mut later, "UPDATE account SET balance = 130").await;
    later.commit().await.expect("the database is up");

    let mut late = database.begin().await;
    if has_fence {
        fence::raise(&mut late, "account", 1).await?;
    }
    DB::execute(&mut late, "UPDATE account SET balance = 150").await;
    late.commit().await.expect("the database is up");
    Ok(())
}

pub(crate) async fn a_late_write_is_refused<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::with_account(pool).await;
    assert_stale(late_write(&database, true).await, ("account", 1, 2));
    assert_eq!(database.number("SELECT balance FROM account").await, 130);
}

/// The negative control of the case above.
pub(crate) async fn without_a_fence_a_late_write_is_accepted<DB: TestedDatabase>(pool: Pool<DB>) {
    let database = FenceFixture::with_account(pool).await;
    late_write(&database, false).await.expect("nothing refuses it");
    assert_eq!(database.number("SELECT balance FROM account").await, 150);
}
