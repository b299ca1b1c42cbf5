#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", on_busy = Ok(()), or_else = |error| Err(error))]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
