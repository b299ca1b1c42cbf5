//! The checks of all stores, with one member and with three.

mod single {
    use lock_runtime::store::EtcdStore;
    use lock_tests::EtcdCluster;

    lock_runtime::store_conformance!(
        let etcd = EtcdCluster::single();
        EtcdStore::new(&etcd.url()).expect("a valid URL")
    );
}

mod three {
    use lock_runtime::store::EtcdStore;
    use lock_tests::EtcdCluster;

    lock_runtime::store_conformance!(
        let etcd = EtcdCluster::three();
        EtcdStore::new(&etcd.url()).expect("a valid URL")
    );
}
