#![allow(unused)]

use lock_runtime::distributed_lock;

#[derive(Debug)]
struct PayError;

#[distributed_lock(key = "order:<id>")]
async fn work(id: u64) -> Result<(), PayError> {
    Ok(())
}

fn main() {}
