//! The network between the clients and the simulated server, with its faults.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::sync::lock;
use lock_redis::test_network::{TestSocket, use_network};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinError;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::reply::{Reply, take_requests};
use super::server::{Id, Server};

/// 2026-01-01, in microseconds since 1970.
const START: u64 = 1_767_225_600_000_000;

/// Longer than a test.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The interval at which a client that is cut off is tried again.
const STEP: Duration = Duration::from_millis(5);

/// How often something fails. Each number `n` means once in `n` writes of a client, and 0 means never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The connection ends before the request arrives.
    pub lost_requests: u32,
    /// The connection ends after the request has run.
    pub lost_replies: u32,
    /// Nothing arrives any more in either direction, and neither end notices.
    pub half_open: u32,
    /// The request, or its reply, is late by up to two seconds.
    pub late: u32,
    /// The server is restarted, without its scripts, and is down for up to a second.
    pub restarts: u32,
    /// A restart loses the data.
    pub forgets: bool,
    /// The server stands still for up to two seconds.
    pub pauses: u32,
    /// The client is cut off from the server for up to three seconds.
    pub partitions: u32,
}

/// What happens to one request.
#[derive(Debug, Clone, Copy)]
pub enum RequestFault {
    /// The connection ends before it has arrived.
    Cut,
    /// The connection ends after it has run.
    LostReply,
    /// It arrives when the test [says so](Simulation::deliver), also if its client has closed the connection.
    HeldBack,
}

/// A server, and the network to it. Cheap to clone.
#[derive(Clone)]
pub struct Simulation(Arc<Mutex<World>>);

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}

struct World {
    random: fastrand::Rng,
    faults: Faults,
    server: Server,
    began: Instant,
    connections: BTreeMap<Id, Connection>,
    last: Id,
    /// Until then, the server runs nothing.
    paused_until: Instant,
    /// Until then, nobody can connect.
    down_until: Instant,
    /// Until then, these clients cannot reach the server.
    cut_off: BTreeMap<String, Instant>,
    /// Clients whose replies are held back.
    silent: BTreeSet<String>,
    /// How much longer each way takes.
    longer: Duration,
    /// Clients whose connections are half open from now on.
    gone: BTreeSet<String>,
    /// A hash of the requests so far.
    trace: u64,
    /// The tasks of the simulation itself.
    tasks: usize,
    /// The panic of the server.
    panicked: Option<Box<dyn Any + Send>>,
    planned: Vec<(String, RequestFault)>,
    failed: usize,
    /// Requests that are held back, and those of the same connections behind them.
    held: Vec<(Id, Vec<Vec<Vec<u8>>>)>,
    /// Bytes per second.
    rate: Option<u32>,
    /// Whether the requests are printed.
    shows: bool,
}

/// What happens by chance.
enum RandomFault {
    Restart,
    HalfOpen,
    LostRequest,
    LostReply,
}

struct Connection {
    client: String,
    received: Vec<u8>,
    to_client: UnboundedSender<(Instant, Vec<u8>)>,
    /// When the last bytes arrive: bytes do not overtake each other.
    last: Instant,
    is_half_open: bool,
    /// The next request ends it.
    is_reset: bool,
    /// Replies that were held back.
    held_back: Vec<Vec<u8>>,
}

