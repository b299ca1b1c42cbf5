//! The process of a contestant, controlled by the driver.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::contestant::{Contestant, Programs};

/// How long a program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a program may take to exit after the end of its input.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// A running contestant. Ends when dropped.
pub(crate) struct ContestantProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: Arc<Output>,
    sent: u64,
    /// The name, version and settings that the contestant has printed.
    pub(crate) about: String,
}

/// The output of the contestant so far.
#[derive(Default)]
struct Output {
    state: Mutex<OutputState>,
    more: Condvar,
}

#[derive(Default)]
struct OutputState {
    ready: Option<String>,
    answers: HashMap<u64, String>,
    ended: bool,
}

/// The number of a command that has been sent.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

/// The outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    Unsupported,
    /// There was no answer in time.
    Late,
}

impl ContestantProcess {
    /// Starts a contestant and waits until it is ready.
    pub(crate) fn start(contestant: &Contestant, programs: &Programs, url: &str) -> Result<Self> {
        let mut command = contestant.command(programs, url)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} does not start", contestant.name))?;
        let output = Arc::new(Output::default());
        let input = child.stdin.take();
        read_output(&mut child, Arc::clone(&output), contestant.name)?;
        let mut process = Self { child, input, output, sent: 0, about: String::new() };
        let ready = process.output.wait(START_TIMEOUT, |state| state.ready.clone());
        process.about =
            ready.with_context(|| format!("{} does not become ready", contestant.name))?;
        Ok(process)
    }

    /// Sends a command.
    pub(crate) fn tell(&mut self, command: &str) -> Result<Ticket> {
        self.sent += 1;
        let input = self.input.as_mut().context("the process has ended")?;
        writeln!(input, "{} {command}", self.sent)
            .context("the process does not read its input")?;
        Ok(Ticket(self.sent))
    }

    /// Waits for the answer to a command.
    pub(crate) fn answer(&self, ticket: Ticket, limit: Duration) -> Result<Answer> {
        let answer = self.output.wait(limit, |state| state.answers.remove(&ticket.0));
        match answer.as_deref().map(|answer| answer.split_once(' ').unwrap_or((answer, ""))) {
            None if self
                .output
                .wait(Duration::ZERO, |state| state.ended.then_some(()))
                .is_some() =>
            {
                Err(anyhow!("the process has ended"))
            }
            None => Ok(Answer::Late),
            Some(("ok", _)) => Ok(Answer::Ok),
            Some(("error", why)) if why.starts_with("unsupported") => Ok(Answer::Unsupported),
            Some((answer, why)) => bail!("{answer} {why}"),
        }
    }

    /// Sends a command and waits until it has succeeded.
    pub(crate) fn ask(&mut self, command: &str, limit: Duration) -> Result<()> {
        let ticket = self.tell(command)?;
        self.done(ticket, limit).with_context(|| {
            let short: String = command.chars().take(40).collect();
            format!("`{short}`")
        })
    }

    /// Waits until a command has succeeded.
    pub(crate) fn done(&self, ticket: Ticket, limit: Duration) -> Result<()> {
        match self.answer(ticket, limit)? {
            Answer::Ok => Ok(()),
            Answer::Unsupported => bail!("unsupported"),
            Answer::Late => bail!("no answer within {limit:?}"),
        }
    }

    /// The resident memory of the process, in bytes.
    pub(crate) fn memory(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_ascii_whitespace().next());
        let kilobytes: f64 = kilobytes.context("no VmRSS")?.parse()?;
        Ok(kilobytes * 1024.0)
    }

    /// The user and system time that the process has used, in seconds.
    pub(crate) fn processor(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = ticks(&stat).context("unexpected content of /proc/PID/stat")?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for ContestantProcess {
    fn drop(&mut self) {
        // The process exits at the end of its input.
        drop(self.input.take());
        let end = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Both calls fail if the process has ended in the meantime.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Output {
    fn wait<T>(
        &self,
        limit: Duration,
        mut find: impl FnMut(&mut OutputState) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + limit;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find(&mut state) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                return None;
            }
            (state, _) =
                self.more.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add(&self, line: Option<&str>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match line {
            None => state.ended = true,
            Some(line) => match line.split_once(' ') {
                Some(("ready", about)) => state.ready = Some(about.to_owned()),
                Some((number, answer)) if number.parse::<u64>().is_ok() => {
                    let number = number.parse().expect("checked above");
                    state.answers.insert(number, answer.to_owned());
                }
                _ => eprintln!("unexpected output of a contestant: {line}"),
            },
        }
        self.more.notify_all();
    }
}

/// Starts two threads that read the output and the errors of the contestant.
fn read_output(child: &mut Child, output: Arc<Output>, name: &'static str) -> Result<()> {
    let stdout = child.stdout.take().context("stdout is not piped")?;
    let stderr = child.stderr.take().context("stderr is not piped")?;
    std::thread::spawn(move || {
        BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .for_each(|line| output.add(Some(&line)));
        output.add(None);
    });
    std::thread::spawn(move || {
        // A library may log every cancelled request, so only the first lines are printed. The others are read as well,
        // because some programs end if nobody does.
        for (at, line) in BufReader::new(stderr).lines().map_while(Result::ok).enumerate() {
            if at < 3 {
                eprintln!("  {name}: {line}");
            }
        }
    });
    Ok(())
}

/// User and system time, in clock ticks: fields 14 and 15.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the name of the program in parentheses, which may contain any characters.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parenthesis_in_the_name_of_a_program_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 9 0 0";
        assert_eq!(ticks(stat), Some(300));
    }
}
