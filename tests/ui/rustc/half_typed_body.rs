#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn work(id: u64) -> Result<(), LockError> {
    let receipt = id.;
    Ok(())
}

fn main() {}
