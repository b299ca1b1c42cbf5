//! Classifies the errors of the server and the connection.

use redis::{ErrorKind, RedisError};

use lock_core::safeguard::Safeguard;
use lock_core::store::contract::StoreError;

/// The prefix of the error for a script that the server does not have.
pub(crate) const NO_SCRIPT: &str = "NOSCRIPT";

/// The text of the error for a database that the server does not have.
pub(crate) const NO_SUCH_DATABASE: &str = "DB index is out of range";

/// Whether `HELLO`, the first command on every connection, failed because the server is too old.
pub(crate) fn is_too_old(text: &str) -> bool {
    text.contains("HELLO") && (text.contains("unknown command") || text.contains("resp3"))
}

/// Whether the server does not accept the credentials of a connection.
pub(crate) fn is_login(text: &str) -> bool {
    text.contains("NOAUTH") || text.contains("WRONGPASS")
}

/// Whether the server does not have the command: it was renamed or disabled, or the server is too
/// old.
pub(crate) fn is_unknown_command(text: &str) -> bool {
    text.starts_with("ERR unknown command")
}

/// Whether the server does not have a command of a script.
pub(crate) fn is_unknown_in_script(text: &str) -> bool {
    text.contains("Unknown") && text.contains("command called from")
}

/// An error, and whether its connection has to be discarded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Classified {
    pub(crate) error: StoreError,
    pub(crate) discard: bool,
}

/// Classifies an error by what may have happened at the server.
///
/// An error reply with a code means that nothing ran. Without a reply, this is unknown.
pub(crate) fn classify(error: &RedisError) -> Classified {
    let text = text(error);
    if !Safeguard::ErrorKinds.is_on() {
        return Classified { error: StoreError::Refused(text), discard: true };
    }
    let code = text.split(' ').next().unwrap_or_default();
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse => {
            Classified { error: StoreError::Unknown(text), discard: true }
        }
        ErrorKind::UnexpectedReturnType => {
            Classified { error: StoreError::Unknown(text), discard: false }
        }
        _ if is_too_old(&text) => Classified { error: StoreError::Denied(text), discard: true },
        _ if is_unknown_command(&text) => {
            Classified { error: StoreError::Denied(text), discard: false }
        }
        // A new connection has to log in: the server's users were changed, or the server was
        // replaced.
        _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
            Classified { error: StoreError::Denied(text), discard: true }
        }
        _ if code == "NOPERM" => Classified { error: StoreError::Denied(text), discard: false },
        _ if text.contains(NO_SUCH_DATABASE) => {
            Classified { error: StoreError::Denied(text), discard: true }
        }
        // The error of a script that uses a command or a key without the user's permission: the
        // first text is that of Redis 7, the second one that of Redis 8 and Valkey.
        _ if text.contains("The user executing the script can't")
            || text.contains("ACL failure in script") =>
        {
            Classified { error: StoreError::Denied(text), discard: false }
        }
        // The server's role has changed while it waited for replicas, and the request before has
        // run.
        _ if code == "UNBLOCKED" => Classified { error: StoreError::Unknown(text), discard: true },
        // The server's role has changed. A new connection may reach the right server.
        _ if matches!(code, "READONLY" | "MASTERDOWN") => {
            Classified { error: StoreError::Refused(text), discard: true }
        }
        _ => Classified { error: StoreError::Refused(text), discard: false },
    }
}

/// Classifies an error that a script caught and returned as text.
pub(crate) fn classify_text(text: &str) -> StoreError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    let is_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    // Servers before 7.0 put the position in the script first.
    let (code, detail) = if is_code { (code, detail) } else { ("ERR", text) };
    classify(&redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))).error
}

