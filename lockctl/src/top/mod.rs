//! `lockctl top`: the locks, all the time.
//!
//! The [`View`] is what is shown, and changes with each answer and each key. Here are its surroundings: the
//! terminal, a thread that reads the keys, and the questions to the clients.

mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::view::View;
use crate::asking::{AskOptions, AskingClient};
use crate::exit::{Code, Failure};
use crate::lock_row::{Answered, LockRow};
use crate::options::GlobalOptions;
use crate::pattern::KeyPattern;
use crate::span;

/// Shows the locks that the clients hold, all the time.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Only keys that match: `*` is any text, and `?` any character
    pattern: Option<KeyPattern>,
    /// The time between two questions to the clients
    #[arg(long, value_name = "TIME", value_parser = span::parse, default_value = "2s")]
    refresh: Duration,
    #[command(flatten)]
    ask: AskOptions,
}

/// Shows the locks until a key ends it.
pub(crate) async fn run(global: &GlobalOptions, options: TopOptions) -> Result<(), Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let text = "`top` needs a terminal; elsewhere, use `ls --watch`";
        return Err(Failure::new(Code::Usage, text));
    }
    let asking = AskingClient::connect(global, &options.ask).await?;
    let terminal = ratatui::try_init();
    let terminal = terminal.map_err(|error| Failure::internal("use the terminal", error))?;
    let shown = show(terminal, &asking, &options).await;
    ratatui::restore();
    shown.map_err(|error| Failure::internal("use the terminal", error))
}

async fn show(
    mut terminal: DefaultTerminal,
    asking: &AskingClient,
    options: &TopOptions,
) -> io::Result<()> {
    let mut events = events();
    let mut view = View::default();
    let mut ticks = tokio::time::interval(options.refresh.max(Duration::from_millis(100)));
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
fn is_end(view: &mut View, event: Option<&Event>) -> bool {
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
) -> Result<(Vec<LockRow>, Option<usize>), Failure> {
    let holds = asking.admin.holds().await?;
    let waits = asking.admin.waiting().await?;
    let unanswered = holds.unanswered.max(waits.unanswered);
    let mut rows = Answered::new(holds, waits).into_rows();
    for row in &mut rows {
        row.key = asking.short_key(&row.key);
    }
    rows.retain(|row| pattern.is_none_or(|pattern| pattern.matches(&row.key)));
    Ok((rows, unanswered))
}
