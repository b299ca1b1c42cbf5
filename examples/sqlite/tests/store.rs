//! The checks of all stores.

use std::path::PathBuf;

use lock_example_sqlite::SqliteStore;
use tempfile::TempDir;

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("locks.db")
}

lock_runtime::store_conformance!(
    let folder = tempfile::tempdir().expect("a folder");
    SqliteStore(crate::path(&folder))
);
