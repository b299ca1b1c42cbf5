//! A contestant's process, as the driver sees it.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::contestant::Contestant;

/// How long a program may take to start.
const START: Duration = Duration::from_secs(30);
/// How long it may take to end by itself.
const END: Duration = Duration::from_secs(3);

/// A running contestant. Ended when dropped.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: Arc<Output>,
    asked: u64,
    /// What it said of itself: name, version, settings.
    pub(crate) about: String,
}

/// What it has said so far.
#[derive(Default)]
struct Output {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Default)]
struct Said {
    ready: Option<String>,
    answers: HashMap<u64, String>,
    ended: bool,
}

/// The number of a command that is being answered.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

/// What came of a command that needs no more than that.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    Unsupported,
    /// There was none in time.
    Late,
}

impl Process {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(contestant: &Contestant, peers: &Path, url: &str) -> Result<Self> {
        let mut command = contestant.command(peers, url)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} does not start", contestant.name))?;
        let output = Arc::new(Output::default());
        let input = child.stdin.take();
        listen(&mut child, Arc::clone(&output), contestant.name)?;
        let mut process = Self { child, input, output, asked: 0, about: String::new() };
        let ready = process.output.wait(START, |said| said.ready.clone());
        process.about = ready.with_context(|| format!("{} does not get ready", contestant.name))?;
        Ok(process)
    }

    /// Sends a command.
    pub(crate) fn tell(&mut self, command: &str) -> Result<Ticket> {
        self.asked += 1;
        let input = self.input.as_mut().context("it has ended")?;
        writeln!(input, "{} {command}", self.asked).context("it does not listen any more")?;
        Ok(Ticket(self.asked))
    }

    /// Waits for the answer to a command.
    pub(crate) fn answer(&self, ticket: Ticket, patience: Duration) -> Result<Answer> {
        let answer = self.output.wait(patience, |said| said.answers.remove(&ticket.0));
        match answer.as_deref().map(|answer| answer.split_once(' ').unwrap_or((answer, ""))) {
            None if self.output.wait(Duration::ZERO, |said| said.ended.then_some(())).is_some() => {
                Err(anyhow!("it has ended"))
            }
            None => Ok(Answer::Late),
            Some(("ok", _)) => Ok(Answer::Ok),
            Some(("error", why)) if why.starts_with("unsupported") => Ok(Answer::Unsupported),
            Some((answer, why)) => bail!("{answer} {why}"),
        }
    }

    /// A command that must be done in time.
    pub(crate) fn ask(&mut self, command: &str, patience: Duration) -> Result<()> {
        let ticket = self.tell(command)?;
        self.done(ticket, patience).with_context(|| {
            let short: String = command.chars().take(40).collect();
            format!("`{short}`")
        })
    }

    /// Waits for a command that must be done in time.
    pub(crate) fn done(&self, ticket: Ticket, patience: Duration) -> Result<()> {
        match self.answer(ticket, patience)? {
            Answer::Ok => Ok(()),
            Answer::Unsupported => bail!("unsupported"),
            Answer::Late => bail!("no answer within {patience:?}"),
        }
    }

    /// The memory that it has in RAM, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_ascii_whitespace().next());
        let kilobytes: f64 = kilobytes.context("no VmRSS")?.parse()?;
        Ok(kilobytes * 1024.0)
    }

    /// The processor time that it has used, user and system, in seconds.
    pub(crate) fn processor(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = ticks(&stat).context("/proc/PID/stat is not as expected")?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends when its input does.
        drop(self.input.take());
        let end = Instant::now() + END;
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Our own child; if it has ended meanwhile there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Output {
    fn wait<T>(
        &self,
        patience: Duration,
        mut look: impl FnMut(&mut Said) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + patience;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = look(&mut said) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if said.ended || left.is_zero() {
                return None;
            }
            (said, _) = self.more.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn hear(&self, line: Option<&str>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match line {
            None => said.ended = true,
            Some(line) => match line.split_once(' ') {
                Some(("ready", about)) => said.ready = Some(about.to_owned()),
                Some((number, answer)) if number.parse::<u64>().is_ok() => {
                    let number = number.parse().expect("it was one just now");
                    said.answers.insert(number, answer.to_owned());
                }
                _ => eprintln!("a contestant says: {line}"),
            },
        }
        self.more.notify_all();
    }
}

/// Two threads that read what it says, until it ends.
fn listen(child: &mut Child, output: Arc<Output>, name: &'static str) -> Result<()> {
    let said = child.stdout.take().context("its output is piped")?;
    let complaints = child.stderr.take().context("its errors are piped")?;
    std::thread::spawn(move || {
        BufReader::new(said)
            .lines()
            .map_while(Result::ok)
            .for_each(|line| output.hear(Some(&line)));
        output.hear(None);
    });
    std::thread::spawn(move || {
        // A library that complains of every cancelled request would fill the screen.
        for line in BufReader::new(complaints).lines().map_while(Result::ok).take(3) {
            eprintln!("  {name}: {line}");
        }
    });
    Ok(())
}

/// User and system time, in clock ticks: fields 14 and 15.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, in brackets, with any characters in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_bracket_in_its_name_has_its_processor_time_in_the_same_place() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 9 0 0";
        assert_eq!(ticks(stat), Some(300));
    }
}
