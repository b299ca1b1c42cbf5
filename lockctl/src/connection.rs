//! The connection to the store.

use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockClientBuilder};

use crate::exit::{Code, Failure};
use crate::options::GlobalOptions;

/// The time for the last requests of a client.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

impl GlobalOptions {
    /// The URL of the store, from the file if there is one.
    pub(crate) fn store_url(&self) -> Result<String, Failure> {
        let Some(file) = &self.url_file else {
            let text = "no store: set the variable `LOCK_URL`, or use `--url` or `--url-file`";
            let url = self.url.clone().filter(|url| !url.is_empty());
            return url.ok_or_else(|| Failure::new(Code::Config, text));
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::new(Code::Config, format!("cannot read {}: {error}", file.display()))
        })?;
        Ok(text.trim().to_owned())
    }

    /// A client of the store with the usual settings, before it connects.
    pub(crate) fn client(&self) -> Result<LockClientBuilder, Failure> {
        let identity = Identity::of_process().service("lockctl", env!("CARGO_PKG_VERSION"));
        let builder = LockClient::builder().url(self.store_url()?).namespace(&self.namespace);
        Ok(builder.wire_format(self.format.into()).identity(identity))
    }
}

/// Ends the client of a command that has held or awaited a lock. The store may not answer, so it is not awaited
/// for long: what is left there ends by itself.
pub(crate) async fn close(client: &LockClient) {
    let _ = tokio::time::timeout(SHUTDOWN_LIMIT, client.shutdown()).await;
}
