//! The connection to the store.

use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockClientBuilder};

use crate::exit::{Code, Failure};
use crate::options::{GlobalOptions, only_with_feature};

/// The time for the last requests of a client.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// The stores that only some builds have: the schemes of their URLs, their feature, and whether this build has it.
const OPTIONAL_STORES: [([&str; 2], &str, bool); 2] = [
    (["etcd", "etcds"], "etcd", cfg!(feature = "etcd")),
    (["postgres", "postgresql"], "postgres", cfg!(feature = "postgres")),
];

/// Refuses the URL of a store that only other builds have.
fn check_store(url: &str, optional: &[([&str; 2], &str, bool)]) -> Result<(), Failure> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match optional.iter().find(|(schemes, ..)| schemes.contains(&scheme)) {
        Some((_, feature, false)) => {
            let what = format!("locks of `{scheme}://` are");
            Err(Failure::new(Code::Config, only_with_feature(&what, feature)))
        }
        _ => Ok(()),
    }
}

impl GlobalOptions {
    /// The URL of the store, from the file if there is one.
    pub(crate) fn store_url(&self) -> Result<String, Failure> {
        let url = self.given_url()?;
        let url = url.trim();
        check_store(url, &OPTIONAL_STORES)?;
        Ok(url.to_owned())
    }

    /// Refuses a store whose clients cannot be asked, for a command that shows only what they answer.
    pub(crate) fn check_can_ask(&self, command: &str) -> Result<(), Failure> {
        let url = self.store_url()?;
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        if OPTIONAL_STORES.iter().any(|(schemes, ..)| schemes.contains(&scheme)) {
            let text = format!(
                "`{command}` shows what clients answer, and those of `{scheme}://` cannot be asked: use `ls --watch`"
            );
            return Err(Failure::new(Code::Config, text));
        }
        Ok(())
    }

    fn given_url(&self) -> Result<String, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_of_other_builds_names_its_feature() {
        let of_builds =
            |has: bool| OPTIONAL_STORES.map(|(schemes, feature, _)| (schemes, feature, has));
        for (schemes, feature, _) in OPTIONAL_STORES {
            for scheme in schemes {
                let url = format!("{scheme}://user:c4nary@host/name");
                let refused = check_store(&url, &of_builds(false)).expect_err("not in this build");
                let text = refused.to_string();
                assert!(text.contains(&format!("--features {feature}")), "{text}");
                assert!(!text.contains("c4nary"), "{text}");
                assert!(check_store(&url, &of_builds(true)).is_ok());
            }
        }
        for url in ["redis://host", "rediss+redlock://a,b,c", "memory:", ""] {
            assert!(check_store(url, &of_builds(false)).is_ok(), "{url}");
        }
    }
}
