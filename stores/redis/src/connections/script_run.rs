//! Running a script: by its hash, and what follows if the server does not have it, or a command of it.

use redis::{Cmd, Value};

use super::connection::{Connection, RequestOptions};
use crate::scripts::decode::Unexpected;
use crate::scripts::script::Script;
use crate::transport::error;
use lock_core::clock::BootInstant;
use lock_core::store::contract::StoreError;
use lock_core::timeout::RequestTimeout;

impl Connection {
    /// Runs a script by its hash, or by its text if the server does not have it any more. `args`
    /// adds the number of keys, the keys and the arguments.
    pub(crate) fn run<T>(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
        options: &RequestOptions<'_>,
        decode: impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let began = BootInstant::now();
        let mut command = script.by_hash();
        args(&mut command);
        // A block, because the future of an async function has room for its arguments twice.
        async move {
            let outgoing = self.outgoing(&command, options.class);
            let is_missing = |cause: &str| cause.starts_with(error::NO_SCRIPT);
            let is_known = match self.exchange(outgoing, (options, began), &decode).await {
                Err(StoreError::Refused(cause)) if is_missing(&cause) => false,
                Err(StoreError::Refused(cause)) if error::is_unknown_in_script(&cause) => true,
                reply => return reply,
            };
            command = script.by_text();
            args(&mut command);
            let total = options.timeout.total.saturating_sub(BootInstant::now().since(began));
            let timeout = RequestTimeout { total, ..options.timeout };
            // Boxed, because it is rarely needed.
            let options = RequestOptions { timeout, ..*options };
            Box::pin(async move {
                if !is_known {
                    match self.send(&command, &options, decode).await {
                        Err(StoreError::Refused(cause)) if error::is_unknown_in_script(&cause) => {}
                        reply => return reply,
                    }
                }
                Err(self.lacks_command_of(script, &options).await)
            })
            .await
        }
    }

    /// The error of a script of which the server does not have a command. The server's own one does not name it.
    async fn lacks_command_of(&self, script: &Script, options: &RequestOptions<'_>) -> StoreError {
        let names = script.commands();
        let mut ask = redis::cmd("COMMAND");
        ask.arg("INFO").arg(&names);
        let are_missing = |reply: &Value| match reply {
            Value::Array(known) if known.len() == names.len() => {
                Ok(known.iter().map(|command| matches!(command, Value::Nil)).collect::<Vec<_>>())
            }
            other => Err(Unexpected::new(other)),
        };
        let options = RequestOptions::new(options.class, options.timeout);
        let missing = self.send(&ask, &options, are_missing).await.unwrap_or_default();
        let missing = names.iter().zip(missing).filter(|(_, is_missing)| *is_missing);
        let missing: Vec<_> =
            missing.map(|(name, _)| format!("`{}`", name.to_uppercase())).collect();
        let lacking =
            if missing.is_empty() { "a command".to_owned() } else { missing.join(" and ") };
        let problem = format!(
            "the server does not have {lacking}, which this lock needs: it was disabled or renamed; enable it, or use another \
             server"
        );
        StoreError::Config { option: "url", problem }
    }
}
