//! `lockctl run`: a command under a lock.
//!
//! The lock is acquired, the command is started, and from then on three things can happen: the command ends, a
//! signal comes, or the lock comes close to its end (see [`supervision`]). The lock is released when the command
//! has ended, not when it was asked to end.

mod child;
mod countdown;
mod environment;
pub(crate) mod options;
pub(crate) mod shim;
pub(crate) mod signals;
mod supervision;
mod timer;

use std::io::IsTerminal;
use std::process::ExitCode;

use lock_runtime::{LockClient, LockError, LockGuard};
use rustix::process::Signal;

use self::child::CommandProcess;
use self::countdown::Countdown;
use self::environment::Environment;
use self::options::{CheckedRun, LossPolicy, RunOptions};
use self::shim::Shim;
use self::signals::Signals;
use self::supervision::{EndedCommand, Supervision};
use crate::clock::since_boot;
use crate::connection::close;
use crate::exit::{Code, Failure, after_signal};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::{span, wording};

/// Runs the command. Returns the exit code of the command, or of `lockctl`.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: RunOptions,
    messages: Messages,
) -> Result<ExitCode, Failure> {
    // Nothing is requested for a command line that is wrong.
    let run = options.check()?;
    refuse_memory(&global.store_url()?)?;
    let listening = Signals::listen();
    let mut signals = listening.map_err(|error| Failure::internal("receive signals", error))?;
    // Only a busy lock is a reason to wait, and a store that is down is not.
    let builder = global.client()?.lease(options.lease).unavailable_after(options.lease);
    let builder = builder.revocable(options.on_lost == LossPolicy::Kill);
    let client = tokio::select! {
        client = builder.connect() => client?,
        signal = signals.next_end() => return Ok(ended_by(signal).into()),
    };
    let outcome = tokio::select! {
        acquired = acquire(&client, run) => acquired,
        signal = signals.next_end() => {
            close(&client).await;
            return Ok(ended_by(signal).into());
        }
    };
    let outcome = match outcome {
        Ok(guard) => {
            let waited = span::show(guard.waited());
            messages.detail(format!("got the lock {:?} after {waited}", guard.key()));
            let command = GuardedCommand { global, run, client: &client, messages };
            command.run_under(guard, &mut signals).await
        }
        Err(busy @ LockError::Busy { .. }) => {
            messages.refusal(wording::of_error(&busy));
            Ok(options.conflict_exit_code)
        }
        Err(error) => Err(error.into()),
    };
    close(&client).await;
    outcome.map(ExitCode::from)
}

/// A lock of the memory store would exclude nobody, because each `lockctl` is a process of its own.
fn refuse_memory(url: &str) -> Result<(), Failure> {
    if !url.trim_start().starts_with("memory:") {
        return Ok(());
    }
    let text = "the store `memory:` excludes only the tasks of one process, and each command is another one: use a \
                server, such as `redis://host:6379`";
    Err(Failure::new(Code::Config, text))
}

async fn acquire(client: &LockClient, run: CheckedRun<'_>) -> Result<LockGuard, LockError> {
    let options = run.options;
    let mut lock = client.lock(run.key).wait(options.wait());
    if let Some(max_hold) = options.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(min_hold) = options.min_hold {
        lock = lock.min_hold(min_hold);
    }
    lock.acquire().await
}

/// What is to be run under the lock.
struct GuardedCommand<'a> {
    global: &'a GlobalOptions,
    run: CheckedRun<'a>,
    client: &'a LockClient,
    messages: Messages,
}

impl GuardedCommand<'_> {
    /// Runs the command, releases the lock, and returns the exit code.
    async fn run_under(self, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
        let ended = self.supervised(&guard, signals).await;
        // The key of a lock that was revoked is released when the guard is dropped.
        let release = guard.is_held().then(|| guard.release());
        let released = match release {
            Some(release) => release.await,
            None => Ok(()),
        };
        let EndedCommand { code, is_terminated } = ended?;
        match released {
            // The code of the command does not hide that it was cut short.
            _ if is_terminated => Ok(Code::Lost.number()),
            Err(lost @ LockError::Lost { .. }) if self.run.options.on_lost == LossPolicy::Kill => {
                let text = "the command had ended by then, but may have run beside another holder";
                Messages::error(format!("{lost}; {text}"));
                Ok(Code::Lost.number())
            }
            Err(error) => {
                self.messages.warning(wording::of_release(&error, self.run.options.longest_key()));
                Ok(code)
            }
            Ok(()) => Ok(code),
        }
    }

    /// Starts the command, and waits for its end. A signal or a loss before the start prevents it.
    async fn supervised(
        &self,
        guard: &LockGuard,
        signals: &mut Signals,
    ) -> Result<EndedCommand, Failure> {
        let Self { global, run, client, messages } = *self;
        let options = run.options;
        let environment = tokio::select! {
            environment = Environment::of(global, run, client, guard) => environment?,
            signal = signals.next_end() => {
                return Ok(EndedCommand { code: ended_by(signal), is_terminated: false });
            }
            reason = guard.lost() => return Err(lost_before_start(&reason)),
        };
        if let Some(problem) = &environment.problem {
            messages.warning(problem);
        }
        let mut command = Shim::command(run.command);
        environment.set(&mut command);
        let shares_group = options.foreground || std::io::stdin().is_terminal();
        // The lease may have ended while the store was asked.
        if !guard.is_held() {
            return Err(lost_before_start(&"its lease has ended"));
        }
        let countdown = match options.on_lost {
            LossPolicy::Kill => Some(Countdown::new(run.grace, since_boot(), guard.remaining())),
            LossPolicy::Ignore => None,
        };
        let process = CommandProcess::start(command, shares_group)?;
        let supervision = Supervision::new(guard, process, countdown, options.max_hold);
        supervision.until_end(signals, messages).await
    }
}

fn lost_before_start(reason: &dyn std::fmt::Display) -> Failure {
    let text = format!("the lock was lost before the command was started: {reason}");
    Failure::new(Code::Lost, text)
}

/// The exit code after a signal that has ended `lockctl` before the command was started.
fn ended_by(signal: Signal) -> u8 {
    after_signal(signal.as_raw())
}
