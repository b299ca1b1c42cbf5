//! What works with the library from here.

use std::time::{Duration, Instant};

use lock_runtime::admin::LockAdmin;
use lock_runtime::{LockClient, LockError};

use super::Finding;
use crate::samples::{Samples, milliseconds};
use crate::wording;

/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 100;

/// The lock that is acquired. All runs have the same one, because its last fencing token stays in the store.
const KEY: &str = "lockctl-doctor";

/// Longer than other runs of `doctor` have the lock.
const WAIT: Duration = Duration::from_secs(10);

/// A round trip from which locks are slow.
const SLOW: Duration = Duration::from_millis(50);

/// Acquires a lock, asks a question, and measures.
pub(super) async fn examine(client: &LockClient) -> Vec<Finding> {
    vec![lock(client).await, questions(client).await, latency(client).await]
}

async fn lock(client: &LockClient) -> Finding {
    let attempt = async {
        let guard = client.lock(KEY).wait(WAIT).acquire().await?;
        guard.fencing_token().await?;
        guard.release().await
    };
    match attempt.await {
        Ok(()) => Finding::ok("lock", "acquired, fenced and released"),
        Err(error @ LockError::Denied { .. }) => {
            Finding::fail("lock", wording::of_error(&error), "check the permissions of the user")
        }
        Err(error) => Finding::fail("lock", wording::of_error(&error), "see the message"),
    }
}

async fn questions(client: &LockClient) -> Finding {
    let change = "grant +publish, +subscribe, +unsubscribe, +pubsub|numsub, and the channels of the ACL line: without \
                  them, `ls` and `revoke` do not see the clients";
    let admin = LockAdmin::new(client);
    match admin.clients().await {
        // This client answers as well.
        Ok(answers) if !answers.answers.is_empty() => {
            Finding::ok("messages", format!("clients that answer: {}", answers.answers.len()))
        }
        Ok(_) => Finding::warn("messages", "no client answers, not even this one", change),
        // The store has no messages, or is a quorum, whose messages go over each of its servers.
        Err(error @ LockError::Config { .. }) => {
            let change = match admin.inspect(KEY).await {
                Ok(_) => {
                    "nothing, if this is intended: `revoke`, `clients`, `top` and `serve` do not work with this URL, and \
                     `ls` and `who` show what the store knows"
                }
                Err(_) => {
                    "nothing, if this is intended: of the commands for locks, only `run`, `bench` and `doctor` \
                     work with this URL"
                }
            };
            Finding::warn("messages", wording::of_error(&error), change)
        }
        Err(error) => Finding::warn("messages", wording::of_error(&error), change),
    }
}

async fn latency(client: &LockClient) -> Finding {
    let admin = LockAdmin::new(client);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        if let Err(error) = admin.holder(KEY).await {
            return Finding::fail("latency", wording::of_error(&error), "see the message");
        }
        times.push(start.elapsed());
    }
    let samples = Samples::new(times);
    let [p50, p99] = [50, 99].map(|percent| samples.percentile(percent));
    let found = format!("p50 {}, p99 {}", milliseconds(p50), milliseconds(p99));
    if p99 < SLOW {
        return Finding::ok("latency", found);
    }
    Finding::warn(
        "latency",
        found,
        "use a server nearby, and look for slow requests (`SLOWLOG` in Redis)",
    )
}
