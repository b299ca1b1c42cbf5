#![allow(unused)]

use lock_runtime::distributed_lock;

#[distributed_lock(key = "order:<id>")]
async fn work(id: u64) {}

#[distributed_lock(key = "order:<id>")]
async fn other(id: u64) -> () {}

fn main() {}
