//! At most N at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock_recipes::at_most::{RenderFarm, render};
use lock_runtime::LockClient;
use lock_tests::RedisServer;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::PATIENCE;

const VIDEOS: usize = 9;

/// How many videos are being rendered, and the most so far.
#[derive(Debug, Default)]
struct RenderCount {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl RenderCount {
    /// Renders until as many others are being rendered as the barrier says.
    async fn video(&self, barrier: &Barrier) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        barrier.wait().await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_render_at_most_three_videos_at_a_time() {
    let server = RedisServer::start();
    let (count, barrier) = (Arc::new(RenderCount::default()), Arc::new(Barrier::new(3)));
    let mut videos = JoinSet::new();
    for _ in 0..3 {
        let locks = LockClient::connect(&server.url()).await.expect("the server is up");
        for _ in 0..VIDEOS / 3 {
            let farm = RenderFarm::new(locks.clone());
            let (count, barrier) = (Arc::clone(&count), Arc::clone(&barrier));
            videos.spawn(async move { render(&farm, count.video(&barrier)).await });
        }
    }
    let rendered =
        timeout(PATIENCE, videos.join_all()).await.expect("three are rendered at a time");
    assert_eq!(rendered, [const { Ok(()) }; VIDEOS]);
    assert_eq!(count.most.load(Ordering::SeqCst), 3);
}

/// The negative control of the test above.
#[tokio::test]
async fn without_permits_all_videos_are_rendered_at_a_time() {
    let (count, barrier) = (Arc::new(RenderCount::default()), Arc::new(Barrier::new(VIDEOS)));
    let mut videos = JoinSet::new();
    for _ in 0..VIDEOS {
        let (count, barrier) = (Arc::clone(&count), Arc::clone(&barrier));
        videos.spawn(async move { count.video(&barrier).await });
    }
    timeout(PATIENCE, videos.join_all()).await.expect("they meet");
    assert_eq!(count.most.load(Ordering::SeqCst), VIDEOS);
}
