#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

struct Order {
    id: u64,
}

#[distributed_lock(key = "order:<order.idd>")]
async fn work(order: Order) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
