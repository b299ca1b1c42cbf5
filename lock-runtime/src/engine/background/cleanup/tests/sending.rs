//! What a cleanup sends, how often, and until when.

use super::*;

#[tokio::test]
async fn a_cleanup_is_repeated_until_the_store_answers() {
    let ((store, owner), cleanups) = (store(), cleanups());
    acquire(&store, owner).await.expect("free");
    // A password may be changed for a moment.
    store.next_releases([Fault::Refuse, Fault::Deny, Fault::Deny]);
    cleanups.push(released(&store, owner));
    send_all(&cleanups).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_cleanup_does_not_free_the_key_of_a_successor() {
    let ((store, stale), cleanups) = (store(), cleanups());
    acquire(&store, new_owner()).await.expect("free");
    cleanups.push(released(&store, stale));
    send_all(&cleanups).await;
    assert!(!is_free(&store).await);
}

/// Undoes a request that arrives during the undo, and asserts that the key is free in the end.
async fn undo_against_a_late_request(
    store: &Arc<FaultyStore>,
    owner: OwnerId,
    origin: Option<Origin>,
) {
    let cleanups = cleanups();
    cleanups.push(undo(store, owner, origin));
    let late = async {
        tokio::task::yield_now().await;
        acquire(store, owner).await.expect("free");
    };
    tokio::join!(send_all(&cleanups), late);
    assert!(is_free(store).await);
}

#[tokio::test]
async fn an_undo_is_repeated_for_a_late_request() {
    let (store, owner) = store();
    undo_against_a_late_request(&store, owner, None).await;
}

#[tokio::test]
async fn an_undo_that_freed_one_attempt_is_repeated_for_another_one() {
    let (store, owner) = store();
    acquire(&store, owner).await.expect("free");
    undo_against_a_late_request(&store, owner, None).await;
}

#[tokio::test]
async fn an_undo_over_another_connection_is_repeated() {
    // The store uses connection 1.
    for connection in [0, 2] {
        let (store, owner) = store();
        undo_against_a_late_request(&store, owner, Some(sent_over(connection))).await;
    }
}

#[tokio::test]
async fn an_undo_over_the_connection_of_its_request_is_not_repeated() {
    let ((store, owner), cleanups) = (store(), cleanups());
    acquire(&store, owner).await.expect("free");
    cleanups.push(undo(&store, owner, Some(sent_over(1))));
    assert_eq!(cleanups.open(), 2, "on both lanes");
    let start = BootInstant::now();
    send_all(&cleanups).await;
    assert!(BootInstant::now().since(start) < PAUSES.1 / 2, "not repeated");
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_cleanup_is_given_up_when_its_key_has_expired() {
    let ((store, owner), cleanups) = (store(), cleanups());
    store.next_releases(std::iter::repeat_n(Fault::Refuse, 1000));
    let end = BootInstant::now().after(Duration::from_millis(100));
    cleanups.push(Cleanup { gone_by: end, ..released(&store, owner) });
    send_all(&cleanups).await;
    assert!(BootInstant::now() >= end);
}

#[tokio::test]
async fn nothing_is_sent_for_an_expired_key() {
    let ((store, owner), queues) = (store(), Arc::new(LocalQueues::default()));
    let notifier = Notifier::new(Arc::clone(&queues));
    let cleanups = Cleanups::new(Arc::clone(&notifier), (Arc::default(), Arc::default()));
    let permit = Some(testing::permit(&queues, "k"));
    let gone_by = BootInstant::from_nanos(1);
    cleanups.push(Cleanup { gone_by, permit, ..undo(&store, owner, None) });
    send_all(&cleanups).await;
    assert_eq!(store.most_releases_at_once(), 0);
    notifier.close();
    notifier.run().await;
    assert_eq!(queues.keys(), 0, "the permit was given back");
}

#[tokio::test]
async fn a_key_that_is_gone_before_its_deadline_counts_as_lost() {
    for (valid_until, lost) in [(BootInstant::now().after(LEASE), 1), (BootInstant::PAST, 0)] {
        let ((store, owner), cleanups) = (store(), cleanups());
        cleanups.push(Cleanup { valid_until, ..released(&store, owner) });
        send_all(&cleanups).await;
        assert_eq!(cleanups.found_lost(), lost);
    }
}
