//! What the user of the server may do: each command of the documented ACL line is tried on keys that nobody uses.

use redis::{RedisError, RedisResult, Value};

use super::Finding;
use super::server::{ServerConnection, is_denied};
use crate::messages::Messages;
use crate::probe::unique;

/// A command that is tried.
struct Trial {
    /// Its name in the ACL line.
    name: &'static str,
    /// The words. `LOCK`, `QUEUE`, `RUN`, `FENCE`, `OWNER`, `CLIENT`, `WAKE` and `REDISSON` stand for keys and channels of the
    /// probe, and `DATABASE` for the number of that of the URL.
    words: &'static [&'static str],
    /// What does not work without it; `None` if nothing does.
    without: Option<&'static str>,
}

const fn needed(name: &'static str, words: &'static [&'static str]) -> Trial {
    Trial { name, words, without: None }
}

const fn optional(
    name: &'static str,
    words: &'static [&'static str],
    without: &'static str,
) -> Trial {
    Trial { name, words, without: Some(without) }
}

const HOLDERS: &str = "errors do not name holders";
const PERIODS: &str = "`every` does not work";
const MESSAGES: &str = "waiting calls poll, and clients cannot be asked";
const TRACKING: &str = "deleted keys are noticed late";
const NAMES: &str = "connections have no names";

/// The commands of the documented ACL line, in an order in which they leave nothing.
const TRIALS: [Trial; 35] = [
    needed("set", &["SET", "LOCK", "probe", "PX", "10000"]),
    needed("get", &["GET", "LOCK"]),
    needed("pexpire", &["PEXPIRE", "LOCK", "10000"]),
    needed("pttl", &["PTTL", "LOCK"]),
    needed("type", &["TYPE", "LOCK"]),
    // The key holds a text, so this writes nothing.
    optional("hset", &["HSET", "LOCK", "probe", "1"], PERIODS),
    optional("exists", &["EXISTS", "LOCK"], "sets of keys are locked one by one"),
    needed("del", &["DEL", "LOCK"]),
    optional("getrange", &["GETRANGE", "CLIENT", "0", "0"], HOLDERS),
    // Only an existing member would change.
    needed("zadd", &["ZADD", "QUEUE", "XX", "1", "probe"]),
    needed("zpopmin", &["ZPOPMIN", "QUEUE"]),
    needed("zrem", &["ZREM", "QUEUE", "probe"]),
    needed("zrange", &["ZRANGE", "QUEUE", "0", "0"]),
    needed("zrank", &["ZRANK", "QUEUE", "probe"]),
    needed("zscore", &["ZSCORE", "QUEUE", "probe"]),
    needed("zcount", &["ZCOUNT", "QUEUE", "0", "1"]),
    optional("hmget", &["HMGET", "RUN", "probe"], PERIODS),
    optional("time", &["TIME"], "waiting calls have no order"),
    optional("info", &["INFO", "server"], "settings are not checked"),
    needed("eval", &["EVAL", "return 1", "0"]),
    // The server does not know this script, which is another error than a missing permission.
    needed("evalsha", &["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "0"]),
    optional("script|load", &["SCRIPT", "LOAD", "return 1"], "scripts are sent as texts first"),
    needed("ping", &["PING"]),
    needed("hello", &["HELLO"]),
    optional("select", &["SELECT", "DATABASE"], "only database 0 can be used"),
    optional("publish", &["PUBLISH", "CLIENT", "probe"], MESSAGES),
    optional("pubsub|numsub", &["PUBSUB", "NUMSUB", "CLIENT"], MESSAGES),
    optional("subscribe", &["SUBSCRIBE", "CLIENT"], MESSAGES),
    optional("unsubscribe", &["UNSUBSCRIBE", "CLIENT"], MESSAGES),
    optional("client|tracking", &["CLIENT", "TRACKING", "OFF"], TRACKING),
    optional("client|caching", &["CLIENT", "CACHING", "YES"], TRACKING),
    optional("client|setname", &["CLIENT", "SETNAME", "lockctl-doctor"], NAMES),
    // These are keys that other commands of the list use.
    optional("~lock_fence:*", &["GET", "FENCE"], "fencing tokens do not work"),
    optional("~lock_client:*", &["GET", "CLIENT"], HOLDERS),
    optional("~lock_run:*", &["DEL", "RUN"], PERIODS),
];

/// The additional commands with sentinels.
const OF_SENTINELS: [Trial; 1] = [needed("role", &["ROLE"])];

/// Those with a cluster. Nodes that do not serve the slot of a key say so after the check of the permissions.
const OF_CLUSTER: [Trial; 7] = [
    needed("cluster|slots", &["CLUSTER", "SLOTS"]),
    optional("cluster|nodes", &["CLUSTER", "NODES"], "newer configurations are not preferred"),
    needed("asking", &["ASKING"]),
    optional("spublish", &["SPUBLISH", "CLIENT", "probe"], MESSAGES),
    optional("ssubscribe", &["SSUBSCRIBE", "CLIENT"], MESSAGES),
    optional("sunsubscribe", &["SUNSUBSCRIBE", "CLIENT"], MESSAGES),
    optional("pubsub|shardnumsub", &["PUBSUB", "SHARDNUMSUB", "CLIENT"], MESSAGES),
];

/// Those of the format `Redisson`.
const OF_REDISSON: [Trial; 7] = [
    needed("exists", &["EXISTS", "LOCK"]),
    // The key holds a text, so this writes nothing.
    needed("hset", &["HSET", "LOCK", "probe", "1"]),
    needed("hexists", &["HEXISTS", "LOCK", "probe"]),
    needed("hdel", &["HDEL", "LOCK", "probe"]),
    optional("hlen", &["HLEN", "LOCK"], HOLDERS),
    optional("hkeys", &["HKEYS", "LOCK"], HOLDERS),
    optional("&redisson_lock__channel:*", &["PUBLISH", "REDISSON", "0"], "Redisson waits too long"),
];

/// Those of the format `Timestamp`.
const OF_TIMESTAMP: [Trial; 2] = [
    needed("~lock_owner:*", &["GET", "OWNER"]),
    optional("&lock_wake:*", &["PUBLISH", "WAKE", "probe"], MESSAGES),
];

/// A list of rights besides those that every user needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RightsOf {
    Sentinels,
    Cluster,
    Redisson,
    Timestamp,
}

impl RightsOf {
    fn trials(self) -> &'static [Trial] {
        match self {
            Self::Sentinels => &OF_SENTINELS,
            Self::Cluster => &OF_CLUSTER,
            Self::Redisson => &OF_REDISSON,
            Self::Timestamp => &OF_TIMESTAMP,
        }
    }
}