/// The server's own message if there is one. It names keys and commands, never passwords.
fn text(error: &RedisError) -> String {
    if error.kind() == ErrorKind::Parse {
        return "the reply does not follow the Redis protocol; is this a Redis server's address?"
            .into();
    }
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    // Servers before 7.0 wrap the error of a command inside a script: `ERR Error running script
    // (…): @user_script:19: @user_script: 19: -OOM command not allowed …`.
    let in_script = text.split_once("@user_script").and_then(|(_, rest)| rest.split_once(": -"));
    let text = in_script.map_or(&*text, |(_, reply)| reply);
    // The arguments follow. They include owner tokens, which are secret.
    let text = text.split(", with args beginning with").next().unwrap_or(text);
    text.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_reply(code: &str, detail: &str) -> Classified {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        classify(&error)
    }

    #[test]
    fn transient_errors_are_refusals() {
        for code in ["OOM", "MISCONF", "NOREPLICAS", "BUSY"] {
            let classified = of_reply(code, "…");
            assert_eq!(classified.error, StoreError::Refused(format!("{code} …")));
            assert!(!classified.discard);
        }
    }

    /// Nothing ran, so the request can be retried, possibly on another server.
    #[test]
    fn cluster_errors_are_refusals() {
        for (code, detail) in [
            ("MOVED", "12182 127.0.0.1:7001"),
            ("ASK", "12182 127.0.0.1:7001"),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot"),
            ("CLUSTERDOWN", "Hash slot not served"),
            ("CROSSSLOT", "Keys in request don't hash to the same slot"),
        ] {
            let classified = of_reply(code, detail);
            assert_eq!(classified.error, StoreError::Refused(format!("{code} {detail}")));
        }
    }

    #[test]
    fn the_connection_to_a_server_whose_role_has_changed_is_discarded() {
        for code in ["READONLY", "MASTERDOWN"] {
            let classified = of_reply(code, "…");
            assert_eq!(classified.error, StoreError::Refused(format!("{code} …")));
            assert!(classified.discard);
        }
    }

    /// In the form that Redis 6.2 reports them.
    #[test]
    fn errors_inside_a_script_are_classified_by_their_own_code() {
        let wrapped = |reply: &str| {
            let detail = format!(
                "Error running script (call to f_01): @user_script:9: @user_script: 9: {reply}"
            );
            of_reply("ERR", &detail)
        };
        assert!(wrapped("-READONLY You can't write against a read only replica").discard);
        assert!(!wrapped("-OOM command not allowed").discard);
        assert!(matches!(wrapped("-NOPERM this user").error, StoreError::Denied(_)));
        assert!(matches!(wrapped("attempt to index").error, StoreError::Refused(_)));
    }

    #[test]
    fn a_request_that_was_ended_by_a_failover_may_have_run() {
        let unblocked = of_reply("UNBLOCKED", "force unblock from blocking operation");
        assert!(matches!(unblocked.error, StoreError::Unknown(_)));
        assert!(unblocked.discard);
    }

    #[test]
    fn permission_errors_are_permanent() {
        for code in ["NOAUTH", "WRONGPASS"] {
            assert!(matches!(of_reply(code, "…").error, StoreError::Denied(_)));
        }
        for in_script in [
            "The user executing the script can't run this command",
            "ACL failure in script: User mute has no permissions to run the 'publish' command",
        ] {
            assert!(matches!(of_reply("ERR", in_script).error, StoreError::Denied(_)));
        }
    }

    #[test]
    fn an_unknown_command_is_a_permanent_error() {
        let detail = "unknown command 'EVALSHA', with args beginning with: 's3cret'";
        let classified = of_reply("ERR", detail);
        assert_eq!(classified.error, StoreError::Denied("ERR unknown command 'EVALSHA'".into()));
        assert!(!classified.discard);
    }

    #[test]
    fn a_server_that_is_too_old_is_a_permanent_error() {
        for detail in ["unknown command `HELLO`", "HELLO is not supported: resp3 is disabled"] {
            assert!(is_too_old(detail), "{detail}");
            let classified = of_reply("NOPROTO", detail);
            assert!(matches!(classified.error, StoreError::Denied(_)), "{detail}");
            assert!(classified.discard);
        }
        assert!(!is_too_old("HELLO") && !is_too_old("unknown command `EVAL`"));
    }

    #[test]
    fn a_database_that_does_not_exist_is_a_permanent_error() {
        let classified = of_reply("ERR", NO_SUCH_DATABASE);
        assert!(matches!(classified.error, StoreError::Denied(_)) && classified.discard);
    }

    #[test]
    fn an_error_that_a_script_returns_is_classified_by_its_code() {
        assert!(matches!(classify_text("NOPERM no rights"), StoreError::Denied(_)));
        let plain = classify_text("user_script:3: -OOM command not allowed");
        assert_eq!(
            plain,
            StoreError::Refused("ERR user_script:3: -OOM command not allowed".into())
        );
        assert!(matches!(classify_text(""), StoreError::Refused(_)));
    }

    #[test]
    fn a_reply_of_an_unexpected_type_leaves_the_outcome_unknown() {
        let error = RedisError::from((ErrorKind::UnexpectedReturnType, "type"));
        let classified = classify(&error);
        assert!(matches!(classified.error, StoreError::Unknown(_)) && !classified.discard);
    }

    #[test]
    fn a_reply_in_another_protocol_is_explained_in_one_line() {
        let error = redis::RedisError::from((ErrorKind::Parse, "parse", "at 0\nHTTP/1.1".into()));
        let classified = classify(&error);
        assert!(classified.discard);
        let StoreError::Unknown(text) = classified.error else { panic!("it may have run") };
        assert!(text.contains("Redis server") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_unknown() {
        let error = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let classified = classify(&error);
        assert!(matches!(classified.error, StoreError::Unknown(_)));
        assert!(classified.discard);
    }
}
