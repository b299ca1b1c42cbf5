//! `lockctl serve`: the page of `lock-dashboard`, live.
//!
//! The page is for this machine unless the options say otherwise: [`ListenAddress`] is where it listens, and
//! [`hosts`] are the names under which it may be requested. [`PageConnections`] serves it until a signal ends the
//! command.

mod connections;
mod hosts;
mod listen;

use std::future::pending;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lock_dashboard::Dashboard;
use lock_runtime::Identity;
use lock_runtime::admin::LockAdmin;
use tokio::sync::watch;

use self::connections::PageConnections;
use self::hosts::AllowedHost;
use self::listen::ListenAddress;
use crate::exit::{Code, Failure, after_signal};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::run::signals::Signals;
use crate::span;

/// The time for requests that are not answered when a signal ends the command.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// The shortest and the longest time between two questions that the page accepts.
const REFRESHES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Serves a page that shows the locks live.
///
/// The page has no authentication. It is for the users of this machine, and for proxies on it that know their users. It
/// changes nothing without `--allow-actions`.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// The address and the port of the page, such as `[::1]:7379`; the port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7379")]
    listen: ListenAddress,
    /// Accept an address for `--listen` that other machines reach
    #[arg(long)]
    allow_remote: bool,
    /// Let the page revoke locks
    #[arg(long)]
    allow_actions: bool,
    /// Another host under which browsers may request the page, with or without a port: that of a proxy, for
    /// example. May be repeated
    #[arg(long, value_name = "HOST")]
    allowed_host: Vec<AllowedHost>,
    /// The time between two questions to the clients while somebody looks at the page, from 500ms to 1m
    #[arg(long, value_name = "TIME", value_parser = parse_refresh, default_value = "1s")]
    refresh: Duration,
}

fn parse_refresh(text: &str) -> Result<Duration, String> {
    let refresh = span::parse(text)?;
    let (shortest, longest) = REFRESHES;
    let is_possible = (shortest..=longest).contains(&refresh);
    is_possible.then_some(refresh).ok_or_else(|| "expected a time from 500ms to 1m".to_owned())
}

/// Serves the page until a signal ends the command.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: ServeOptions,
    messages: Messages,
) -> Result<ExitCode, Failure> {
    options.check()?;
    if options.allow_actions {
        messages.show_actions(global);
    }
    let listening = Signals::listen();
    let mut signals = listening.map_err(|error| Failure::internal("receive signals", error))?;
    global.check_can_ask("serve")?;
    // The page tells of a store that is down, and recovers.
    let client = global.client()?.identity(Identity::none()).connect_lazy()?;
    let listener = options.listen.bind().await?;
    let address = listener.local_addr();
    let address = address.map_err(|error| Failure::internal("listen", error))?;
    let (end, is_ending) = watch::channel(false);
    let dashboard = Dashboard::new(LockAdmin::new(&client))
        .allow_actions(options.allow_actions)
        .refresh(options.refresh)
        .allowed_hosts(hosts::all(address, &options.allowed_host))
        .shutdown(connections::ending(is_ending.clone()));
    let mut connections = PageConnections::new(dashboard.router(), is_ending);
    options.warn(messages, address);
    messages.note(format!("listening on {}", listen::url(address)));
    let signal = tokio::select! {
        signal = signals.next_end() => signal,
        failure = unusable_store(global, messages) => return Err(failure),
        never = connections.accept(&listener, messages) => match never {},
    };
    drop(listener);
    end.send_replace(true);
    tokio::select! {
        cut = connections.end(LAST_ANSWERS) => {
            if cut > 0 {
                let limit = span::show(LAST_ANSWERS);
                messages.warning(format!("connections without an end after {limit}: {cut}"));
            }
        }
        _ = signals.next_end() => messages.detail("a second signal: connections are not awaited"),
    }
    Ok(after_signal(signal.as_raw()).into())
}

impl ServeOptions {
    /// Refuses an address that other machines reach, unless it is allowed.
    fn check(&self) -> Result<(), Failure> {
        if self.listen.is_loopback() || self.allow_remote {
            return Ok(());
        }
        let text = format!(
            "other machines may reach {}, and the page has no authentication; listen on 127.0.0.1 and let a proxy \
             with authentication pass requests on, or use `--allow-remote` if only the proxy reaches the address",
            self.listen
        );
        Err(Failure::new(Code::Usage, text))
    }

    /// Says what others can do.
    fn warn(&self, messages: Messages, address: SocketAddr) {
        if !self.listen.is_loopback() {
            let may_revoke = if self.allow_actions { ", and revoke locks" } else { "" };
            messages.warning(format!(
                "everybody who reaches {address} can see all locks, their keys and their holders{may_revoke}: only a \
                 proxy with authentication should reach it"
            ));
        } else if self.allow_actions {
            messages.warning("all users of this machine can revoke locks");
        }
    }
}

/// Waits until it is known that the store cannot be used, and never returns if it can be, or if it cannot be reached:
/// then the page says so.
async fn unusable_store(global: &GlobalOptions, messages: Messages) -> Failure {
    let checked = check_store(global).await;
    if let Err(failure) = checked {
        if failure.code != Code::Unavailable {
            return failure;
        }
        messages.warning(format!("{failure}; the page shows the locks once the store answers"));
    }
    pending().await
}

/// The usual checks, which a client that connects later does not make.
async fn check_store(global: &GlobalOptions) -> Result<(), Failure> {
    drop(global.client()?.identity(Identity::none()).connect().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_accepts_all_times_that_the_option_accepts() {
        for (text, expected) in
            [("500ms", Some(500)), ("1m", Some(60_000)), ("499ms", None), ("61s", None)]
        {
            let refresh = parse_refresh(text).ok();
            assert_eq!(refresh, expected.map(Duration::from_millis), "{text}");
        }
    }
}
