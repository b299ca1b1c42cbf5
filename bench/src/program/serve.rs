//! The line protocol of the contestants.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::clients::{self, Competition};
use super::keys::RunKeys;
use super::library::Library;
use super::run::{self, WaitingTasks};
use crate::record;

/// The state that commands share.
struct SharedState<L: Library> {
    library: L,
    url: String,
    held: Mutex<HashMap<String, L::Guard>>,
    waiters: Mutex<Option<WaitingTasks>>,
    /// The clients that the command `clients` has connected, in addition to `library`.
    clients: Mutex<Vec<L>>,
    competition: Mutex<Option<Competition>>,
}

/// Executes the commands on standard input concurrently, until its end.
pub(super) async fn serve<L: Library>(name: &str, url: &str, library: L) -> Result<()> {
    let warm = library.lock("warm");
    L::release(L::acquire(&warm).await?).await?;
    let (version, settings) = library.settings();
    println!("ready {name} {version} | {settings}");
    let state = Arc::new(SharedState {
        library,
        url: url.to_owned(),
        held: Mutex::default(),
        waiters: Mutex::default(),
        clients: Mutex::default(),
        competition: Mutex::default(),
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [number, verb, arguments @ ..] = words.as_slice() else { return };
            match state.answer(verb, arguments).await {
                Ok(answer) => println!("{number} {answer}"),
                // The protocol requires a single line.
                Err(error) => {
                    let error = format!("{error:#}").replace('\n', " ");
                    println!("{number} error {error}");
                }
            }
        });
    }
    Ok(())
}

impl<L: Library> SharedState<L> {
    async fn answer(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        match (verb, arguments) {
            // The library uses its default lease.
            ("acquire", [key, wait, _lease]) => {
                let lock = self.library.lock(key);
                match timeout(milliseconds(wait)?, L::acquire(&lock)).await {
                    Err(_) => Ok("busy".to_owned()),
                    Ok(guard) => {
                        self.held.lock().await.insert((*key).to_owned(), guard?);
                        Ok("ok".to_owned())
                    }
                }
            }
            ("release", [key]) => {
                let guard = self.held.lock().await.remove(*key).context("the key is not held")?;
                L::release(guard).await?;
                Ok("ok".to_owned())
            }
            ("run", [file, tasks, time, work, keys @ ..]) => {
                let tasks = tasks.parse()?;
                let keys = RunKeys::parse(keys, tasks as usize)?;
                let work = Duration::from_micros(work.parse()?);
                let (records, failures) =
                    run::run(&self.library, tasks, milliseconds(time)?, work, &keys).await?;
                record::write(Path::new(file), &records)?;
                failures.check()?;
                Ok(format!("ok {}", records.len()))
            }
            ("hold", [_, _]) if !L::RENEWS => {
                bail!("unsupported: the library does not renew locks")
            }
            ("hold", [count, time]) => {
                run::hold(&self.library, count.parse()?, milliseconds(time)?).await?;
                Ok("ok".to_owned())
            }
            ("waiters", [key, count]) => {
                let waiters = WaitingTasks::start(&self.library, key, count.parse()?).await?;
                *self.waiters.lock().await = Some(waiters);
                Ok("ok".to_owned())
            }
            ("drain", [file]) => {
                let waiters = self.waiters.lock().await.take().context("there are no waiters")?;
                let records = waiters.drain().await?;
                record::write(Path::new(file), &records)?;
                Ok(format!("ok {}", records.len()))
            }
            ("clients", [count]) => {
                *self.clients.lock().await = clients::connect(&self.url, count.parse()?).await?;
                Ok("ok".to_owned())
            }
            ("compete", [key, work]) => {
                let work = Duration::from_micros(work.parse()?);
                let competition = Competition::start(&self.clients.lock().await, key, work);
                let all_granted = competition.all_granted();
                *self.competition.lock().await = Some(competition);
                all_granted.await;
                Ok("ok".to_owned())
            }
            ("stop", [file]) => {
                let competition = self.competition.lock().await.take();
                let records = competition.context("no clients compete")?.stop().await?;
                record::write(Path::new(file), &records)?;
                Ok(format!("ok {}", records.len()))
            }
            _ => bail!("unsupported: {verb} with {} arguments", arguments.len()),
        }
    }
}

fn milliseconds(word: &str) -> Result<Duration> {
    Ok(Duration::from_millis(word.parse().with_context(|| format!("{word:?} is not a number"))?))
}
