#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

use std::pin::Pin;

#[distributed_lock(key = "order:<id>")]
fn work(id: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {})
}

fn main() {}
