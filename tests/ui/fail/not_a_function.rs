#![allow(unused)]

use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
struct Order {
    id: u64,
}

#[distributed_lock(key = "order:<id>")]
impl Order {
    async fn work(&self) {}
}

fn main() {}
