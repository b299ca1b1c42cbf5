//! What the errors of etcd mean for the request that they answer.

use std::error::Error;

use tonic::{Code, ConnectError, Status};

use lock_core::store::store_error::{StoreError, with_causes};

/// What tonic says about a message that has more than 4 MiB.
const TOO_LARGE: &str = "message length too large";

/// How the text of a connection that has failed begins.
pub(super) const CONNECTION_FAILED: &str = "the connection to";

/// What an error means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EtcdFailure {
    /// The server has refused the request, and so would every other member.
    Refused(StoreError),
    /// This member cannot serve the request, which has had no effect. Another one may.
    NotHere(String),
    /// The same, and the connection or the settings have to be changed to use this member.
    Unusable(StoreError),
    /// The token of the user is not valid any more. The request has had no effect.
    LoggedOut(String),
    /// The lease of the request does not exist. The request has had no effect.
    LeaseGone,
    /// The database is full. If the request needs room, it may have been carried out: etcd says so also when it has just taken
    /// the last room.
    NoSpace(String),
    /// The request may have been carried out, or may yet be.
    Unknown(String),
}

impl EtcdFailure {
    /// The cause.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Refused(error) | Self::Unusable(error) => error.to_string(),
            Self::NotHere(cause)
            | Self::LoggedOut(cause)
            | Self::NoSpace(cause)
            | Self::Unknown(cause) => cause.clone(),
            Self::LeaseGone => "the lease in etcd has ended".to_owned(),
        }
    }

    /// Whether the user may not make this request.
    pub(super) fn is_missing_permission(&self) -> bool {
        matches!(self, Self::Refused(StoreError::Denied(text)) if text.contains("permission denied"))
    }

    /// Whether the answer has more bytes than a client accepts.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(self, Self::Refused(StoreError::Refused(text)) if text.contains(TOO_LARGE))
    }

    /// What it means for a request that needs room.
    pub(super) fn of_write(self) -> Self {
        match self {
            Self::NoSpace(cause) => Self::Unknown(cause),
            failure => failure,
        }
    }

    /// Whether a transaction of several parts may have failed because of one of them. It had no effect then.
    pub(super) fn may_be_of_part(&self) -> bool {
        match self {
            Self::LeaseGone => true,
            Self::Refused(error) => !error.to_string().contains("too many requests"),
            _ => false,
        }
    }

    /// Whether another member may serve the request.
    pub(super) fn is_of_member(&self) -> bool {
        matches!(self, Self::NotHere(_) | Self::Unusable(_) | Self::Unknown(_))
    }

    /// The error of the request.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Refused(error) | Self::Unusable(error) => error,
            Self::NotHere(cause) | Self::NoSpace(cause) => StoreError::Refused(cause),
            Self::LoggedOut(cause) => StoreError::Denied(cause),
            Self::LeaseGone => StoreError::Refused(self.text()),
            Self::Unknown(cause) => StoreError::Unknown(cause),
        }
    }
}

