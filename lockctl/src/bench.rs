//! `lockctl bench`: what a lock costs from here.

use std::time::{Duration, Instant};

use clap::Args;
use lock_runtime::admin::LockAdmin;
use lock_runtime::{Identity, LockClient};
use serde::Serialize;

use crate::connection::close;
use crate::exit::Failure;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::seconds;
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};
use crate::samples::{Samples, milliseconds};

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
    round_trips: u32,
    #[serde(rename = "p50_seconds", serialize_with = "seconds")]
    p50: Duration,
    #[serde(rename = "p99_seconds", serialize_with = "seconds")]
    p99: Duration,
    #[serde(rename = "max_seconds", serialize_with = "seconds")]
    max: Duration,
}

impl CostRow {
    fn new(operation: &'static str, times: Vec<Duration>) -> Self {
        let samples = Samples::new(times);
        let [p50, p99, max] = [50, 99, 100].map(|percent| samples.percentile(percent));
        Self { operation, round_trips: 1, p50, p99, max }
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
            let cells = [row.operation.to_owned(), row.round_trips.to_string()];
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
    let client = global.client()?.identity(Identity::none()).connect().await?;
    let read = async || measure(&client, options.count).await;
    let printed = options.output.print(messages, read).await;
    close(&client).await;
    printed
}

async fn measure(client: &LockClient, count: u32) -> Result<MeasuredCosts, Failure> {
    let admin = LockAdmin::new(client);
    let key = format!("lockctl-bench:{}", std::process::id());
    let (mut reads, mut acquired, mut released) = (Vec::new(), Vec::new(), Vec::new());
    // The first calls connect, and load the scripts.
    for warm in [true, false] {
        for _ in 0..if warm { 1 } else { count } {
            let start = Instant::now();
            admin.holder(&*key).await?;
            let read = start.elapsed();
            let start = Instant::now();
            let guard = client.lock(&*key).acquire().await?;
            let acquire = start.elapsed();
            let start = Instant::now();
            guard.release().await?;
            let release = start.elapsed();
            if !warm {
                reads.push(read);
                acquired.push(acquire);
                released.push(release);
            }
        }
    }
    let costs = [("read", reads), ("acquire", acquired), ("release", released)];
    Ok(MeasuredCosts { count, costs: costs.map(|(name, times)| CostRow::new(name, times)) })
}
