//! `lockctl bench`: what a lock costs from here.

use std::time::{Duration, Instant};

use clap::Args;
use lock_runtime::admin::LockAdmin;
use lock_runtime::{Identity, LockClient, LockError};
use serde::Serialize;

use crate::connection::close;
use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::{cell, seconds};
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};
use crate::probe::unique;
use crate::samples::{Samples, milliseconds};
use crate::wording;

/// The lease of the locks.
const LEASE: Duration = Duration::from_secs(30);

/// Measures what a free lock costs from this machine.
///
/// The locks have keys that nobody else uses. They are released at once, and leave nothing in the store.
#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    /// The number of locks, one after the other
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    #[command(flatten)]
    output: OutputOptions,
}

/// The results.
#[derive(Debug, Serialize)]
struct MeasuredCosts {
    count: u32,
    costs: [CostRow; 3],
}

/// What one operation costs.
#[derive(Debug, Serialize)]
struct CostRow {
    operation: &'static str,
    /// The requests to the store for each operation, on average. `None` if the client does not count those to this store.
    round_trips: Option<f64>,
    #[serde(rename = "p50_seconds", serialize_with = "seconds")]
    p50: Duration,
    #[serde(rename = "p99_seconds", serialize_with = "seconds")]
    p99: Duration,
    #[serde(rename = "max_seconds", serialize_with = "seconds")]
    max: Duration,
}

impl CostRow {
    fn new(operation: &'static str, measured: MeasuredCalls, is_counted: bool) -> Self {
        let calls = u32::try_from(measured.times.len()).unwrap_or(u32::MAX).max(1);
        let requests = u32::try_from(measured.requests).unwrap_or(u32::MAX);
        // To two digits after the point.
        let round_trips = (f64::from(requests) / f64::from(calls) * 100.0).round() / 100.0;
        let round_trips = Some(round_trips).filter(|_| is_counted);
        let samples = Samples::new(measured.times);
        let [p50, p99, max] = [50, 99, 100].map(|percent| samples.percentile(percent));
        Self { operation, round_trips, p50, p99, max }
    }
}

impl Listing for MeasuredCosts {
    type Row = CostRow;

    fn rows(&self) -> &[CostRow] {
        &self.costs
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["OPERATION", "ROUND TRIPS", "P50", "P99", "MAX"], &[]);
        for row in &self.costs {
            let times = [row.p50, row.p99, row.max].map(milliseconds);
            let cells = [row.operation.to_owned(), cell(row.round_trips.as_ref())];
            table.row(cells.into_iter().chain(times));
        }
        table
    }
}

/// Measures.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: BenchOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let builder = global.client()?.lease(LEASE).identity(Identity::none());
    let client = builder.connect().await?;
    let read = async || measure(&client, options.count).await;
    let printed = options.output.print(messages, read).await;
    close(&client).await;
    printed
}

/// What the calls of one operation have taken.
#[derive(Debug, Default)]
struct MeasuredCalls {
    times: Vec<Duration>,
    requests: u64,
}

impl MeasuredCalls {
    /// Measures a call.
    async fn add<T>(
        &mut self,
        client: &LockClient,
        call: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let before = requests(client);
        let start = Instant::now();
        let done = call.await?;
        self.times.push(start.elapsed());
        self.requests += requests(client).saturating_sub(before);
        Ok(done)
    }
}

/// The number of requests about locks that the client has sent.
fn requests(client: &LockClient) -> u64 {
    client.snapshot().requests.iter().map(|(_, _, times)| times.count()).sum()
}

async fn measure(client: &LockClient, count: u32) -> Result<MeasuredCosts, Failure> {
    let admin = LockAdmin::new(client);
    let key = format!("lockctl-bench:{}", unique());
    let mut calls: [MeasuredCalls; 3] = Default::default();
    // The first calls connect, and load the scripts.
    for number in 0..=count {
        let [reads, acquired, released] = &mut calls;
        reads.add(client, admin.holder(&*key)).await?;
        let guard = acquired.add(client, client.lock(&*key).acquire()).await?;
        released
            .add(client, guard.release())
            .await
            .map_err(|error| Failure::new(Code::of(&error), wording::of_release(&error, LEASE)))?;
        if number == 0 {
            calls = Default::default();
        }
    }
    let [reads, acquired, released] = calls;
    let costs = [("read", reads), ("acquire", acquired), ("release", released)];
    // Clients do not count requests to custom stores, which etcd and PostgreSQL are for them.
    let is_counted = admin.can_ask() || costs.iter().any(|(_, calls)| calls.requests > 0);
    let costs = costs.map(|(name, calls)| CostRow::new(name, calls, is_counted));
    Ok(MeasuredCosts { count, costs })
}