impl Simulation {
    /// Runs a test on a clock that is paused. The clients that it makes connect to the server of this simulation, whatever
    /// their URLs say: the host is the name of the client.
    pub fn run<T>(seed: u64, test: impl AsyncFnOnce(&Self) -> T) -> T {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        let output = runtime.expect("a runtime").block_on(async {
            let simulation = Self::new(seed);
            let output = test(&simulation).await;
            let panicked = lock(&simulation.0).panicked.take();
            panicked.map_or(Ok(output), Err)
        });
        use_network(None);
        output.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn new(seed: u64) -> Self {
        lock_core::clock::simulate(Duration::from_micros(START));
        // The jitter of the library uses this generator.
        fastrand::seed(seed);
        let now = Instant::now();
        let world = World {
            random: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            server: Server::new(),
            began: now,
            connections: BTreeMap::new(),
            last: 0,
            paused_until: now,
            down_until: now,
            cut_off: BTreeMap::new(),
            silent: BTreeSet::new(),
            longer: Duration::ZERO,
            gone: BTreeSet::new(),
            trace: seed,
            tasks: 0,
            panicked: None,
            planned: Vec::new(),
            failed: 0,
            held: Vec::new(),
            rate: None,
            shows: std::env::var_os("LOCK_SEED").is_some(),
        };
        let simulation = Self(Arc::new(Mutex::new(world)));
        let network = simulation.clone();
        let connect = move |host: &str, _| {
            let (network, client) = (network.clone(), host.to_owned());
            Box::pin(async move { network.connect(client).await }) as _
        };
        use_network(Some(Arc::new(connect)));
        simulation
    }

    /// The URL of a client with this name.
    #[must_use]
    pub fn url(&self, client: &str) -> String {
        format!("redis://{client}")
    }

    /// How often something fails from now on.
    pub fn fail(&self, faults: Faults) {
        lock(&self.0).faults = faults;
    }

    /// The keys that exist.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let world = lock(&self.0);
        world.set_time();
        world.server.keys()
    }

    /// Whether a key exists.
    #[must_use]
    pub fn exists(&self, key: &str) -> bool {
        self.keys().iter().any(|it| it == key)
    }

    /// The time after which a key expires, in milliseconds; -2 if it does not exist.
    #[must_use]
    pub fn pttl(&self, key: &str) -> i64 {
        let Reply::Integer(left) = self.ask(&["PTTL", key]) else { panic!("no number") };
        left
    }

    /// Another client takes a key by force.
    pub fn set(&self, key: &str, value: &str, lease: Duration) {
        self.ask(&["SET", key, value, "PX", &lease.as_millis().to_string()]);
    }

    fn ask(&self, command: &[&str]) -> Reply {
        let mut world = lock(&self.0);
        world.set_time();
        let command: Vec<_> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        world.server.execute(0, &command).remove(0)
    }

