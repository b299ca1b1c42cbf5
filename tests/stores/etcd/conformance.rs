//! The checks of all stores, with one member. `crate::conformance` has them with three.

mod single {
    use lock_runtime::store::EtcdStore;
    use lock_tests::EtcdCluster;

    lock_runtime::store_conformance!(
        let etcd = EtcdCluster::single();
        EtcdStore::new(&etcd.url()).expect("a valid URL")
    );
}
