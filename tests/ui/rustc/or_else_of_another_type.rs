#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", or_else = |error| error.to_string())]
async fn work(id: u64) -> Option<u64> {
    Some(id)
}

fn main() {}
