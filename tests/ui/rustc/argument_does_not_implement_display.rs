#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

struct Order;

#[distributed_lock(key = "order:<order>")]
async fn work(order: Order) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
