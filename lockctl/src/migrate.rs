//! `lockctl migrate`: creates the table of locks in PostgreSQL.

use clap::Args;
use lock_runtime::store::{POSTGRES_SCHEMA, PostgresStore};

use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::write;

/// Creates the table of locks in a PostgreSQL database, or upgrades it.
///
/// Run it as the owner of the database or schema. It can be run again, also while locks are held: it changes nothing
/// that is there, and makes fencing tokens higher than all that a database from a backup may have forgotten.
#[derive(Debug, Args)]
pub(crate) struct MigrateOptions {
    /// Print the SQL instead of running it; needs no URL
    #[arg(long)]
    print: bool,
}

/// Creates the table, or prints its SQL.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: MigrateOptions,
    messages: Messages,
) -> Result<(), Failure> {
    if options.print {
        return write(POSTGRES_SCHEMA);
    }
    let url = global.store_url()?;
    if !matches!(url.split_once(':'), Some(("postgres" | "postgresql", _))) {
        let text = "`migrate` needs the URL of a PostgreSQL database, such as `postgres://owner@host/database`";
        return Err(Failure::new(Code::Config, text));
    }
    let is_new = PostgresStore::new(&url)?.migrate().await?;
    let what = if is_new { "was created" } else { "is there, and has the current version" };
    messages.note(format!("the table `distributed_locks` {what}"));
    Ok(())
}
