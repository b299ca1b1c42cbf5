//! The contestants in Rust. Each is a process that uses the line protocol.

mod advisory_lock;
mod async_redis_lock;
mod clients;
mod distkit;
mod keys;
mod lease_table;
mod library;
mod ours;
mod raw;
mod rslock;
mod run;
mod serve;
mod sessions;
mod tokio_mutex;
mod wire;

use anyhow::{Result, bail};
use lock_runtime::LockClient;

use library::Library;
use serve::serve;

/// Exports measurements for Prometheus, and reads them as often as a scrape in a test does.
fn export() -> Result<()> {
    use lock_runtime::telemetry::{DURATION_SUFFIX, SECONDS};
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    let buckets = Matcher::Suffix(DURATION_SUFFIX.to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(buckets, &SECONDS)?;
    let exported = builder.install_recorder()?;
    std::thread::Builder::new().name("scraper".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
            drop(exported.render());
        }
    })?;
    Ok(())
}

/// Runs the contestant `name` until the end of standard input.
pub(crate) fn start(name: &str, url: &str) -> Result<()> {
    if name == "wire" {
        return wire::serve(name, url);
    }
    // The same runtime as that of `#[tokio::main]`: one worker thread per core.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match name {
            "raw" => serve(name, url, raw::Raw::connect(url).await?).await,
            "redis-rs-cluster" => serve(name, url, raw::Raw::connect_cluster(url).await?).await,
            "tokio-mutex" => serve(name, url, tokio_mutex::Mutexes::default()).await,
            "ours-memory" => serve(name, url, ours::Ours::new(LockClient::memory())).await,
            "ours" => serve(name, url, ours::Ours::connect(url).await?).await,
            "exported-memory" => {
                export()?;
                serve(name, url, ours::Ours::new(LockClient::memory())).await
            }
            "exported" => {
                export()?;
                serve(name, url, ours::Ours::connect(url).await?).await
            }
            "ours-background" => {
                serve(name, url, ours::InBackground(LockClient::connect(url).await?)).await
            }
            "ours-read-write" => {
                serve(name, url, ours::ReadWrite(LockClient::connect(url).await?)).await
            }
            "ours-permits" => {
                serve(name, url, ours::PermitLibrary(LockClient::connect(url).await?)).await
            }
            "ours-2-keys" | "ours-3-keys" | "ours-8-keys" => {
                let keys = name.split('-').find_map(|word| word.parse().ok()).unwrap_or(1);
                serve(name, url, ours::KeySets(LockClient::connect(url).await?, keys)).await
            }
            "advisory-lock" => {
                serve(name, url, advisory_lock::AdvisoryLocks::connect(url).await?).await
            }
            "lease-table" => serve(name, url, lease_table::LeaseTable::connect(url).await?).await,
            "rslock" => serve(name, url, rslock::Rslock::connect(url).await?).await,
            "async-redis-lock" => {
                serve(name, url, async_redis_lock::AsyncRedisLock::connect(url).await?).await
            }
            "distkit" => serve(name, url, distkit::Distkit::connect(url).await?).await,
            _ => bail!("there is no contestant {name:?} in this program"),
        }
    })
}