    /// How often the server has run a command, also in scripts.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        lock(&self.0).server.calls(command)
    }

    /// A hash of the requests so far, and of their times.
    #[must_use]
    pub fn trace(&self) -> u64 {
        lock(&self.0).trace
    }

    /// A random number below a limit.
    #[must_use]
    pub fn random(&self, limit: u64) -> u64 {
        lock(&self.0).random.u64(..limit)
    }

    /// What happens to the next request with this command. Those in which clients say who they are do not count.
    pub fn fail_next(&self, command: &str, fault: RequestFault) {
        lock(&self.0).planned.push((command.to_owned(), fault));
    }

    /// How many of the planned faults have happened.
    #[must_use]
    pub fn failed(&self) -> usize {
        lock(&self.0).failed
    }

    /// Runs the requests that were held back.
    pub fn deliver(&self) {
        let mut world = lock(&self.0);
        for (id, requests) in std::mem::take(&mut world.held) {
            for request in &requests {
                world.answer(id, request);
            }
        }
    }

    /// At most so many bytes of replies to each connection arrive in a second.
    pub fn limit_replies(&self, bytes: u32) {
        lock(&self.0).rate = Some(bytes);
    }

    /// The tasks of the runtime that are not those of the simulation.
    #[must_use]
    pub fn other_tasks(&self) -> usize {
        Handle::current().metrics().num_alive_tasks() - lock(&self.0).tasks
    }

    /// The numbers of the open connections.
    #[must_use]
    pub fn connections(&self) -> Vec<usize> {
        lock(&self.0).connections.keys().copied().collect()
    }

    /// Each request and each reply takes this much longer from now on.
    pub fn delay(&self, by: Duration) {
        lock(&self.0).longer = by;
    }

    /// Until [`heal`](Self::heal), the client and the server cannot reach each other. What the client sends meanwhile arrives
    /// then, unless it has closed the connection.
    pub fn cut_off(&self, client: &str) {
        let (end, mut world) = (Instant::now() + DAY, lock(&self.0));
        world.cut_off.insert(client.to_owned(), end);
        world.silent.insert(client.to_owned());
    }

    /// Until [`heal`](Self::heal), requests of the client run, and their replies are held back.
    pub fn hold_replies(&self, client: &str) {
        lock(&self.0).silent.insert(client.to_owned());
    }

    /// Everything arrives again, and what was held back arrives now.
    pub fn heal(&self) {
        let mut world = lock(&self.0);
        world.cut_off.clear();
        world.silent.clear();
        (world.longer, world.rate) = (Duration::ZERO, None);
        let now = Instant::now();
        for connection in world.connections.values_mut() {
            connection.last = now;
            for bytes in std::mem::take(&mut connection.held_back) {
                let _ = connection.to_client.send((now, bytes));
            }
        }
    }

    /// Nothing arrives any more over the connections that this client has now, as after a firewall has forgotten them. It may
    /// reset them at the next request.
    pub fn forget_connections(&self, client: &str, is_reset: bool) {
        let mut world = lock(&self.0);
        for connection in world.connections.values_mut().filter(|it| it.client == client) {
            (connection.is_half_open, connection.is_reset) = (!is_reset, is_reset);
        }
    }

    /// Nothing of this client arrives any more, as if its host had lost its power.
    pub fn remove(&self, client: &str) {
        lock(&self.0).gone.insert(client.to_owned());
        self.forget_connections(client, false);
    }

    async fn connect(self, client: String) -> io::Result<Box<dyn TestSocket>> {
        let wait = lock(&self.0).delay();
        sleep(wait).await;
        while lock(&self.0).is_cut_off(&client) {
            sleep(STEP).await;
        }
        let (to_client, replies) = unbounded_channel();
        let (to_server, written) = unbounded_channel();
        let id = lock(&self.0).accept(client, to_client)?;
        let (network, serving) = (self.clone(), tokio::spawn(self.clone().serve(id, written)));
        lock(&self.0).tasks += 2;
        tokio::spawn(async move {
            let ended = serving.await;
            let mut world = lock(&network.0);
            world.tasks -= 2;
            // A fault of the server, such as a script that fails, must not look like one of the network.
            world.panicked = ended.err().map(JoinError::into_panic).or(world.panicked.take());
        });
        let (last, next, rest) = (Instant::now(), None, Vec::new());
        Ok(Box::new(Socket { id, simulation: self, to_server, last, replies, next, rest }))
    }

    /// Delivers what a client writes, and the end of its socket, to the server.
    async fn serve(self, id: Id, mut written: UnboundedReceiver<(Instant, Vec<u8>)>) {
        while let Some((at, bytes)) = written.recv().await {
            let was_cut_off = self.reach(id, at).await;
            // A socket that is closed does not send again what was lost.
            if !(was_cut_off && written.is_closed()) {
                lock(&self.0).arrived(id, &bytes);
            }
        }
        let delay = lock(&self.0).delay();
        self.reach(id, Instant::now() + delay).await;
        let mut world = lock(&self.0);
        // Nobody tells the server the end of such a connection.
        if world.connections.get(&id).is_some_and(|connection| !connection.is_half_open) {
            world.disconnect(id);
        }
    }

    /// Waits until this time, and until the server runs and can be reached. Returns whether it could not be reached.
    async fn reach(&self, id: Id, at: Instant) -> bool {
        let (mut at, mut was_cut_off) = (Some(at), false);
        while let Some(until) = at {
            sleep_until(until).await;
            let world = lock(&self.0);
            let client = world.connections.get(&id).map(|connection| &*connection.client);
            let reached = client.and_then(|client| world.cut_off.get(client)).copied();
            let reached = reached.filter(|end| Instant::now() < *end);
            was_cut_off |= reached.is_some();
            let pause = Some(world.paused_until).filter(|end| Instant::now() < *end);
            // It may be reached earlier.
            let reached = reached.map(|end| end.min(Instant::now() + STEP));
            at = reached.max(pause);
        }
        was_cut_off
    }
}