/// All trials: the text that `LOCK` holds in between is written first, and the key is deleted at the end.
fn all(lists: &[RightsOf]) -> Vec<&'static Trial> {
    let also: Vec<&Trial> = lists.iter().flat_map(|list| list.trials()).collect();
    // What is optional for one format may be needed by another.
    let is_left = |trial: &&Trial| also.iter().all(|other| other.name != trial.name);
    let (mut usual, mut trials) = (TRIALS.iter().filter(is_left), Vec::new());
    trials.extend(usual.by_ref().take(1));
    trials.extend(&also);
    trials.extend(usual);
    trials
}

/// What a trial has shown.
enum TrialOutcome {
    /// The server has executed the command, or has refused it for another reason than missing permissions.
    Allowed,
    Denied,
    /// There was no answer.
    Unknown(RedisError),
}

impl TrialOutcome {
    fn of(tried: RedisResult<()>) -> Self {
        match tried {
            Ok(()) => Self::Allowed,
            Err(error) if is_denied(&error) => Self::Denied,
            // Only replies of the server have a code.
            Err(error) if error.code().is_some() => Self::Allowed,
            Err(error) => Self::Unknown(error),
        }
    }
}

/// Tries all commands of the usual list and of these.
pub(super) async fn examine(
    server: &mut ServerConnection,
    namespace: &str,
    lists: &[RightsOf],
    messages: Messages,
) -> Vec<Finding> {
    let probe = format!("lockctl-doctor-{}", unique());
    let database = server.database().to_string();
    let trials = all(lists);
    let mut denied = Vec::new();
    for (tried, trial) in trials.iter().enumerate() {
        let words: Vec<String> =
            trial.words.iter().map(|word| real(word, namespace, &probe, &database)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let outcome = match words[0] {
            "SUBSCRIBE" | "SSUBSCRIBE" => server.ask_apart(&words).await,
            // Another subscription than that of `SUBSCRIBE` does not exist.
            _ => server.ask::<Value>(&words).await.map(drop),
        };
        match TrialOutcome::of(outcome) {
            TrialOutcome::Allowed => {}
            TrialOutcome::Denied => denied.push(*trial),
            TrialOutcome::Unknown(error) => {
                let found = format!("{tried} of {} tried, then: {error}", trials.len());
                return vec![Finding::fail("rights", found, "repeat when the server answers")];
            }
        }
    }
    let names: Vec<&str> = trials.iter().map(|trial| trial.name).collect();
    messages.detail(format!("tried: {}", names.join(" ")));
    if denied.is_empty() {
        let found = format!("all {} commands and keys of the documented list", trials.len());
        return vec![Finding::ok("rights", found)];
    }
    let finding = |trial: &&'static Trial| {
        let found = format!("no permission for {}", trial.name);
        let grant = trial
            .name
            .strip_prefix(['~', '&'])
            .map_or_else(|| format!("grant +{}", trial.name), |_| format!("grant {}", trial.name));
        match trial.without {
            Some(without) => {
                Finding::warn("rights", found, format!("{grant}: without it, {without}"))
            }
            None => Finding::fail(
                "rights",
                found,
                format!("{grant}, with ~{namespace}:* and ~lock_queue:*"),
            ),
        }
    };
    denied.iter().map(finding).collect()
}