/// What an answer means that is an error. The texts are those of etcd's API; a text that is not known here means that the
/// outcome is unknown, unless the kind of the error excludes an effect.
pub(super) fn meaning(status: &Status, member: &str) -> EtcdFailure {
    if let Some(failure) = connect_error(status, member) {
        return failure;
    }
    if status.source().is_some() {
        if let Some(problem) = protocol_error(&said_with_causes(status, member), member) {
            return EtcdFailure::Unusable(problem);
        }
        // The connection has failed. tonic reports some reasons with the codes of refusals.
        return EtcdFailure::Unknown(said_with_causes(status, member));
    }
    let text = status.message();
    let said = || format!("{member} says: {text}");
    let says = |part: &str| text.contains(part);
    let denied = |problem: String| EtcdFailure::Refused(StoreError::Denied(problem));
    match status.code() {
        Code::Unauthenticated => EtcdFailure::LoggedOut(said()),
        Code::InvalidArgument if says("revision of auth store is old") => {
            EtcdFailure::LoggedOut(said())
        }
        Code::PermissionDenied => denied(format!("{} for this user and key", said())),
        Code::InvalidArgument if says("user name is empty") => {
            denied(format!("{}: add a user and its password to the URL", said()))
        }
        Code::InvalidArgument | Code::FailedPrecondition if says("authentication failed") => {
            denied(said())
        }
        Code::FailedPrecondition if says("authentication is not enabled") => config(format!(
            "{}: remove the user from the URL, or run `etcdctl auth enable`",
            said()
        )),
        Code::InvalidArgument if says("too many operations") => {
            config(format!("{}: start etcd with its default of `--max-txn-ops`, 128", said()))
        }
        Code::Unimplemented => {
            let problem = format!(
                "{member} has no API of etcd, version 3: name the client port (2379) of etcd 3.4 or newer"
            );
            EtcdFailure::Unusable(StoreError::Config { option: "url", problem })
        }
        Code::NotFound if says("lease not found") => EtcdFailure::LeaseGone,
        Code::ResourceExhausted if says("space exceeded") => EtcdFailure::NoSpace(format!(
            "{}: compact and defragment etcd, or raise `--quota-backend-bytes`, and run `etcdctl alarm disarm`",
            said()
        )),
        Code::ResourceExhausted => EtcdFailure::Refused(StoreError::Refused(said())),
        Code::Unavailable | Code::FailedPrecondition
            if text == "etcdserver: no leader" || says("not supported for learner") =>
        {
            EtcdFailure::NotHere(said())
        }
        // Checked before the request is proposed, or when it is applied.
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::NotFound
            if text.starts_with("etcdserver: ") =>
        {
            EtcdFailure::Refused(StoreError::Refused(said()))
        }
        // The client has not read it. Another member would answer the same.
        Code::OutOfRange if says(TOO_LARGE) => {
            EtcdFailure::Refused(StoreError::Refused(format!("the answer of {member}: {text}")))
        }
        _ => EtcdFailure::Unknown(said()),
    }
}

fn config(problem: String) -> EtcdFailure {
    EtcdFailure::Refused(StoreError::Config { option: "url", problem })
}

/// Why there is no connection, if the request was not sent because of that.
fn connect_error(status: &Status, member: &str) -> Option<EtcdFailure> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return Some(match unusable(error) {
                Some(problem) => EtcdFailure::Unusable(problem),
                None => EtcdFailure::NotHere(format!(
                    "cannot connect to {member}: {}",
                    with_causes(error)
                )),
            });
        }
        cause = error.source();
    }
    None
}

/// The problem that the connector has found, if other attempts would meet it as well.
fn unusable(error: &(dyn Error + 'static)) -> Option<StoreError> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(UnusableServer(problem)) = error.downcast_ref() {
            return Some(problem.clone());
        }
        cause = error.source();
    }
    None
}

/// The problem of a server that speaks another protocol, and so has not carried out the request.
fn protocol_error(causes: &str, member: &str) -> Option<StoreError> {
    // What is no HTTP/2 is read as a frame with a length that no frame has.
    causes.contains("frame with invalid size").then(|| StoreError::Config {
        option: "url",
        problem: format!(
            "{member} speaks another protocol than etcd 3: name the client port (2379) of etcd 3.4 or newer, and write \
             `etcds://` if it uses TLS"
        ),
    })
}

/// Why a server cannot be used, as an error of the connector.
#[derive(Debug)]
pub(super) struct UnusableServer(pub(super) StoreError);

impl std::fmt::Display for UnusableServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for UnusableServer {}

