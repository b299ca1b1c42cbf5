//! The peer program of `rslock`, with the part of the line protocol of `peers/README.md` that the
//! interop suite needs.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_tests::workload::patient_connection;
use redis::aio::MultiplexedConnection;
use rslock::{Lock, LockError, LockManager};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The lease of a counting task. The library does not renew locks.
const LEASE: Duration = Duration::from_secs(30);

type PeerResult<T = String> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> PeerResult<()> {
    let url = std::env::args().nth(2).ok_or("usage: rslock-peer rslock REDIS_URL")?;
    let server = patient_connection(&url).await?;
    let mut locks = LockManager::new(vec![url]);
    let delay = Duration::from_millis(200);
    locks.set_retry(u32::MAX, delay);
    let mut once = locks.clone();
    once.set_retry(1, delay);
    let held = Arc::default();
    let peer = RslockPeer { locks, once, server, held };
    println!("ready rslock 0.10.0 | tries without end every 0 to 200 ms at random");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let peer = peer.clone();
        tokio::spawn(async move {
            let (number, command) = line.split_once(' ').unwrap_or((&line, ""));
            let words: Vec<&str> = command.split(' ').collect();
            let answer = peer.answer(&words).await;
            println!("{number} {}", answer.unwrap_or_else(|error| format!("error {error}")));
        });
    }
    // Commands that still wait get no answer.
    std::process::exit(0)
}

#[derive(Clone)]
struct RslockPeer {
    locks: LockManager,
    once: LockManager,
    server: MultiplexedConnection,
    held: Arc<Mutex<HashMap<String, Arc<Lock>>>>,
}

impl RslockPeer {
    async fn answer(&self, words: &[&str]) -> PeerResult {
        match words {
            ["acquire", key, wait, lease] => {
                let (wait, lease) = (milliseconds(wait)?, milliseconds(lease)?);
                let granted = if wait.is_zero() {
                    self.once.lock(*key, lease).await
                } else {
                    let waiting = self.locks.lock(*key, lease);
                    timeout(wait, waiting).await.unwrap_or(Err(LockError::Unavailable))
                };
                match granted {
                    Ok(lock) => self.remember(key, lock),
                    Err(LockError::Unavailable) => return Ok("busy".into()),
                    Err(error) => return Err(error.into()),
                }
            }
            ["renew", key, lease] => {
                let lock = self.recall(key)?;
                self.remember(key, self.once.extend(&lock, milliseconds(lease)?).await?);
            }
            ["release", key] => {
                let lock = self.recall(key)?;
                self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(*key);
                self.locks.unlock(&lock).await;
            }
            ["force", key] => {
                redis::cmd("DEL").arg(key).exec_async(&mut self.server.clone()).await?;
            }
            ["held", key] => {
                let held = self.locks.is_freed(&*self.recall(key)?).await.is_ok();
                return Ok(yes_or_no(held));
            }
            ["owner", key] => {
                let mut server = self.server.clone();
                return Ok(yes_or_no(
                    redis::cmd("EXISTS").arg(key).query_async(&mut server).await?,
                ));
            }
            ["count", key, counter, workers, times] => {
                let (workers, times): (u32, u32) = (workers.parse()?, times.parse()?);
                let mut working = JoinSet::new();
                for _ in 0..workers {
                    let (peer, key, counter) =
                        (self.clone(), (*key).to_owned(), (*counter).to_owned());
                    working.spawn(async move { peer.count(&key, &counter, times / workers).await });
                }
                while let Some(done) = working.join_next().await {
                    done??;
                }
            }
            ["crash"] => {
                rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                )?;
            }
            _ => return Err(format!("unknown command {words:?}").into()),
        }
        Ok("ok".into())
    }

    async fn count(&self, key: &str, counter: &str, times: u32) -> PeerResult<()> {
        let mut server = self.server.clone();
        for _ in 0..times {
            let guard = self.locks.acquire(key, LEASE).await?;
            let n: Option<u64> = redis::cmd("GET").arg(counter).query_async(&mut server).await?;
            let next = n.unwrap_or(0) + 1;
            redis::cmd("SET").arg(counter).arg(next).exec_async(&mut server).await?;
            guard.release().await;
        }
        Ok(())
    }

    fn remember(&self, key: &str, lock: Lock) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(key.to_owned(), Arc::new(lock));
    }

    fn recall(&self, key: &str) -> PeerResult<Arc<Lock>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(key).cloned().ok_or_else(|| format!("{key} is not held here").into())
    }
}

fn milliseconds(word: &str) -> PeerResult<Duration> {
    Ok(Duration::from_millis(word.parse()?))
}

fn yes_or_no(yes: bool) -> String {
    if yes { "ok yes" } else { "ok no" }.to_owned()
}
