//! The shop's HTTP API.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lock_runtime::{LockError, distributed_lock};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};

use crate::shop::{Shop, ShopError};

pub(crate) fn routes(shop: Arc<Shop>, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/stock/{item}", get(stock).put(restock))
        .route("/orders/{order}/pay", post(pay))
        .route("/orders/{order}/cancel", post(cancel))
        .route("/transfer", post(transfer))
        .route("/ready", get(ready))
        .route("/metrics", get(async move || metrics.render()))
        .with_state(shop)
}

/// Whether locks can be acquired now.
async fn ready() -> Result<(), ApiError> {
    Ok(lock_runtime::global()?.ready().await?)
}

#[derive(Serialize, Deserialize)]
struct Units {
    units: u32,
}

#[derive(Deserialize)]
struct Purchase {
    item: String,
    units: u32,
}

#[derive(Deserialize)]
struct Transfer {
    from: String,
    to: String,
    units: u32,
}

async fn stock(
    State(shop): State<Arc<Shop>>,
    Path(item): Path<String>,
) -> Result<Json<Units>, ApiError> {
    Ok(Json(Units { units: shop.stock(&item).await? }))
}

async fn restock(
    State(shop): State<Arc<Shop>>,
    Path(item): Path<String>,
    Json(Units { units }): Json<Units>,
) -> Result<(), ApiError> {
    Ok(shop.restock(&item, units).await?)
}

async fn pay(
    State(shop): State<Arc<Shop>>,
    Path(order): Path<u64>,
    Json(Purchase { item, units }): Json<Purchase>,
) -> Result<Json<Units>, ApiError> {
    Ok(Json(Units { units: shop.pay(order, &item, units).await? }))
}

/// A handler can be annotated like any other function. Placeholders can name variables in patterns.
#[distributed_lock(key = "order:<order>", wait = "10s")]
async fn cancel(State(shop): State<Arc<Shop>>, Path(order): Path<u64>) -> Result<(), ApiError> {
    Ok(shop.cancel(order).await?)
}

async fn transfer(
    State(shop): State<Arc<Shop>>,
    Json(Transfer { from, to, units }): Json<Transfer>,
) -> Result<(), ApiError> {
    Ok(shop.transfer(&from, &to, units).await?)
}

/// An error that is returned as an HTTP response.
struct ApiError(ShopError);

impl<E: Into<ShopError>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            ShopError::SoldOut { .. } | ShopError::Paid(_) | ShopError::NotPaid(_) => {
                StatusCode::CONFLICT
            }
            // Another request works on the same order or item.
            ShopError::Lock(LockError::Busy { .. }) => StatusCode::CONFLICT,
            ShopError::Lock(LockError::InvalidKey { .. }) => StatusCode::BAD_REQUEST,
            // The operation was not started or was interrupted, and a retry may succeed. A retry
            // does not pay an order twice, but does not return stock that an interrupted payment
            // took.
            ShopError::Lock(_) | ShopError::Shelf(_) => StatusCode::SERVICE_UNAVAILABLE,
            ShopError::Garbled(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::error!(error = %self.0, "request failed");
        }
        let mut response = (status, format!("{}\n", self.0)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
