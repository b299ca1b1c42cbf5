//! A shop's order service that can run in several processes without overselling.
//!
//! ```text
//! cargo run -p lock-examples --bin orders
//! LOCK_URL=redis://127.0.0.1:6379 PORT=3001 cargo run -p lock-examples --bin orders
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
//! ```
//!
//! Without `LOCK_URL`, the service stores locks and data in memory. With `LOCK_URL`, it stores both
//! in Redis, where only the locks protect the data between a read and the write that follows it.

mod api;
mod shelf;
mod shop;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use lock_runtime::LockClient;
use tokio::net::TcpListener;

use crate::shelf::Shelf;
use crate::shop::Shop;

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

    LockClient::builder().url(&url).namespace("shop").connect().await?.install()?;
    let shop = Shop::new(Shelf::open(&url).await?);
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener =
        listener.map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}"))?;
    println!("listening on http://{}", listener.local_addr()?);

    axum::serve(listener, api::routes(Arc::new(shop)))
        .with_graceful_shutdown(told_to_stop())
        .await?;
    // All requests have been answered. `shutdown` gives other lock holders time to finish.
    lock_runtime::global()?.shutdown().await?;
    println!("stopped");
    Ok(())
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
