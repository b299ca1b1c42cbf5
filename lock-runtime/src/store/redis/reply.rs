//! What the server's errors mean for a lock.

use redis::{ErrorKind, RedisError};

use crate::protection::Protection;
use crate::store::StoreError;

/// How the message of a missing script begins.
pub(super) const NO_SCRIPT: &str = "NOSCRIPT";

/// What the server says of a database that it does not have.
pub(super) const NO_SUCH_DATABASE: &str = "DB index is out of range";

/// Whether the first command on every connection failed because the server is too old to know it.
pub(super) fn is_too_old(text: &str) -> bool {
    text.contains("HELLO") && (text.contains("unknown command") || text.contains("resp3"))
}

/// An error, and whether its connection is of no more use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) error: StoreError,
    pub(super) discard: bool,
}

/// Sorts an error by what may have happened at the server.
///
/// A reply with a code means that nothing ran. Without a reply nobody knows.
pub(super) fn judge(error: &RedisError) -> Verdict {
    let text = text(error);
    if !Protection::KindsOfErrors.is_on() {
        return Verdict { error: StoreError::Refused(text), discard: true };
    }
    let code = text.split(' ').next().unwrap_or_default();
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse => {
            Verdict { error: StoreError::Unknown(text), discard: true }
        }
        ErrorKind::UnexpectedReturnType => {
            Verdict { error: StoreError::Unknown(text), discard: false }
        }
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::RESP3NotSupported => {
            // During the handshake a server that is full, or still loading, is no refusal.
            let passing = ["max number of clients", "LOADING", "BUSY", "MASTERDOWN"];
            let error = if passing.iter().any(|passing| text.contains(passing)) {
                StoreError::Refused(text)
            } else {
                StoreError::Denied(text)
            };
            Verdict { error, discard: true }
        }
        _ if is_too_old(&text) => Verdict { error: StoreError::Denied(text), discard: true },
        // The link has to log in anew: the server's users were changed, or it was replaced.
        _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
            Verdict { error: StoreError::Denied(text), discard: true }
        }
        _ if code == "NOPERM" => Verdict { error: StoreError::Denied(text), discard: false },
        _ if text.contains(NO_SUCH_DATABASE) => {
            Verdict { error: StoreError::Denied(text), discard: true }
        }
        // What a server says when a script meets a command or a key that the user may not use.
        _ if text.contains("The user executing the script can't") => {
            Verdict { error: StoreError::Denied(text), discard: false }
        }
        // The server's role has changed: another connection may lead to the right one.
        _ if matches!(code, "READONLY" | "MASTERDOWN") => {
            Verdict { error: StoreError::Refused(text), discard: true }
        }
        _ => Verdict { error: StoreError::Refused(text), discard: false },
    }
}

/// Sorts an error that a script has met half-way and replied as a text.
pub(super) fn judge_text(text: &str) -> StoreError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    // Servers before 7.0 begin with where it was met.
    let (code, detail) = if is_code { (code, detail) } else { ("ERR", text) };
    judge(&redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))).error
}

/// The server's own words where there are any. They name keys and commands, never passwords.
fn text(error: &RedisError) -> String {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    // Servers before 7.0 wrap the error of a command inside a script in words of their own:
    // `ERR Error running script (…): @user_script:19: @user_script: 19: -OOM command not allowed …`.
    let in_script = text.split_once("@user_script").and_then(|(_, rest)| rest.split_once(": -"));
    let text = in_script.map_or(&*text, |(_, reply)| reply);
    // What follows are arguments, and owner tokens are among them.
    let text = text.split(", with args beginning with").next().unwrap_or(text);
    text.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: &str, detail: &str) -> Verdict {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        judge(&error)
    }

    #[test]
    fn refusals_that_pass_are_retried() {
        for code in ["OOM", "MISCONF", "NOREPLICAS", "BUSY"] {
            let verdict = judged(code, "…");
            assert_eq!(verdict.error, StoreError::Refused(format!("{code} …")));
            assert!(!verdict.discard);
        }
    }

    /// Nothing ran, so it may be tried again, and the server may be another one by then.
    #[test]
    fn refusals_of_a_cluster_are_retried() {
        for (code, detail) in [
            ("MOVED", "12182 127.0.0.1:7001"),
            ("ASK", "12182 127.0.0.1:7001"),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot"),
            ("CLUSTERDOWN", "Hash slot not served"),
            ("CROSSSLOT", "Keys in request don't hash to the same slot"),
        ] {
            let verdict = judged(code, detail);
            assert_eq!(verdict.error, StoreError::Refused(format!("{code} {detail}")));
        }
    }

    #[test]
    fn another_connection_is_made_to_a_server_whose_role_has_changed() {
        for code in ["READONLY", "MASTERDOWN"] {
            let verdict = judged(code, "…");
            assert_eq!(verdict.error, StoreError::Refused(format!("{code} …")));
            assert!(verdict.discard);
        }
    }

    /// As Redis 6.2 reports them.
    #[test]
    fn errors_inside_a_script_count_by_their_own_code() {
        let wrapped = |reply: &str| {
            let detail = format!(
                "Error running script (call to f_01): @user_script:9: @user_script: 9: {reply}"
            );
            judged("ERR", &detail)
        };
        assert!(wrapped("-READONLY You can't write against a read only replica").discard);
        assert!(!wrapped("-OOM command not allowed").discard);
        assert!(matches!(wrapped("-NOPERM this user").error, StoreError::Denied(_)));
        assert!(matches!(wrapped("attempt to index").error, StoreError::Refused(_)));
    }

    #[test]
    fn refusals_that_stay_are_not() {
        for code in ["NOAUTH", "WRONGPASS"] {
            assert!(matches!(judged(code, "…").error, StoreError::Denied(_)));
        }
        let in_script = judged("ERR", "The user executing the script can't run this command");
        assert!(matches!(in_script.error, StoreError::Denied(_)));
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_unknown() {
        let error = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let verdict = judge(&error);
        assert!(matches!(verdict.error, StoreError::Unknown(_)));
        assert!(verdict.discard);
    }
}
