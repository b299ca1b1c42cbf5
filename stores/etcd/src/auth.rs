//! The token of a user. It is fetched when it is first needed, and again when a member says that it is not valid any more:
//! it has expired, or that member has restarted.

use std::sync::Arc;

use tokio::sync::Mutex;
use tonic::metadata::{Ascii, MetadataValue};

use super::errors::EtcdFailure;
use super::messages::{AuthenticateRequest, AuthenticateResponse};
use lock_core::store::per_runtime::PerRuntime;
use lock_core::sync::lock;

type AuthToken = MetadataValue<Ascii>;

/// A user, and its current token.
pub(super) struct EtcdLogin {
    user: String,
    password: String,
    token: lock_core::sync::Mutex<Option<AuthToken>>,
    /// Locked while a token is fetched, so that requests at the same time share one. The requests of a runtime do not wait for
    /// another one, which may be blocked.
    fetching: PerRuntime<Arc<Mutex<()>>>,
}

impl EtcdLogin {
    pub(super) fn new(user: String, password: String) -> Self {
        Self {
            user,
            password,
            token: lock_core::sync::Mutex::default(),
            fetching: PerRuntime::default(),
        }
    }

    /// The token. `authenticate` sends the request for a new one.
    pub(super) async fn token<F>(
        &self,
        authenticate: impl FnOnce(AuthenticateRequest) -> F,
    ) -> Result<AuthToken, EtcdFailure>
    where
        F: Future<Output = Result<AuthenticateResponse, EtcdFailure>>,
    {
        if let Some(token) = self.current() {
            return Ok(token);
        }
        let fetching = self.fetching.here(Arc::default);
        let _fetching = fetching.lock().await;
        if let Some(token) = self.current() {
            return Ok(token);
        }
        let (name, password) = (self.user.clone(), self.password.clone());
        let answer = authenticate(AuthenticateRequest { name, password }).await?;
        let mut token: AuthToken = answer
            .token
            .parse()
            .map_err(|_| EtcdFailure::NotHere("etcd has sent an invalid token".to_owned()))?;
        token.set_sensitive(true);
        *lock(&self.token) = Some(token.clone());
        Ok(token)
    }

    pub(super) fn current(&self) -> Option<AuthToken> {
        lock(&self.token).clone()
    }

    /// This token is not valid any more.
    pub(super) fn forget(&self, token: Option<&AuthToken>) {
        let mut current = lock(&self.token);
        if current.as_ref() == token {
            *current = None;
        }
    }
}
