#![allow(unused)]

use lock_runtime::{LockError, distributed_lock};

trait Orders {
    #[distributed_lock(key = "order:<id>")]
    async fn work(&self, id: u64) -> Result<(), LockError>;
}

fn main() {}
