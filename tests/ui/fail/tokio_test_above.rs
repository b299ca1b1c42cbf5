#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

#[tokio::test]
#[distributed_lock(key = "k")]
async fn work() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
