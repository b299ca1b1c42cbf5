#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<name>", on_busy = Ok(name))]
async fn work(name: String) -> Result<String, LockError> {
    Ok(name + "!")
}

fn main() {}