impl World {
    /// A short time on the way.
    fn delay(&mut self) -> Duration {
        let late = self.happens(self.faults.late);
        self.longer
            + Duration::from_micros(self.random.u64(50..500))
            + if late { Duration::from_millis(self.random.u64(..2_000)) } else { Duration::ZERO }
    }

    /// The same, of a request, with which a partition may begin.
    fn delay_of_request(&mut self, id: Id) -> Duration {
        if self.happens(self.faults.partitions)
            && let Some(connection) = self.connections.get(&id)
        {
            let end = Instant::now() + Duration::from_millis(self.random.u64(..3_000));
            self.cut_off.insert(connection.client.clone(), end);
        }
        self.delay()
    }

    fn happens(&mut self, once_in: u32) -> bool {
        once_in > 0 && self.random.u32(..once_in) == 0
    }

    fn set_time(&self) {
        let passed = u64::try_from(self.began.elapsed().as_micros()).expect("hours");
        self.server.set_time(START + passed);
    }

    fn is_cut_off(&self, client: &str) -> bool {
        self.gone.contains(client)
            || self.cut_off.get(client).is_some_and(|end| Instant::now() < *end)
    }

    fn accept(
        &mut self,
        client: String,
        to_client: UnboundedSender<(Instant, Vec<u8>)>,
    ) -> io::Result<Id> {
        let now = Instant::now();
        if now < self.down_until {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.last += 1;
        let connection = Connection {
            client,
            received: Vec::new(),
            to_client,
            last: now,
            is_half_open: false,
            is_reset: false,
            held_back: Vec::new(),
        };
        self.connections.insert(self.last, connection);
        Ok(self.last)
    }

    fn disconnect(&mut self, id: Id) {
        self.connections.remove(&id);
        self.server.disconnect(id);
    }

    fn arrived(&mut self, id: Id, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id).filter(|it| !it.is_half_open) else {
            return;
        };
        if connection.is_reset {
            return self.disconnect(id);
        }
        connection.received.extend(bytes);
        let requests = take_requests(&mut connection.received);
        // One fault at most for what was written at once: the scripts that a new connection loads are many requests.
        let (mut fault, mut before) = (self.fault(), self.random.usize(..requests.len().max(1)));
        for request in requests {
            if before == 0
                && let Some(fault) = fault.take()
            {
                match fault {
                    RandomFault::Restart => {
                        self.server.restart(!self.faults.forgets);
                        self.connections.retain(|_, connection| connection.is_half_open);
                    }
                    RandomFault::HalfOpen => {
                        self.connections.get_mut(&id).expect("it exists").is_half_open = true;
                    }
                    RandomFault::LostRequest => self.disconnect(id),
                    RandomFault::LostReply => self.run_without_reply(id, &request),
                }
                return;
            }
            before = before.saturating_sub(1);
            if let Some((_, held)) = self.held.iter_mut().find(|(held, _)| *held == id) {
                held.push(request);
                continue;
            }
            match self.planned_for(&request) {
                None => self.answer(id, &request),
                Some(RequestFault::HeldBack) => self.held.push((id, vec![request])),
                Some(RequestFault::LostReply) => return self.run_without_reply(id, &request),
                Some(RequestFault::Cut) => return self.disconnect(id),
            }
        }
    }

    fn answer(&mut self, id: Id, request: &[Vec<u8>]) {
        for reply in self.run(id, request) {
            self.send(id, &reply);
        }
        self.publish();
    }

    fn run_without_reply(&mut self, id: Id, request: &[Vec<u8>]) {
        self.run(id, request);
        self.disconnect(id);
        self.publish();
    }

    fn publish(&mut self) {
        for (id, message) in self.server.take_messages() {
            self.send(id, &message);
        }
    }

    /// The fault that was planned for a request.
    fn planned_for(&mut self, request: &[Vec<u8>]) -> Option<RequestFault> {
        if request.get(1).is_some_and(|key| key.starts_with(b"lock_client:")) {
            return None;
        }
        let is_meant = |(command, _): &(String, _)| command.as_bytes() == request[0];
        let index = self.planned.iter().position(is_meant)?;
        self.failed += 1;
        Some(self.planned.remove(index).1)
    }

