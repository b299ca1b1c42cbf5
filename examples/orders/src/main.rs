//! A shop's order service that can run in several processes without overselling.
//!
//! ```text
//! cargo run -p lock-example-orders
//! LOCK_URL=redis://127.0.0.1:6379 PORT=3001 cargo run -p lock-example-orders
//! ```
//!
//! ```text
//! curl -X PUT  localhost:3000/stock/pen -H 'content-type: application/json' -d '{"units": 5}'
//! curl -X POST localhost:3000/orders/1/pay -H 'content-type: application/json' \
//!      -d '{"item": "pen", "units": 2}'
//! curl -X POST localhost:3000/orders/1/cancel
//! curl -X POST localhost:3000/transfer -H 'content-type: application/json' \
//!      -d '{"from": "pen", "to": "gift", "units": 1}'
//! curl localhost:3000/stock/pen
//! curl localhost:3000/ready
//! curl localhost:3000/metrics
//! ```
//!
//! `/ready` tells whether locks can be acquired, for probes. `/metrics` has what the client measures, for
//! Prometheus; it is updated every five seconds.
//!
//! Without `LOCK_URL`, the service stores locks and data in memory. With `LOCK_URL`, it stores both
//! in Redis, where only the locks protect the data between a read and the write that follows it.

#![forbid(unsafe_code)]

mod api;
mod shelf;
mod shop;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lock_runtime::LockClient;
use lock_runtime::telemetry::{DURATION_SUFFIX, SECONDS, SLACK_RATIOS};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

use crate::shelf::Shelf;
use crate::shop::Shop;

const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orders: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".into());
    let port = std::env::var("PORT").unwrap_or_else(|_| "3000".into());
    let port: u16 = port.parse().map_err(|_| format!("PORT={port} is not a valid port"))?;

    let metrics = record_metrics()?;
    LockClient::builder().url(&url).namespace("shop").connect().await?.install()?;
    let shop = Shop::new(Shelf::open(&url).await?);
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener =
        listener.map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}"))?;
    println!("listening on http://{}", listener.local_addr()?);

    axum::serve(listener, api::routes(Arc::new(shop), metrics))
        .with_graceful_shutdown(told_to_stop())
        .await?;
    // All requests have been answered. `shutdown` gives other lock holders time to finish.
    lock_runtime::global()?.shutdown().await?;
    println!("stopped");
    Ok(())
}

/// Records the measurements of the lock client, and of other libraries that use the `metrics` facade.
fn record_metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix(DURATION_SUFFIX.into()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_slack_ratio".into()), &SLACK_RATIOS)?
        .install_recorder()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        // Without this, samples accumulate while nobody asks for them.
        loop {
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Resolves on Ctrl-C, and on Unix also on SIGTERM.
async fn told_to_stop() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupted => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    // If the handler cannot be installed, the service runs until it is killed.
    if interrupted.await.is_err() {
        std::future::pending::<()>().await;
    }
}
