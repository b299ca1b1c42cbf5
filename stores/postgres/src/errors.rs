//! Errors of PostgreSQL.

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use lock_core::store::store_error::{StoreError, with_causes};

/// The problem of a URL that demands TLS, in a build without.
#[cfg(not(feature = "tls"))]
pub(super) const NO_TLS: &str =
    "this build has no TLS; enable the feature `tls` of `lock-runtime`, or use `sslmode=disable`";

/// What an error means for the request that it answers.
///
/// A statement that the server has answered with an error has had no effect. Without an answer, the request may have been
/// carried out, unless there was no connection to send it over.
pub(super) fn of_request(error: &Error) -> StoreError {
    match error.as_db_error() {
        // A pooler says so if it has lost the server, which may have carried the request out.
        Some(answer) if is_of_connection(answer.code()) => {
            StoreError::Unknown(answer.message().to_owned())
        }
        Some(answer) => of_answer(answer.code(), answer.message()),
        None => StoreError::Unknown(text(error)),
    }
}

/// What an error means for a connection to this server that could not be opened.
pub(super) fn of_connection(error: &Error, server: &str, has_certificate: bool) -> StoreError {
    if let Some(answer) = error.as_db_error() {
        let (code, message) = (answer.code(), answer.message());
        if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            && message.contains("no encryption")
        {
            return StoreError::Denied(format!("{message}; use TLS, with `sslmode=verify-full`"));
        }
        return of_answer(code, message);
    }
    if let Some(problem) = of_handshake(error, server, has_certificate) {
        return problem;
    }
    let text = text(error);
    if text.contains("server does not support TLS") {
        let problem = format!(
            "{server} does not use TLS; set `ssl = on` there, or connect with `sslmode=disable`"
        );
        return config(problem);
    }
    if text.contains("does not allow writes") {
        return StoreError::Refused(format!(
            "{server} is a read-only standby, or `default_transaction_read_only` is on there"
        ));
    }
    StoreError::Refused(format!("{server}: {text}"))
}

#[cfg(feature = "tls")]
fn of_handshake(error: &Error, server: &str, has_certificate: bool) -> Option<StoreError> {
    use std::io;

    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let own = error.get_ref().and_then(|error| error.downcast_ref::<StoreError>());
            let problem = own.cloned();
            let problem = problem
                .or_else(|| lock_core::store::tls::permanent(error, server, has_certificate));
            if problem.is_some() {
                return problem;
            }
        }
        cause = error.source();
    }
    None
}

#[cfg(not(feature = "tls"))]
fn of_handshake(_: &Error, _: &str, _: bool) -> Option<StoreError> {
    None
}

/// Whether the next request needs another connection: this one is closed, or is to a server that may not write.
pub(super) fn ends_connection(error: &Error) -> bool {
    let needs_another =
        |code: &SqlState| *code == SqlState::READ_ONLY_SQL_TRANSACTION || is_of_connection(code);
    error.is_closed() || error.code().is_some_and(needs_another)
}

/// Whether a statement had no effect because of how it was prepared: the session has it no longer, has another one of this
/// name, or cannot plan it anew.
pub(super) fn is_of_preparation(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::DUPLICATE_PSTATEMENT,
            SqlState::FEATURE_NOT_SUPPORTED,
        ]
        .contains(code)
    })
}

/// Whether a statement about several locks may have failed because of one of them. It had no effect then.
pub(super) fn may_be_of_row(error: &Error) -> bool {
    let Some(code) = error.code() else { return false };
    // Connections and logins, the state of a transaction, a missing table or database, resources, the end of the server, the
    // operating system, and internal errors.
    let others = ["08", "25", "28", "3D", "3F", "42P", "42703", "53", "57P", "58", "XX"];
    !others.iter().any(|class| code.code().starts_with(class))
}

/// Whether a statement had no effect because other sessions have changed its rows, or because they have locked them if it
/// `waits` for that. It succeeds sooner or later.
pub(super) fn is_of_others(error: &Error, waits: bool) -> bool {
    error.code().is_some_and(|code| {
        let is_locked = *code == SqlState::LOCK_NOT_AVAILABLE;
        [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
            || waits && is_locked
    })
}

/// Whether the server ends the connection with this answer.
pub(super) fn is_last(error: &Error) -> bool {
    let severity = error.as_db_error().and_then(tokio_postgres::error::DbError::parsed_severity);
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// Whether the error is about a connection, and not about the statement.
fn is_of_connection(code: &SqlState) -> bool {
    code.code().starts_with("08")
}

fn of_answer(code: &SqlState, message: &str) -> StoreError {
    let table = "run `lockctl migrate`, or the SQL of the documentation, in this database";
    match *code {
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_COLUMN
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::INVALID_COLUMN_REFERENCE => config(format!(
            "the table of locks is missing or of another version ({message}); {table}"
        )),
        SqlState::INVALID_CATALOG_NAME => {
            config(format!("{message}; name another database in the URL"))
        }
        SqlState::FEATURE_NOT_SUPPORTED | SqlState::SYNTAX_ERROR => {
            config(format!("{message}; PostgreSQL 12 or newer is needed"))
        }
        SqlState::INSUFFICIENT_PRIVILEGE
        | SqlState::INVALID_PASSWORD
        | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => StoreError::Denied(message.to_owned()),
        SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::Refused(format!(
            "{message}: the server is a standby, or `default_transaction_read_only` is on"
        )),
        _ => StoreError::Refused(format!("{message} ({})", code.code())),
    }
}

pub(super) fn config(problem: String) -> StoreError {
    StoreError::Config { option: "url", problem }
}

/// The error with its causes.
pub(super) fn text(error: &Error) -> String {
    with_causes(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_its_meaning() {
        let meant = |code: &str| of_answer(&SqlState::from_code(code), "why");
        for code in ["42P01", "42703", "42883", "3D000", "0A000", "42601"] {
            assert!(matches!(meant(code), StoreError::Config { option: "url", .. }), "{code}");
        }
        for code in ["42501", "28P01", "28000"] {
            assert_eq!(meant(code), StoreError::Denied("why".to_owned()), "{code}");
        }
        for code in ["08P01", "08006", "08000"] {
            assert!(is_of_connection(&SqlState::from_code(code)), "{code}");
        }
        // Serialization failure, deadlock, timeouts, no room, shutdown, startup, a standby.
        for code in
            ["40001", "40P01", "55P03", "57014", "53100", "53300", "57P01", "57P03", "25006"]
        {
            assert!(
                matches!(meant(code), StoreError::Refused(text) if text.contains("why")),
                "{code}"
            );
        }
    }
}
