//! The watches of keys: one stream carries all of them.
//!
//! The keys for which calls wait are watched from the revision of the answer that said that the key is taken, so no deletion
//! is missed. The keys of locks that are held for more than a moment are watched from the revision of their grant.
//!
//! When the stream ends, because its member has ended, has lost its leader or was left, the client is told that wake-ups may
//! be missing, and watches the keys again over the next stream. If the first revision was compacted, events may be missing
//! for that key alone.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use super::errors::EtcdFailure;
use super::members::Members;
use super::messages::{
    WatchCancelRequest, WatchChange, WatchCreateRequest, WatchFilter, WatchRequest, WatchResponse,
};
use lock_core::backoff::Backoff;
use lock_core::store::runner::WakeUps;

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// The first and the longest pause before another stream.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

const DELETION: i32 = 1;

/// What the watcher is asked for.
#[derive(Debug)]
pub(super) enum WatchCommand {
    /// Calls wait for a key. `watched` is told when its events arrive from now on; it is dropped if they do not.
    Wait { key: String, from: i64, watched: oneshot::Sender<()> },
    /// No call waits for it any more.
    NoWait { key: String },
    /// The key was acquired at this revision.
    Hold { key: String, from: i64 },
    /// It was released.
    NoHold { key: String },
}

/// A key that is watched.
#[derive(Debug, Default)]
struct KeyWatch {
    id: i64,
    /// The first revision whose events are wanted; zero for those from now on.
    from: i64,
    waits: bool,
    /// The number of holds because of which it is watched. The next owner may begin before the last one is known to have
    /// ended.
    holds: u32,
    /// Whether puts are reported as well.
    has_puts: bool,
    is_live: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

/// The task that watches keys. It ends when nobody can send it commands any more.
pub(super) struct KeyWatcher {
    members: Weak<Members>,
    wake_ups: WakeUps,
    commands: mpsc::UnboundedReceiver<WatchCommand>,
    keys: HashMap<String, KeyWatch>,
    by_id: HashMap<i64, String>,
    next_id: i64,
}

/// Why a stream is not read any more.
enum StreamEnd {
    /// The store is dropped.
    Dropped,
    Lost,
}

type Requests = mpsc::UnboundedSender<WatchRequest>;

impl KeyWatcher {
    pub(super) fn new(
        members: &Arc<Members>,
        wake_ups: WakeUps,
        commands: mpsc::UnboundedReceiver<WatchCommand>,
    ) -> Self {
        let members = Arc::downgrade(members);
        Self {
            members,
            wake_ups,
            commands,
            keys: HashMap::new(),
            by_id: HashMap::new(),
            next_id: 1,
        }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            if self.keys.is_empty() {
                let Some(command) = self.commands.recv().await else { return };
                self.apply(command, None);
                continue;
            }
            let Some(members) = self.members.upgrade() else { return };
            let (requests, receiver) = mpsc::unbounded_channel();
            // etcd answers a stream only after its first request.
            let all: Vec<String> = self.keys.keys().cloned().collect();
            for key in all {
                self.create(&key, &requests);
            }
            let opened = members.open(PATH, UnboundedReceiverStream::new(receiver)).await;
            if let Ok((number, stream)) = opened {
                let began = Instant::now();
                if let StreamEnd::Dropped = self.follow(&members, number, (stream, requests)).await
                {
                    return;
                }
                // A stream that etcd opens may refuse its watches at once.
                if began.elapsed() >= PAUSES.1 {
                    backoff.reset();
                }
            }
            drop(members);
            self.lost();
            let pause = sleep(backoff.pause());
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    command = self.commands.recv() => match command {
                        Some(command) => self.apply(command, None),
                        None => return,
                    }
                }
            }
        }
    }

    /// Reads a stream until it ends.
    async fn follow(
        &mut self,
        members: &Members,
        number: usize,
        (mut stream, requests): (Streaming<WatchResponse>, Requests),
    ) -> StreamEnd {
        let mut changes = members.changes();
        // The member may have been left while the stream was opened.
        if *changes.borrow_and_update() != number {
            return StreamEnd::Lost;
        }
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.apply(command, Some(&requests)),
                    None => return StreamEnd::Dropped,
                },
                answer = stream.message() => match answer {
                    Ok(Some(answer)) => {
                        if self.answered(answer, &requests).is_err() {
                            members.log_in_again();
                            return StreamEnd::Lost;
                        }
                    }
                    Ok(None) | Err(_) => {
                        members.leave(number);
                        return StreamEnd::Lost;
                    }
                },
                // The member does not answer other requests either.
                told = changes.changed() => {
                    if told.is_err() || *changes.borrow() != number {
                        return StreamEnd::Lost;
                    }
                }
            }
        }
    }

    fn apply(&mut self, command: WatchCommand, requests: Option<&Requests>) {
        match command {
            WatchCommand::Wait { key, from, watched } => {
                let watch = self.keys.entry(key.clone()).or_default();
                let is_new = !watch.waits && watch.holds == 0;
                watch.waits = true;
                if watch.is_live {
                    let _ = watched.send(());
                } else {
                    watch.waiting.push(watched);
                }
                if is_new {
                    watch.from = from;
                    self.create_now(&key, requests);
                }
            }
            WatchCommand::Hold { key, from } => {
                let watch = self.keys.entry(key.clone()).or_default();
                watch.holds += 1;
                if !watch.has_puts {
                    watch.from = from;
                    watch.has_puts = true;
                    self.create_now(&key, requests);
                }
            }
            WatchCommand::NoWait { key } => {
                if let Some(watch) = self.keys.get_mut(&key) {
                    watch.waits = false;
                    watch.waiting.clear();
                }
                self.drop_unused(&key, requests);
            }
            WatchCommand::NoHold { key } => {
                if let Some(watch) = self.keys.get_mut(&key) {
                    watch.holds = watch.holds.saturating_sub(1);
                }
                self.drop_unused(&key, requests);
            }
        }
    }

    fn create_now(&mut self, key: &str, requests: Option<&Requests>) {
        if let Some(requests) = requests {
            self.create(key, requests);
        }
    }

    /// Watches a key, instead of an earlier watch of it.
    fn create(&mut self, key: &str, requests: &Requests) {
        let Some(watch) = self.keys.get_mut(key) else { return };
        cancel(watch.id, requests);
        self.by_id.remove(&watch.id);
        (watch.id, self.next_id) = (self.next_id, self.next_id + 1);
        watch.is_live = false;
        self.by_id.insert(watch.id, key.to_owned());
        let filters = if watch.has_puts { Vec::new() } else { vec![WatchFilter::NoPut.into()] };
        let create = WatchCreateRequest {
            key: key.as_bytes().to_vec(),
            start_revision: watch.from,
            filters,
            watch_id: watch.id,
        };
        // If the stream has ended, the key is watched over the next one.
        let _ = requests.send(WatchRequest { change: Some(WatchChange::Create(create)) });
    }

    fn drop_unused(&mut self, key: &str, requests: Option<&Requests>) {
        let Some(watch) = self.keys.get(key).filter(|watch| !watch.waits && watch.holds == 0)
        else {
            return;
        };
        if let Some(requests) = requests {
            cancel(watch.id, requests);
        }
        self.by_id.remove(&watch.id);
        self.keys.remove(key);
    }

    /// Processes a message. Fails if the stream has to be opened again.
    fn answered(&mut self, answer: WatchResponse, requests: &Requests) -> Result<(), EtcdFailure> {
        if answer.created && answer.canceled && answer.compact_revision == 0 {
            // It was refused. From 3.5.6 on, the answer does not say which watch it was.
            return Err(EtcdFailure::Unknown(answer.cancel_reason));
        }
        // The watch may have been cancelled.
        let Some(key) = self.by_id.get(&answer.watch_id).cloned() else { return Ok(()) };
        let Some(watch) = self.keys.get_mut(&key) else { return Ok(()) };
        if answer.canceled {
            self.by_id.remove(&answer.watch_id);
            if answer.compact_revision == 0 {
                return Err(EtcdFailure::Unknown(answer.cancel_reason));
            }
            // The events from that revision on are gone: look again, and watch from now on.
            watch.from = 0;
            self.tell(&key, true);
            self.create(&key, requests);
            return Ok(());
        }
        if answer.created {
            watch.is_live = true;
            for watched in watch.waiting.drain(..) {
                let _ = watched.send(());
            }
        }
        if !answer.events.is_empty() {
            let is_free = answer.events.iter().any(|event| event.kind == DELETION);
            self.tell(&key, is_free);
        }
        Ok(())
    }

    fn tell(&self, key: &str, is_free: bool) {
        let Some(watch) = self.keys.get(key) else { return };
        if watch.waits && is_free {
            self.wake_ups.released(key);
        }
        if watch.holds > 0 {
            self.wake_ups.lost(key);
        }
    }

    /// The stream has ended. The client asks again for the keys for which calls wait.
    fn lost(&mut self) {
        self.by_id.clear();
        self.keys.retain(|_, watch| {
            watch.waiting.clear();
            (watch.id, watch.waits, watch.is_live) = (0, false, false);
            watch.holds > 0
        });
        self.wake_ups.interrupted();
    }
}

fn cancel(id: i64, requests: &Requests) {
    if id != 0 {
        let cancel = WatchCancelRequest { watch_id: id };
        let _ = requests.send(WatchRequest { change: Some(WatchChange::Cancel(cancel)) });
    }
}
