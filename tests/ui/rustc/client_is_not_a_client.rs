#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", client = id)]
async fn work(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
