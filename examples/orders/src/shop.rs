//! The shop's operations, protected by locks.

use lock_runtime::{LockError, distributed_lock};

use crate::shelf::{Shelf, ShelfError};

pub(crate) struct Shop {
    shelf: Shelf,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Shelf(#[from] ShelfError),
    #[error("not enough units of {item}: {wanted} requested, {left} in stock")]
    SoldOut { item: String, wanted: u32, left: u32 },
    #[error("order {0} is already paid")]
    Paid(u64),
    #[error("order {0} is not paid")]
    NotPaid(u64),
    #[error("invalid value in the storage: {0:?}")]
    Garbled(String),
}

impl Shop {
    pub(crate) fn new(shelf: Shelf) -> Self {
        Self { shelf }
    }

    pub(crate) async fn stock(&self, item: &str) -> Result<u32, ShopError> {
        let units = self.shelf.get(&format!("shop-data:stock:{item}")).await?;
        units.map_or(Ok(0), |units| units.parse().map_err(|_| ShopError::Garbled(units)))
    }

    /// Sets the stock of an item.
    #[distributed_lock(key = "stock:<item>", wait = "10s")]
    pub(crate) async fn restock(&self, item: &str, units: u32) -> Result<(), ShopError> {
        self.put(item, units).await
    }

    /// Pays an order that is not yet paid. Returns the remaining stock of the item.
    #[distributed_lock(key = "order:<order>", wait = "10s")]
    pub(crate) async fn pay(&self, order: u64, item: &str, units: u32) -> Result<u32, ShopError> {
        let name = order_name(order);
        if self.shelf.get(&name).await?.is_some() {
            return Err(ShopError::Paid(order));
        }
        let left = self.take(item, units).await?;
        self.shelf.set(&name, format!("{units} {item}")).await?;
        Ok(left)
    }

    /// Returns the units of a paid order to the stock. The caller must hold the order's lock.
    pub(crate) async fn cancel(&self, order: u64) -> Result<(), ShopError> {
        let name = order_name(order);
        let line = self.shelf.get(&name).await?.ok_or(ShopError::NotPaid(order))?;
        let bought = line.split_once(' ');
        let bought = bought.and_then(|(units, item)| Some((units.parse().ok()?, item)));
        let (units, item) = bought.ok_or_else(|| ShopError::Garbled(line.clone()))?;
        self.give(item, units).await?;
        Ok(self.shelf.remove(&name).await?)
    }

    /// Moves stock from one item to another while holding the locks of both items.
    ///
    /// Always acquires the two locks in alphabetical order, so that concurrent transfers between
    /// the same items cannot deadlock. The nested calls share the held locks.
    pub(crate) async fn transfer(&self, from: &str, to: &str, units: u32) -> Result<(), ShopError> {
        let (first, second) = if from < to { (from, to) } else { (to, from) };
        self.with_both(first, second, async {
            self.take(from, units).await?;
            self.give(to, units).await
        })
        .await
    }

    #[distributed_lock(key = "stock:<first>", wait = "10s")]
    async fn with_both(
        &self,
        first: &str,
        second: &str,
        work: impl Future<Output = Result<(), ShopError>>,
    ) -> Result<(), ShopError> {
        self.with_second(second, work).await
    }

    #[distributed_lock(key = "stock:<item>", wait = "10s")]
    async fn with_second(
        &self,
        item: &str,
        work: impl Future<Output = Result<(), ShopError>>,
    ) -> Result<(), ShopError> {
        work.await
    }

    #[distributed_lock(key = "stock:<item>", wait = "10s")]
    async fn take(&self, item: &str, units: u32) -> Result<u32, ShopError> {
        let left = self.stock(item).await?;
        let Some(rest) = left.checked_sub(units) else {
            return Err(ShopError::SoldOut { item: item.to_owned(), wanted: units, left });
        };
        self.put(item, rest).await?;
        Ok(rest)
    }

    #[distributed_lock(key = "stock:<item>", wait = "10s")]
    async fn give(&self, item: &str, units: u32) -> Result<(), ShopError> {
        let left = self.stock(item).await?;
        self.put(item, left.saturating_add(units)).await
    }

    async fn put(&self, item: &str, units: u32) -> Result<(), ShopError> {
        Ok(self.shelf.set(&format!("shop-data:stock:{item}"), units.to_string()).await?)
    }
}

fn order_name(order: u64) -> String {
    format!("shop-data:order:{order}")
}