/// The word that is sent.
fn real(word: &str, namespace: &str, probe: &str, database: &str) -> String {
    match word {
        "DATABASE" => database.to_owned(),
        "LOCK" if namespace.is_empty() => probe.to_owned(),
        "LOCK" => format!("{namespace}:{probe}"),
        "QUEUE" => format!("lock_queue:{probe}"),
        "RUN" => format!("lock_run:{probe}"),
        "FENCE" => format!("lock_fence:{probe}"),
        "OWNER" => format!("lock_owner:{probe}"),
        "CLIENT" => format!("lock_client:{probe}"),
        "WAKE" => format!("lock_wake:{probe}"),
        "REDISSON" => format!("redisson_lock__channel:{{{probe}}}"),
        word => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redis::ErrorKind;

    use super::*;

    #[test]
    fn only_replies_of_the_server_show_a_permission() {
        let io = std::io::Error::from(std::io::ErrorKind::TimedOut);
        assert!(matches!(TrialOutcome::of(Err(io.into())), TrialOutcome::Unknown(_)));
        let garbage = RedisError::from((ErrorKind::Parse, "garbage"));
        assert!(matches!(TrialOutcome::of(Err(garbage)), TrialOutcome::Unknown(_)));
        assert!(matches!(TrialOutcome::of(Ok(())), TrialOutcome::Allowed));
    }

    #[test]
    fn each_right_is_tried_once_between_the_first_and_the_last_use_of_the_key() {
        let lists =
            [RightsOf::Sentinels, RightsOf::Cluster, RightsOf::Redisson, RightsOf::Timestamp];
        let trials = all(&lists);
        let names: BTreeSet<_> = trials.iter().map(|trial| trial.name).collect();
        assert_eq!(names.len(), trials.len());
        assert_eq!(trials.len(), TRIALS.len() + 1 + 7 + 5 + 2);
        let of_key = |trial: &&&Trial| trial.words.contains(&"LOCK");
        let uses: Vec<_> = trials.iter().filter(of_key).map(|trial| trial.name).collect();
        assert_eq!((uses.first(), uses.last()), (Some(&"set"), Some(&"del")));
        let exists = trials.iter().find(|trial| trial.name == "exists").expect("listed");
        assert!(exists.without.is_none(), "Redisson needs it");
    }
}
