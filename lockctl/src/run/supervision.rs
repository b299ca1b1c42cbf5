//! What happens to a command while it runs under its lock.

use std::time::Duration;

use lock_runtime::{LockGuard, LostReason};
use rustix::process::Signal;

use super::child::CommandProcess;
use super::countdown::{Countdown, CountdownStep};
use super::signals::{self, Signals};
use crate::clock::since_boot;
use crate::exit::Failure;
use crate::messages::Messages;
use crate::span;

/// A command that runs under its lock.
pub(super) struct Supervision<'a> {
    pub(super) guard: &'a LockGuard,
    pub(super) process: CommandProcess,
    /// `None` if the command goes on without its lock.
    pub(super) countdown: Option<Countdown>,
    /// Whether the command is in the process group of `lockctl`.
    pub(super) shares_group: bool,
}

/// How a command has ended.
pub(super) struct EndedCommand {
    /// Its exit code.
    pub(super) code: u8,
    /// Whether it was told to end because of its lock.
    pub(super) was_told: bool,
}

impl Supervision<'_> {
    /// Passes signals on, and ends the command before its lock ends. If this future is dropped, the command is
    /// killed.
    pub(super) async fn until_end(
        mut self,
        signals: &mut Signals,
        messages: Messages,
    ) -> Result<EndedCommand, Failure> {
        let mut lost = std::pin::pin!(self.guard.lost());
        let mut is_lost = false;
        while !self.process.has_ended() {
            let pause = self.look();
            tokio::select! {
                signal = signals.next() => self.pass_on(signal),
                reason = &mut lost, if !is_lost => {
                    is_lost = true;
                    self.lose(reason, messages);
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
        let was_told = self.countdown.is_some_and(|countdown| countdown.is_over());
        Ok(EndedCommand { code: self.process.end(was_told)?, was_told })
    }

    /// Looks at the lock, and returns the time until the next look.
    fn look(&mut self) -> Duration {
        loop {
            let Some(countdown) = &mut self.countdown else { return Duration::MAX };
            let left = self.guard.remaining();
            match countdown.step(since_boot(), left) {
                CountdownStep::Wait(pause) => return pause,
                step => self.take(step, &format!("the lock ends in {}", span::show(left))),
            }
        }
    }

    fn lose(&mut self, reason: LostReason, messages: Messages) {
        let text = format!("the lock was lost: {reason}");
        match &mut self.countdown {
            Some(countdown) => {
                let step = countdown.lost(since_boot());
                self.take(step, &text);
            }
            None => messages.warning(format!("{text}; the command goes on without it")),
        }
    }

    fn take(&self, step: CountdownStep, why: &str) {
        match step {
            CountdownStep::Wait(_) => {}
            CountdownStep::Terminate => {
                // The signals come first, because to write may take time.
                self.process.terminate();
                Messages::error(format!("{why}; the command was told to end"));
            }
            CountdownStep::Kill => {
                self.process.send(Signal::KILL);
                Messages::error(format!("{why}; the command was killed"));
            }
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        let is_sent_by_terminal = || self.shares_group && signals::is_foreground_job();
        match signal {
            Signal::CHILD => {}
            // A terminal sends the signals of its keys to all processes of the job.
            Signal::INT | Signal::QUIT if is_sent_by_terminal() => {}
            Signal::TSTP => {
                if !is_sent_by_terminal() {
                    self.process.send(signal);
                }
                // The shell waits until all of its job is suspended. The lock is not renewed then. A command
                // that is suspended by somebody else keeps its lock.
                if signals::is_foreground_job() {
                    signals::stop();
                }
            }
            // A command whose lock has ended meanwhile is killed before it can continue.
            Signal::CONT => {
                self.look();
                self.process.send(signal);
            }
            signal => self.process.send(signal),
        }
    }
}
