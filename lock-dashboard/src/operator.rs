//! Who uses the page.

/// The user of a request, for the log of revocations. The service that authenticates its users puts it into the
/// [extensions](axum::http::Extensions) of their requests.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use axum::extract::Request;
/// use axum::middleware::{Next, from_fn};
/// use axum::response::Response;
/// use lock_dashboard::{Dashboard, Operator};
/// use lock_runtime::LockClient;
/// use lock_runtime::admin::LockAdmin;
///
/// async fn authenticate(mut request: Request, next: Next) -> Response {
///     request.extensions_mut().insert(Operator::new("ada"));
///     next.run(request).await
/// }
///
/// let dashboard = Dashboard::new(LockAdmin::new(&LockClient::memory())).allow_actions(true);
/// let service: Router = Router::new().nest("/locks", dashboard.router().layer(from_fn(authenticate)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator(String);

impl Operator {
    /// A user with this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
