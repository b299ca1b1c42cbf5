//! `lockctl clients`: the clients of a namespace.

use clap::Args;
use lock_runtime::admin::{ClientAnswer, ClientSnapshot, LockAdmin};
use serde::Serialize;

use crate::answered::complain;
use crate::asking::{AskOptions, AskingClient};
use crate::exit::Failure;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::ClientRecord;
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};

/// Lists the clients that use the namespace, and how they are.
#[derive(Debug, Args)]
pub(crate) struct ClientsOptions {
    #[command(flatten)]
    ask: AskOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// The clients.
#[derive(Debug, Serialize)]
struct ListedClients {
    clients: Vec<ListedClient>,
    unanswered: Option<u64>,
}

/// A client.
#[derive(Debug, Serialize)]
struct ListedClient {
    client: ClientRecord,
    revocable: bool,
    held: u64,
    queued: u64,
    lost: u64,
    /// Whether its last request to the store was answered.
    store_up: bool,
}

impl From<ClientAnswer<ClientSnapshot>> for ListedClient {
    fn from(answer: ClientAnswer<ClientSnapshot>) -> Self {
        let ClientSnapshot { held, queued, lost, store_up, .. } = answer.found;
        let client = (&answer.client).into();
        Self { client, revocable: answer.is_revocable, held, queued, lost, store_up }
    }
}

impl Listing for ListedClients {
    type Row = ListedClient;

    fn rows(&self) -> &[ListedClient] {
        &self.clients
    }

    fn unanswered(&self) -> Option<u64> {
        self.unanswered
    }

    fn table(&self) -> Table {
        let header =
            ["CLIENT", "HELD", "QUEUED", "LOST", "STORE", "REVOCABLE", "STARTED", "LIBRARY"];
        let mut table = Table::new(&header, &[0]);
        for row in &self.clients {
            let store = if row.store_up { "up" } else { "down" };
            let revocable = if row.revocable { "yes" } else { "no" };
            let numbers = [row.held, row.queued, row.lost].map(|number| number.to_string());
            let rest = [store.to_owned(), revocable.to_owned(), row.client.started()];
            let cells = [row.client.shown.clone()].into_iter().chain(numbers).chain(rest);
            table.row(cells.chain([row.client.library()]));
        }
        table
    }
}

/// Lists the clients.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: ClientsOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let asking = AskingClient::connect(global, &options.ask).await?;
    let read = async || {
        let answers = asking.questions.ask(LockAdmin::snapshots).await?;
        let unanswered = answers.unanswered;
        let cut_off = answers.answers.iter().filter(|answer| !answer.is_complete);
        complain(unanswered, cut_off.map(|answer| &answer.client), messages);
        let clients = answers.answers.into_iter().map(ListedClient::from).collect();
        Ok(ListedClients { clients, unanswered })
    };
    options.output.print(messages, read).await
}
