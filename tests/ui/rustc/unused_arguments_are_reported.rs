#![deny(unused_variables)]

use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>")]
async fn work(id: u64, typo: String) -> Result<(), LockError> {
    let unused = 1;
    Ok(())
}

fn main() {}