fn said_with_causes(status: &Status, member: &str) -> String {
    let causes = status.source().map_or_else(|| status.message().to_owned(), with_causes);
    format!("{CONNECTION_FAILED} {member} has failed: {causes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, text: &str) -> EtcdFailure {
        meaning(&Status::new(code, text), "a:2379")
    }

    #[test]
    fn each_answer_has_its_meaning() {
        use EtcdFailure::{LeaseGone, LoggedOut, NotHere, Refused, Unknown};
        let denied = |failure| matches!(failure, Refused(StoreError::Denied(_)));
        let config = |failure| matches!(failure, Refused(StoreError::Config { .. }));
        let refused = |failure| matches!(failure, Refused(StoreError::Refused(_)));
        assert!(matches!(
            of(Code::Unauthenticated, "etcdserver: invalid auth token"),
            LoggedOut(_)
        ));
        let old = "etcdserver: revision of auth store is old";
        assert!(matches!(of(Code::InvalidArgument, old), LoggedOut(_)));
        assert!(denied(of(Code::PermissionDenied, "etcdserver: permission denied")));
        assert!(denied(of(Code::InvalidArgument, "etcdserver: user name is empty")));
        let failed = "etcdserver: authentication failed, invalid user ID or password";
        assert!(denied(of(Code::InvalidArgument, failed)));
        assert!(config(of(Code::FailedPrecondition, "etcdserver: authentication is not enabled")));
        let many = "etcdserver: too many operations in txn request";
        assert!(config(of(Code::InvalidArgument, many)));
        assert!(matches!(of(Code::Unimplemented, "unknown service"), EtcdFailure::Unusable(_)));
        assert_eq!(of(Code::NotFound, "etcdserver: requested lease not found"), LeaseGone);
        let full = "etcdserver: mvcc: database space exceeded";
        let full = of(Code::ResourceExhausted, full);
        assert!(matches!(full, EtcdFailure::NoSpace(_)));
        assert!(refused(EtcdFailure::Refused(full.clone().into_error())));
        assert!(matches!(full.of_write(), Unknown(_)), "it may have been carried out");
        assert!(refused(of(Code::ResourceExhausted, "etcdserver: too many requests")));
        assert!(refused(of(Code::InvalidArgument, "etcdserver: key is not provided")));
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), NotHere(_)));
        for (code, text) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unknown, "etcdserver: no leader"),
            (Code::Unknown, "transport error"),
            (Code::InvalidArgument, "anything else"),
            (Code::Cancelled, "cancelled"),
            (Code::DeadlineExceeded, "late"),
        ] {
            assert!(matches!(of(code, text), Unknown(_)), "{text}");
        }
    }

    #[test]
    fn what_may_be_of_one_part_is_sent_again_without_the_others() {
        for (code, text, may_be_of_part) in [
            (Code::NotFound, "etcdserver: requested lease not found", true),
            (Code::PermissionDenied, "etcdserver: permission denied", true),
            (Code::InvalidArgument, "etcdserver: request is too large", true),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", true),
            (Code::ResourceExhausted, "etcdserver: too many requests", false),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", false),
            (Code::Unavailable, "etcdserver: request timed out", false),
        ] {
            assert_eq!(of(code, text).may_be_of_part(), may_be_of_part, "{text}");
        }
    }

    #[test]
    fn a_server_that_speaks_another_protocol_is_named() {
        let of_cause = |cause: &'static str| {
            let mut status = Status::new(Code::Unknown, "http2 error");
            status.set_source(std::sync::Arc::new(std::io::Error::other(cause)));
            meaning(&status, "a:2380")
        };
        match of_cause("connection error detected: frame with invalid size") {
            EtcdFailure::Unusable(StoreError::Config { option: "url", problem }) => {
                assert!(problem.contains("a:2380") && problem.contains("2379"), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_connection_that_breaks_is_no_refusal() {
        for code in [Code::ResourceExhausted, Code::PermissionDenied, Code::Unauthenticated] {
            let mut status = Status::new(code, "http2 error");
            status.set_source(std::sync::Arc::new(std::io::Error::other("reset")));
            match meaning(&status, "a:2379") {
                EtcdFailure::Unknown(text) => assert!(text.contains("reset"), "{text}"),
                other => panic!("{code:?}: {other:?}"),
            }
        }
    }
}
