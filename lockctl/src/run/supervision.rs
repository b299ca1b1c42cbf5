//! What happens to a command while it runs under its lock.

use std::time::Duration;

use lock_runtime::{LockGuard, LostReason};
use rustix::process::Signal;

use super::child::CommandProcess;
use super::countdown::{Countdown, CountdownStep};
use super::signals::{self, Signals};
use super::timer::BootTimer;
use crate::clock::since_boot;
use crate::exit::Failure;
use crate::messages::Messages;
use crate::span;

/// The longest pause between two looks at the descendants of a command that has ended: nobody tells when those end
/// whose parents live.
const GROUP_PAUSE: Duration = Duration::from_millis(50);

/// A command that runs under its lock.
pub(super) struct Supervision<'a> {
    guard: &'a LockGuard,
    process: CommandProcess,
    /// `None` if the command goes on without its lock.
    countdown: Option<Countdown>,
    /// The longest time for which the command has the lock.
    max_hold: Option<Duration>,
    /// Whether a signal that ends programs was passed on.
    has_sent_end: bool,
}

/// How a command has ended.
pub(super) struct EndedCommand {
    /// Its exit code.
    pub(super) code: u8,
    /// Whether it was terminated because of its lock.
    pub(super) is_terminated: bool,
}

impl<'a> Supervision<'a> {
    pub(super) fn new(
        guard: &'a LockGuard,
        process: CommandProcess,
        countdown: Option<Countdown>,
        max_hold: Option<Duration>,
    ) -> Self {
        Self { guard, process, countdown, max_hold, has_sent_end: false }
    }

    /// Passes signals on, and ends the command before its lock ends. If this future is dropped, the command is
    /// killed.
    pub(super) async fn until_end(
        mut self,
        signals: &mut Signals,
        messages: Messages,
    ) -> Result<EndedCommand, Failure> {
        let no_timer = |error| Failure::internal("wait", error);
        let mut timer = BootTimer::new().map_err(no_timer)?;
        let mut lost = std::pin::pin!(self.guard.lost());
        let mut is_lost = false;
        while !self.has_ended() {
            let pause = self.look();
            tokio::select! {
                signal = signals.next() => self.pass_on(signal),
                reason = &mut lost, if !is_lost => {
                    is_lost = true;
                    self.lose(reason, messages);
                }
                slept = timer.sleep(pause) => slept.map_err(no_timer)?,
            }
        }
        let is_terminated = self.is_terminating();
        Ok(EndedCommand { code: self.process.end(), is_terminated })
    }

    /// Whether the command has ended; its descendants too, if they were also asked to end. They may still use what
    /// the lock protects while they clean up.
    fn has_ended(&mut self) -> bool {
        let must_end_all = self.has_sent_end || self.is_terminating();
        self.process.has_ended() && !(must_end_all && self.process.has_group_members())
    }

    fn is_terminating(&self) -> bool {
        self.countdown.as_ref().is_some_and(Countdown::is_terminating)
    }

    /// Looks at the lock, and returns the time until the next look.
    fn look(&mut self) -> Duration {
        let longest = if self.process.has_ended() { GROUP_PAUSE } else { Duration::MAX };
        loop {
            let Some(countdown) = &mut self.countdown else { return longest };
            let left = self.guard.remaining();
            match countdown.step(since_boot(), left) {
                CountdownStep::Wait(pause) => return pause.min(longest),
                step => self.take(step, &self.end_in(left)),
            }
        }
    }

    /// Why the lock ends that has so much time left.
    fn end_in(&self, left: Duration) -> String {
        // Its deadline is then that of `max_hold`, and not that of its lease.
        let max_hold = self.max_hold.filter(|max_hold| self.guard.held_for() + left >= *max_hold);
        let what = max_hold.map_or_else(
            || "the lock".to_owned(),
            |max_hold| format!("the time of `--max-hold` ({})", span::show(max_hold)),
        );
        format!("{what} ends in {}", span::show(left))
    }

    fn lose(&mut self, reason: LostReason, messages: Messages) {
        let text = match reason {
            LostReason::MaxHold => "the time of `--max-hold` has ended".to_owned(),
            reason => format!("the lock was lost: {reason}"),
        };
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
                self.process.terminate();
                Messages::error(format!("{why}; the command was terminated"));
            }
            CountdownStep::Kill => {
                self.process.send(Signal::KILL);
                Messages::error(format!("{why}; the command was killed"));
            }
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        let is_sent_by_terminal = || self.process.shares_group() && signals::is_foreground_job();
        match signal {
            Signal::CHILD => {}
            // A terminal sends the signals of its keys to all processes of the job. That somebody else has sent this
            // one cannot be seen.
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
            Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT => {
                self.has_sent_end = true;
                self.process.send(signal);
                // A command that is stopped would keep its lock for ever.
                self.pass_on(Signal::CONT);
            }
            signal => self.process.send(signal),
        }
    }
}
