#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", release = "later")]
async fn misspelt(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", release = true)]
async fn not_text(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", release = "background", on_lost = "report")]
async fn reported(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