    /// What happens now.
    fn fault(&mut self) -> Option<RandomFault> {
        let (faults, now) = (self.faults, Instant::now());
        if self.happens(faults.pauses) {
            self.paused_until = now + Duration::from_millis(self.random.u64(..2_000));
        }
        if self.happens(faults.restarts) {
            self.down_until = now + Duration::from_millis(self.random.u64(..1_000));
            return Some(RandomFault::Restart);
        }
        let of_connection = [
            (faults.half_open, RandomFault::HalfOpen),
            (faults.lost_requests, RandomFault::LostRequest),
            (faults.lost_replies, RandomFault::LostReply),
        ];
        of_connection
            .into_iter()
            .find(|(once_in, _)| self.happens(*once_in))
            .map(|(_, fault)| fault)
    }

    fn run(&mut self, id: Id, request: &[Vec<u8>]) -> Vec<Reply> {
        self.set_time();
        let replies = self.server.execute(id, request);
        self.note(id, request);
        if self.shows {
            eprintln!("    {replies:?}");
        }
        replies
    }

    /// Adds to the trace. The arguments of a request may have times and the process id.
    fn note(&mut self, id: Id, request: &[Vec<u8>]) {
        let time = u64::try_from(self.began.elapsed().as_micros()).expect("hours");
        let what = &request[..if request[0] == *b"EVALSHA" { 2 } else { 1 }];
        if self.shows {
            eprintln!("{time} µs: connection {id}: {}", shown(request));
        }
        let what = what.iter().flatten().map(|byte| u64::from(*byte));
        for number in what.chain([id as u64, time]) {
            self.trace = (self.trace ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
    }

    fn send(&mut self, id: Id, reply: &Reply) {
        let delay = self.delay();
        let Some(connection) = self.connections.get_mut(&id).filter(|it| !it.is_half_open) else {
            return;
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let length = u32::try_from(bytes.len()).expect("short");
        let sending =
            self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * length / rate);
        if self.silent.contains(&connection.client) {
            return connection.held_back.push(bytes);
        }
        let earliest = self.cut_off.get(&connection.client).copied();
        let earliest = earliest.unwrap_or_else(Instant::now).max(Instant::now());
        connection.last = connection.last.max(earliest + delay) + sending;
        // Without the client, nobody reads it.
        let _ = connection.to_client.send((connection.last, bytes));
    }
}

/// The client's end of a connection.
struct Socket {
    id: Id,
    simulation: Simulation,
    to_server: UnboundedSender<(Instant, Vec<u8>)>,
    /// When the last bytes arrive.
    last: Instant,
    replies: UnboundedReceiver<(Instant, Vec<u8>)>,
    /// What arrives next.
    next: Option<(Pin<Box<Sleep>>, Vec<u8>)>,
    /// What has arrived.
    rest: Vec<u8>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.id).finish()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.rest.is_empty() {
                let count = this.rest.len().min(buffer.remaining());
                buffer.put_slice(&this.rest[..count]);
                this.rest.drain(..count);
                return Poll::Ready(Ok(()));
            }
            if let Some((arrival, _)) = &mut this.next {
                if arrival.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                this.rest = this.next.take().map(|(_, bytes)| bytes).unwrap_or_default();
                continue;
            }
            match this.replies.poll_recv(cx) {
                Poll::Ready(Some((at, bytes))) => {
                    this.next = Some((Box::pin(sleep_until(at)), bytes));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let delay = lock(&this.simulation.0).delay_of_request(this.id);
        this.last = this.last.max(Instant::now() + delay);
        // After the end of the connection, nobody reads it.
        let _ = this.to_server.send((this.last, bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn shown(request: &[Vec<u8>]) -> String {
    let words = request.iter().take(14).map(|word| String::from_utf8_lossy(word));
    words.map(|word| word.chars().take(90).collect::<String>()).collect::<Vec<_>>().join(" ")
}
