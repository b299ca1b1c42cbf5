//! `lockctl top`: the locks, live.
//!
//! The [`TopView`] is what is shown, and changes with each answer and each key. Here are its surroundings: the
//! terminal, a thread that reads the keys, and the questions to the clients.

mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::view::TopView;
use crate::asking::{AskOptions, AskingClient};
use crate::exit::{Code, Failure, after_signal};
use crate::listed_lock::ListedLock;
use crate::options::GlobalOptions;
use crate::pattern::KeyPattern;
use crate::span;

/// Shows the locks that the clients hold, live.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Only keys that match: `*` is any text, and `?` any character
    pattern: Option<KeyPattern>,
    /// The time between two questions to the clients
    #[arg(long, value_name = "TIME", value_parser = span::parse_pause, default_value = "2s")]
    refresh: Duration,
    #[command(flatten)]
    ask: AskOptions,
}

/// Shows the locks until a key or a signal ends it.
pub(crate) async fn run(global: &GlobalOptions, options: TopOptions) -> Result<ExitCode, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let text = "`top` needs a terminal; elsewhere, use `ls --watch`";
        return Err(Failure::new(Code::Usage, text));
    }
    global.check_can_ask("top")?;
    let asking = AskingClient::connect(global, &options.ask).await?;
    let ended = ending_signal().map_err(|error| Failure::internal("receive signals", error))?;
    let terminal = ratatui::try_init();
    let terminal = terminal.map_err(|error| Failure::internal("use the terminal", error))?;
    let shown = tokio::select! {
        shown = show(terminal, &asking, &options) => shown.map(|()| 0),
        number = ended => Ok(after_signal(number)),
    };
    ratatui::restore();
    let code = shown.map_err(|error| Failure::internal("use the terminal", error))?;
    Ok(code.into())
}

/// Waits for a signal that ends programs. Returns its number. The keys of the terminal send none.
fn ending_signal() -> io::Result<impl Future<Output = i32>> {
    let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
    let listen = |kind: SignalKind| Ok((kind.as_raw_value(), signal(kind)?));
    let mut signals = kinds.into_iter().map(listen).collect::<io::Result<Vec<_>>>()?;
    Ok(std::future::poll_fn(move |cx| {
        let arrived = signals
            .iter_mut()
            .find_map(|(number, signal)| signal.poll_recv(cx).is_ready().then_some(*number));
        arrived.map_or(Poll::Pending, Poll::Ready)
    }))
}

async fn show(
    mut terminal: DefaultTerminal,
    asking: &AskingClient,
    options: &TopOptions,
) -> io::Result<()> {
    let mut events = events();
    let mut view = TopView::default();
    let mut ticks = tokio::time::interval(options.refresh);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        tokio::select! {
            _ = ticks.tick() => {
                // Keys count while the clients are asked.
                let mut answer = std::pin::pin!(ask(asking, options.pattern.as_ref()));
                loop {
                    tokio::select! {
                        answer = &mut answer => {
                            view.update(answer);
                            break;
                        }
                        event = events.recv() => {
                            if is_end(&mut view, event.as_ref()) {
                                return Ok(());
                            }
                            terminal.draw(|frame| view.draw(frame))?;
                        }
                    }
                }
            }
            event = events.recv() => {
                if is_end(&mut view, event.as_ref()) {
                    return Ok(());
                }
            }
        }
    }
}

/// Whether the program ends with this event; so it does with the last one.
fn is_end(view: &mut TopView, event: Option<&Event>) -> bool {
    match event {
        Some(Event::Key(key)) => view.press(*key),
        // A new size, for example: it is drawn again.
        Some(_) => false,
        None => true,
    }
}

/// What happens at the terminal. The thread ends with the process.
fn events() -> UnboundedReceiver<Event> {
    let (send, events) = unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if send.send(event).is_err() {
                return;
            }
        }
    });
    events
}

/// The locks, and the number of clients that have not answered.
async fn ask(
    asking: &AskingClient,
    pattern: Option<&KeyPattern>,
) -> Result<(Vec<ListedLock>, Option<u64>), Failure> {
    let answered = asking.ask(None).await?;
    let unanswered = answered.unanswered;
    let mut rows = answered.into_locks();
    for row in &mut rows {
        row.key = asking.short_key(&row.key);
    }
    rows.retain(|row| pattern.is_none_or(|pattern| pattern.matches(&row.key)));
    Ok((rows, unanswered))
}
