//! Many requests at a time over one socket. The server answers them in order.
//!
//! * A request writes itself to the socket, with those before it, once enough of them wait
//!   ([`written_together`]). The driver writes the rest: a task that first lets all tasks run that are ready.
//! * A request that is alone also reads the socket while it waits, so that no other task has to run. As soon
//!   as there is another request, the driver reads.
//! * A future that is not polled must not keep the answers of others. The driver therefore takes over when
//!   another request begins, when the future is dropped, and at the latest two [`TICK`]s later.
//! * The driver measures the time of all requests with one timer, which runs while any are in flight.
//! * While nothing is in flight, the driver waits for the end of the socket.
//!
//! The multiplexed connection of redis-rs 1.8 has the same purpose. It lacks a limit for the size of
//! replies, takes the end of a subscription that nobody has asked for as the reply to the next request, and
//! its queue, task and parser cost more than two thirds of the instructions of a request.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, PushInfo, RedisError, RedisResult, Value};
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::outgoing::{Expected, Outgoing};
use super::reply::ReplyReader;
use super::socket::Socket;
use lock_core::sync::{Mutex, MutexGuard, lock};
use lock_core::user_code::contained;

/// The most bytes that wait to be written. Only a server that reads nothing leaves as many.
const MOST_OUTGOING: usize = 4 << 20;

/// The interval at which the driver looks for a request that is not polled, and for requests whose time is up.
const TICK: Duration = Duration::from_millis(20);

/// The shortest time for an answer that the driver measures. A shorter one has a timer of its own.
const MEASURED: Duration = Duration::from_millis(500);

/// Called with each message that the server sends without a request.
pub(crate) type OnMessage = Arc<dyn Fn(&PushInfo) + Send + Sync>;

/// Called when a socket has ended that was not closed here.
pub(crate) type OnEnd = Box<dyn FnOnce() + Send>;

/// A handle to a socket. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PipelinedSocket(Arc<Shared>);

struct Shared {
    /// `None` after the end. Locked before `state`, and never while a message is delivered.
    io: Mutex<Option<Io>>,
    state: Mutex<State>,
    /// With it, the driver always reads, so that no message is late.
    on_message: Option<OnMessage>,
    /// The runtime of the driver.
    home: Id,
}

struct Io {
    socket: Socket,
    /// What is being written, and how much of it was written.
    writing: Vec<u8>,
    written: usize,
    /// TLS may keep what was written for a while.
    is_flushed: bool,
    replies: ReplyReader,
}

#[derive(Default)]
struct State {
    /// Requests that nobody has begun to write, and their number.
    outgoing: Vec<u8>,
    unwritten: usize,
    /// The requests without a complete answer, in the order in which they are written.
    waiting: VecDeque<Waiting>,
    slots: Slab<Slot>,
    reader: Reader,
    /// How many requests have begun to read for themselves.
    self_reads: u64,
    driver: Option<Waker>,
    /// The driver was woken and has not run since.
    is_driver_woken: bool,
    /// The timer of the driver runs.
    is_ticking: bool,
    has_ended: bool,
    on_end: Option<OnEnd>,
}

/// Who reads the socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Reader {
    #[default]
    Driver,
    /// The only request in flight.
    Request(usize),
    /// A request has read its answer. The driver watches the socket again soon.
    Nobody,
}

struct Waiting {
    slot: usize,
    expected: Expected,
}

/// The answer to a request.
enum Slot {
    Waiting {
        waker: Option<Waker>,
        /// When its time is up, if the driver measures it.
        until: Option<Instant>,
    },
    Ready(RedisResult<Value>),
    /// Nobody waits any more.
    Abandoned,
}

/// Waits for the answer to a request, which was sent when this was made. The request may run even if this is
/// dropped.
pub(crate) struct Answer<'a> {
    shared: &'a Shared,
    /// `None` if the socket had ended, or after the answer.
    slot: Option<usize>,
}

/// The task that serves a socket. Ends with it.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// Other tasks have had the chance to add their requests to the next write.
    has_yielded: bool,
    timer: Timer,
}

/// The timer of the driver.
struct Timer {
    next: Pin<Box<Sleep>>,
    /// The number at the last tick.
    self_reads: u64,
}

/// Who has read answers, and who is woken for them.
struct Answered {
    by: Reader,
    wakers: Vec<Waker>,
}

/// How serving a socket has come to a halt.
enum Served {
    /// Nothing can be read or written.
    Blocked,
    /// The driver reads now.
    TakenOver,
    /// A message has to be delivered before the rest.
    Message(PushInfo),
    Failed(RedisError),
}

impl PipelinedSocket {
    /// The driver has to be spawned on the current runtime.
    pub(crate) fn new(socket: Socket, on_message: Option<OnMessage>) -> (Self, Driver) {
        let replies = ReplyReader::default();
        let io = Io { socket, writing: Vec::new(), written: 0, is_flushed: true, replies };
        let (io, state) = (Mutex::new(Some(io)), Mutex::default());
        let home = Handle::current().id();
        let shared = Arc::new(Shared { io, state, on_message, home });
        let timer = Timer { next: Box::pin(sleep(TICK)), self_reads: 0 };
        let driver = Driver { shared: Arc::clone(&shared), has_yielded: false, timer };
        (Self(shared), driver)
    }

    /// From now on, the end of the socket is reported.
    pub(crate) fn report_end(&self, on_end: OnEnd) {
        let mut state = self.0.state();
        if state.has_ended {
            drop(state);
            return on_end();
        }
        state.on_end = Some(on_end);
    }

    /// Sends a request. Its answer is that of the last command, unless the request says otherwise.
    pub(crate) fn send(&self, outgoing: Outgoing<'_>) -> Answer<'_> {
        let shared = &*self.0;
        let mut state = shared.state();
        if state.has_ended {
            return Answer { shared, slot: None };
        }
        if state.outgoing.len() > MOST_OUTGOING {
            drop(state);
            shared.end(closed(), true);
            return Answer { shared, slot: None };
        }
        let expected = outgoing.encode(&mut state.outgoing);
        if expected.is_nothing() {
            let slot = state.slots.insert(Slot::Ready(Ok(Value::Array(Vec::new()))));
            return Answer { shared, slot: Some(slot) };
        }
        let slot = state.slots.insert(Slot::Waiting { waker: None, until: None });
        state.waiting.push_back(Waiting { slot, expected });
        // It starts its timer.
        let mut woken = if state.is_ticking { None } else { state.wake_driver() };
        let count = state.waiting.len();
        if count > 1 || shared.on_message.is_some() {
            if state.reader != Reader::Driver {
                state.reader = Reader::Driver;
                woken = woken.or_else(|| state.wake_driver());
            }
        } else {
            state.reader = Reader::Request(slot);
            state.self_reads += 1;
        }
        state.unwritten += 1;
        let is_due = state.unwritten >= written_together(count);
        if !is_due {
            woken = woken.or_else(|| state.wake_driver());
        }
        drop(state);
        if is_due && !shared.try_write() {
            woken = woken.or_else(|| shared.state().wake_driver());
        }
        if let Some(driver) = woken {
            driver.wake();
        }
        Answer { shared, slot: Some(slot) }
    }

    /// Sends one command, and returns its reply as a value of this type.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let reply = self.send(Outgoing::Command(command)).await?;
        Ok(redis::from_redis_value(reply)?)
    }

    /// Closes the socket. Requests in flight fail, and nothing more is written.
    pub(crate) fn close(&self) {
        self.0.end(closed(), false);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes what is outgoing, if nobody else uses the socket. Returns whether everything was written.
    fn try_write(&self) -> bool {
        let mut io = match self.io.try_lock() {
            Ok(io) => io,
            Err(TryLockError::Poisoned(io)) => io.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // The driver waits for a socket that is full.
        let mut cx = Context::from_waker(Waker::noop());
        let Some(io) = io.as_mut() else { return true };
        loop {
            let is_rest = {
                let mut state = self.state();
                io.take(&mut state);
                state.outgoing.is_empty()
            };
            match io.poll_write(&mut cx) {
                Poll::Ready(Ok(())) if is_rest => return true,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) | Poll::Pending => return false,
            }
        }
    }

    /// Writes and reads until the socket blocks, or until a request has its answer that reads for itself.
    fn serve(&self, by: Reader, cx: &mut Context<'_>) -> Served {
        let mut answered = Answered { by, wakers: Vec::new() };
        let served = match lock(&self.io).as_mut() {
            Some(io) => self.serve_with(io, &mut answered, cx),
            None => Served::Failed(closed()),
        };
        // Not before: a waker may drop a task, and with it the last handle to the socket.
        wake_all(answered.wakers);
        served
    }

    fn serve_with(&self, io: &mut Io, answered: &mut Answered, cx: &mut Context<'_>) -> Served {
        loop {
            {
                let mut state = self.state();
                if state.reader != answered.by {
                    return Served::TakenOver;
                }
                io.take(&mut state);
            }
            let written = io.poll_write(cx);
            // What has arrived before, behind a message, comes first.
            let mut state = self.state();
            loop {
                match io.replies.next() {
                    Ok(Some(Value::Push { kind, data })) => {
                        let message = PushInfo { kind, data };
                        if state.confirms(&message) {
                            let PushInfo { kind, data } = message.clone();
                            state.replied(Value::Push { kind, data }, answered);
                        }
                        return Served::Message(message);
                    }
                    // The server may end a subscription on its own, and then refuse to end it.
                    Ok(Some(Value::ServerError(_))) if state.waiting.is_empty() => {}
                    Ok(Some(reply)) if state.expects(&reply) => state.replied(reply, answered),
                    Ok(Some(_)) => return Served::Failed(unasked()),
                    Ok(None) => break,
                    Err(error) => return Served::Failed(error),
                }
            }
            if answered.by != Reader::Driver && state.waiting.is_empty() {
                return Served::Blocked;
            }
            drop(state);
            match io.poll_read(cx) {
                Poll::Ready(Ok(0)) => return Served::Failed(closed()),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Served::Failed(error.into()),
                Poll::Pending => match written {
                    Poll::Ready(Ok(())) if !self.state().outgoing.is_empty() => {}
                    // Not before: what has arrived was read.
                    Poll::Ready(Err(error)) => return Served::Failed(error.into()),
                    Poll::Ready(Ok(())) | Poll::Pending => return Served::Blocked,
                },
            }
        }
    }

    fn deliver(&self, message: &PushInfo) {
        if let Some(on_message) = &self.on_message {
            on_message(message);
        }
    }

    /// The socket has ended. The oldest request gets the error.
    fn end(&self, error: RedisError, is_reported: bool) {
        let mut woken = Vec::new();
        // Dropped last: a waker may be the last reference to a task, which may have an answer here.
        let (_io, on_end);
        {
            let mut io = lock(&self.io);
            let mut state = self.state();
            if state.has_ended {
                return;
            }
            state.has_ended = true;
            state.reader = Reader::Driver;
            state.outgoing = Vec::new();
            let mut error = Some(error);
            for Waiting { slot, .. } in std::mem::take(&mut state.waiting) {
                let error = error.take().unwrap_or_else(closed);
                woken.extend(state.fill(slot, Err(error)));
            }
            woken.extend(state.driver.take());
            (_io, on_end) = (io.take(), state.on_end.take());
        }
        if let (true, Some(on_end)) = (is_reported, on_end) {
            contained(on_end);
        }
        wake_all(woken);
    }
}

impl Io {
    /// Takes what is outgoing, when everything else was written.
    fn take(&mut self, state: &mut State) {
        if self.written == self.writing.len() && !state.outgoing.is_empty() {
            self.writing.clear();
            self.written = 0;
            // A connection does not keep the memory of an exceptional request.
            if self.writing.capacity() > super::reply::KEPT {
                self.writing = Vec::new();
            }
            std::mem::swap(&mut self.writing, &mut state.outgoing);
            state.unwritten = 0;
            self.is_flushed = false;
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_flushed {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.writing.len() {
            let rest = &self.writing[self.written..];
            match Pin::new(&mut self.socket).poll_write(cx, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.is_flushed = matches!(flushed, Poll::Ready(Ok(())));
        flushed
    }

    /// Returns the number of bytes that were read; 0 at the end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(self.replies.room());
        match Pin::new(&mut self.socket).poll_read(cx, &mut buffer) {
            Poll::Ready(Ok(())) => {
                let count = buffer.filled().len();
                self.replies.add(count);
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl State {
    /// The driver, which the caller has to wake, unless it was woken already.
    fn wake_driver(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.is_driver_woken, true) {
            return None;
        }
        self.driver.clone()
    }

    /// Whether a message is the answer to the oldest request.
    fn confirms(&self, message: &PushInfo) -> bool {
        self.waiting.front().is_some_and(|oldest| match &oldest.expected {
            Expected::Confirmations { kind, of, .. } => {
                let is_about = |name: &str| {
                    matches!(message.data.first(), Some(Value::BulkString(it)) if it == name.as_bytes())
                };
                message.kind == *kind && of.as_deref().is_none_or(is_about)
            }
            _ => false,
        })
    }

    /// Whether a reply that is no message can be one to the oldest request.
    fn expects(&self, reply: &Value) -> bool {
        match self.waiting.front().map(|oldest| &oldest.expected) {
            Some(Expected::Confirmations { .. }) => matches!(reply, Value::ServerError(_)),
            Some(_) => true,
            None => false,
        }
    }

    /// The next reply to the oldest request.
    fn replied(&mut self, reply: Value, answered: &mut Answered) {
        let Some(oldest) = self.waiting.front_mut() else { return };
        let answer = match &mut oldest.expected {
            Expected::One => reply.extract_error(),
            Expected::Second => {
                oldest.expected = Expected::One;
                return;
            }
            Expected::All { left, replies } => {
                replies.push(reply);
                *left -= 1;
                if *left > 0 {
                    return;
                }
                Ok(Value::Array(std::mem::take(replies)))
            }
            Expected::Confirmations { left, .. } => {
                *left -= 1;
                let is_error = matches!(reply, Value::ServerError(_));
                if *left > 0 && !is_error {
                    return;
                }
                reply.extract_error()
            }
        };
        let slot = oldest.slot;
        self.waiting.pop_front();
        let waker = self.fill(slot, answer);
        if answered.by != Reader::Request(slot) {
            answered.wakers.extend(waker);
        }
    }

    fn fill(&mut self, slot: usize, answer: RedisResult<Value>) -> Option<Waker> {
        match std::mem::replace(&mut self.slots[slot], Slot::Ready(answer)) {
            Slot::Waiting { waker, .. } => waker,
            Slot::Abandoned | Slot::Ready(_) => {
                self.slots.remove(slot);
                None
            }
        }
    }
}

impl Answer<'_> {
    /// Waits at most for this time. May be called again after `None`.
    ///
    /// Cancel safe: the answer can still be awaited.
    pub(crate) async fn within(&mut self, time: Duration) -> Option<RedisResult<Value>> {
        // The runtime of the driver may be blocked, and this one is not.
        let is_home = Handle::try_current().is_ok_and(|here| here.id() == self.shared.home);
        if time < MEASURED || !is_home {
            return timeout(time, self).await.ok();
        }
        if let Some(slot) = self.slot
            && let Slot::Waiting { until, .. } = &mut self.shared.state().slots[slot]
        {
            *until = Some(Instant::now() + time);
        }
        poll_fn(|cx| {
            if let Poll::Ready(answer) = Pin::new(&mut *self).poll(cx) {
                return Poll::Ready(Some(answer));
            }
            let is_overdue = self.slot.is_some_and(|slot| {
                matches!(self.shared.state().slots[slot], Slot::Waiting { until: None, .. })
            });
            if is_overdue { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

impl Future for Answer<'_> {
    type Output = RedisResult<Value>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else { return Poll::Ready(Err(closed())) };
        let shared = self.shared;
        loop {
            {
                // Dropped after the guard: it may be the last reference to a task, which may have an answer here.
                let _earlier;
                let mut state = shared.state();
                if let Slot::Waiting { waker, .. } = &mut state.slots[slot] {
                    if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                        _earlier = waker.replace(cx.waker().clone());
                    }
                    if state.reader != Reader::Request(slot) {
                        return Poll::Pending;
                    }
                } else if let Slot::Ready(answer) = state.slots.remove(slot) {
                    if state.reader == Reader::Request(slot) {
                        state.reader = Reader::Nobody;
                    }
                    drop(state);
                    self.slot = None;
                    return Poll::Ready(answer);
                }
            }
            match shared.serve(Reader::Request(slot), cx) {
                Served::Blocked => {
                    if !matches!(shared.state().slots[slot], Slot::Ready(_)) {
                        return Poll::Pending;
                    }
                }
                Served::TakenOver => {}
                Served::Message(message) => shared.deliver(&message),
                Served::Failed(error) => shared.end(error, true),
            }
        }
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        // Dropped after the guard, as above.
        let _earlier;
        let mut state = self.shared.state();
        let mut woken = None;
        if let Slot::Waiting { .. } = state.slots[slot] {
            _earlier = std::mem::replace(&mut state.slots[slot], Slot::Abandoned);
        } else {
            _earlier = state.slots.remove(slot);
        }
        if state.reader == Reader::Request(slot) {
            state.reader = Reader::Driver;
            woken = state.wake_driver();
        }
        drop(state);
        if let Some(driver) = woken {
            driver.wake();
        }
    }
}

impl Timer {
    /// Lets the timer run while it is needed. Returns the requests whose time is up.
    fn tick(&mut self, state: &mut State, cx: &mut Context<'_>) -> Vec<Waker> {
        let mut overdue = Vec::new();
        let is_needed = |state: &State| state.reader != Reader::Driver || !state.waiting.is_empty();
        if !state.is_ticking && is_needed(state) {
            state.is_ticking = true;
            self.self_reads = state.self_reads;
            self.next.as_mut().reset(Instant::now() + TICK);
        }
        while state.is_ticking && self.next.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            for (_, slot) in &mut state.slots {
                if let Slot::Waiting { waker, until } = slot
                    && until.is_some_and(|until| until <= now)
                {
                    *until = None;
                    overdue.extend(waker.take());
                }
            }
            if state.self_reads == self.self_reads {
                state.reader = Reader::Driver;
            }
            self.self_reads = state.self_reads;
            state.is_ticking = is_needed(state);
            self.next.as_mut().reset(now + TICK);
        }
        overdue
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let shared = &*this.shared;
        loop {
            let mut state = shared.state();
            state.is_driver_woken = false;
            if state.has_ended {
                return Poll::Ready(());
            }
            if !state.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
                state.driver = Some(cx.waker().clone());
            }
            let overdue = this.timer.tick(&mut state, cx);
            if !overdue.is_empty() {
                drop(state);
                wake_all(overdue);
                continue;
            }
            if state.reader != Reader::Driver {
                return Poll::Pending;
            }
            let may_grow = written_together(state.waiting.len()) > 1 && !state.outgoing.is_empty();
            this.has_yielded = may_grow && !this.has_yielded;
            drop(state);
            if this.has_yielded {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match shared.serve(Reader::Driver, cx) {
                Served::Blocked => return Poll::Pending,
                Served::TakenOver => {}
                Served::Message(message) => shared.deliver(&message),
                Served::Failed(error) => shared.end(error, true),
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The runtime may have ended.
        self.shared.end(closed(), false);
    }
}

/// How many requests one write should have with this many in flight. More would leave the server idle while the
/// client makes them, and fewer would cost more calls of the system.
fn written_together(in_flight: usize) -> usize {
    if in_flight < 4 {
        return 1;
    }
    (in_flight / 3).clamp(2, 8).max(in_flight / 8)
}

fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        contained(|| waker.wake());
    }
}

/// The error of a request over a socket that has ended.
fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

fn unasked() -> RedisError {
    (redis::ErrorKind::Parse, "a reply that nobody has asked for").into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use redis::{ErrorKind, PushKind, cmd};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::transport::endpoint::{Access, Endpoint};
    use crate::transport::login::Login;
    use lock_core::join::join_all;

    /// Far longer than anything here takes.
    const LONG: Duration = Duration::from_secs(20);

    /// A socket whose driver does not run yet, and the server's end of it.
    async fn pair(on_message: Option<OnMessage>) -> (PipelinedSocket, Driver, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let login = Login::new(redis::RedisConnectionInfo::default(), None);
        let endpoint = Endpoint::tcp("localhost", port, Access::new(login, "test"));
        let socket = Socket::connect(&endpoint, Arc::default());
        let (socket, accepted) = tokio::join!(socket, listener.accept());
        let (socket, driver) = PipelinedSocket::new(socket.expect("loopback"), on_message);
        (socket, driver, accepted.expect("loopback").0)
    }

    /// Counts the ends of a socket.
    fn ends(of: &PipelinedSocket) -> Arc<AtomicUsize> {
        let ends = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&ends);
        of.report_end(Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed)));
        ends
    }

    async fn eventually(what: impl Fn() -> bool) {
        let poll = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, poll).await.expect("it happens");
    }

    /// Reads as many commands with one word as there are replies, and answers them.
    async fn serve(peer: &mut TcpStream, replies: &[&str]) {
        for reply in replies {
            let mut request = [0; 14];
            peer.read_exact(&mut request).await.expect("a request");
            assert_eq!(&request, b"*1\r\n$4\r\nPING\r\n");
            peer.write_all(reply.as_bytes()).await.expect("open");
        }
    }

    async fn ping(socket: &PipelinedSocket) -> RedisResult<Value> {
        timeout(LONG, socket.send(Outgoing::Command(&cmd("PING")))).await.expect("an answer")
    }

    /// Polls a future once.
    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_request_that_is_alone_needs_no_driver() {
        let (socket, _driver, mut peer) = pair(None).await;
        for reply in ["+OK\r\n", "$-1\r\n"] {
            let replies = [reply];
            let (answer, ()) = tokio::join!(ping(&socket), serve(&mut peer, &replies));
            assert_eq!(answer, Ok(if reply == "+OK\r\n" { Value::Okay } else { Value::Nil }));
        }
    }

    #[tokio::test]
    async fn requests_get_their_answers_in_order() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        for count in [1, 2, 4, 100_i64] {
            let replies: Vec<_> = (0..count).map(|n| format!(":{n}\r\n")).collect();
            let replies: Vec<_> = replies.iter().map(String::as_str).collect();
            let all = join_all((0..count).map(|_| ping(&socket)));
            let (answers, ()) = tokio::join!(all, serve(&mut peer, &replies));
            let expected: Vec<_> = (0..count).map(|n| Ok(Value::Int(n))).collect();
            assert_eq!(answers, expected);
        }
    }

    #[tokio::test]
    async fn many_requests_are_written_together() {
        let (socket, driver, mut peer) = pair(None).await;
        let requests: Vec<_> =
            (0..8).map(|_| socket.send(Outgoing::Command(&cmd("PING")))).collect();
        // Without a driver, the last one waits for others.
        let mut written = [0; 7 * 14];
        peer.read_exact(&mut written).await.expect("few");
        assert!(peer.try_read(&mut [0; 1]).is_err(), "nothing else");
        tokio::spawn(driver);
        tokio::task::yield_now().await;
        serve(&mut peer, &["+OK\r\n"]).await;
        drop(requests);
    }

    #[tokio::test]
    async fn a_future_that_is_not_polled_keeps_no_answers_of_others() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        let first = cmd("PING");
        let mut first = std::pin::pin!(socket.send(Outgoing::Command(&first)));
        assert!(poll_once(first.as_mut()).is_pending());
        assert_ne!(socket.0.state().reader, Reader::Driver);
        let command = cmd("PING");
        let second = socket.send(Outgoing::Command(&command));
        assert_eq!(socket.0.state().reader, Reader::Driver, "at once, and not with the timer");
        let (second, ()) = tokio::join!(second, serve(&mut peer, &[":1\r\n", ":2\r\n"]));
        assert_eq!(second, Ok(Value::Int(2)));
        assert_eq!(poll_once(first), Poll::Ready(Ok(Value::Int(1))));
    }

    #[tokio::test]
    async fn a_future_that_is_dropped_keeps_no_answers_of_others() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        {
            let first = cmd("PING");
            let first = std::pin::pin!(socket.send(Outgoing::Command(&first)));
            assert!(poll_once(first).is_pending());
            assert_ne!(socket.0.state().reader, Reader::Driver);
        }
        assert_eq!(socket.0.state().reader, Reader::Driver, "at once, and not with the timer");
        let (second, ()) = tokio::join!(ping(&socket), serve(&mut peer, &[":1\r\n", ":2\r\n"]));
        assert_eq!(second, Ok(Value::Int(2)));
        assert_eq!(socket.0.state().slots.len(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn the_end_is_noticed_although_the_reader_is_not_polled() {
        let (socket, driver, peer) = pair(None).await;
        let ends = ends(&socket);
        tokio::spawn(driver);
        let command = cmd("PING");
        let mut request = std::pin::pin!(socket.send(Outgoing::Command(&command)));
        assert!(poll_once(request.as_mut()).is_pending());
        drop(peer);
        eventually(|| ends.load(Ordering::Relaxed) == 1).await;
        let Poll::Ready(answer) = poll_once(request) else { panic!("it has failed") };
        assert_eq!(answer.expect_err("no answer").kind(), ErrorKind::Io);
    }

    #[tokio::test]
    async fn the_end_of_an_idle_socket_is_noticed() {
        let (socket, driver, mut peer) = pair(None).await;
        let ends = ends(&socket);
        tokio::spawn(driver);
        for _ in 0..3 {
            let (answer, ()) = tokio::join!(ping(&socket), serve(&mut peer, &["+OK\r\n"]));
            assert_eq!(answer, Ok(Value::Okay));
        }
        drop(peer);
        eventually(|| ends.load(Ordering::Relaxed) == 1).await;
        assert_eq!(ping(&socket).await.expect_err("closed").kind(), ErrorKind::Io);
    }

    #[tokio::test]
    async fn a_socket_without_requests_sets_no_timer() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        let (answer, ()) = tokio::join!(ping(&socket), serve(&mut peer, &["+OK\r\n"]));
        assert_eq!(answer, Ok(Value::Okay));
        eventually(|| !socket.0.state().is_ticking).await;
        assert_eq!(socket.0.state().reader, Reader::Driver);
    }

    #[tokio::test]
    async fn an_answer_has_its_time_and_may_come_later() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        let command = cmd("PING");
        for (time, is_alone) in [(MEASURED, true), (MEASURED, false), (TICK, true)] {
            let others = (!is_alone).then(|| socket.send(Outgoing::Command(&command)));
            let mut answer = socket.send(Outgoing::Command(&command));
            let begun = Instant::now();
            assert_eq!(answer.within(time).await, None);
            assert!(begun.elapsed() >= time, "{:?}", begun.elapsed());
            serve(&mut peer, if is_alone { &[":1\r\n"] } else { &[":0\r\n", ":1\r\n"] }).await;
            assert_eq!(answer.within(LONG).await, Some(Ok(Value::Int(1))));
            drop(others);
        }
        eventually(|| socket.0.state().slots.is_empty()).await;
    }

    #[tokio::test]
    async fn requests_are_written_when_enough_of_them_wait() {
        const PING: usize = b"*1\r\n$4\r\nPING\r\n".len();
        // No driver writes them.
        let (socket, _driver, mut peer) = pair(None).await;
        let (command, mut requests, mut written) = (cmd("PING"), Vec::new(), Vec::new());
        for sent in 1..=200 {
            requests.push(socket.send(Outgoing::Command(&command)));
            let waiting = sent - written.len() / PING;
            let is_due = waiting >= written_together(sent);
            if is_due {
                let mut some = vec![0; waiting * PING];
                peer.read_exact(&mut some).await.expect("open");
                written.extend(some);
            }
            let mut more = [0; PING];
            let more = timeout(Duration::ZERO, peer.read(&mut more)).await;
            assert!(more.is_err(), "{sent} sent, {} written", written.len() / PING);
        }
        assert!(written.len() / PING > 150);
    }

    #[tokio::test]
    async fn all_requests_fail_when_the_socket_ends() {
        let (socket, driver, peer) = pair(None).await;
        tokio::spawn(driver);
        let requests = join_all((0..10).map(|_| ping(&socket)));
        let end = async { drop(peer) };
        let (answers, ()) = tokio::join!(requests, end);
        for answer in answers {
            assert_eq!(answer.expect_err("no answer").kind(), ErrorKind::Io);
        }
        assert_eq!(socket.0.state().slots.len(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn nothing_is_written_after_the_end() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        socket.close();
        assert_eq!(ping(&socket).await.expect_err("closed").kind(), ErrorKind::Io);
        let mut rest = Vec::new();
        let end = timeout(LONG, peer.read_to_end(&mut rest)).await.expect("an end");
        assert!(end.is_err() || rest.is_empty(), "{rest:?}");
    }

    #[tokio::test]
    async fn a_driver_that_is_dropped_ends_the_socket() {
        let (socket, driver, _peer) = pair(None).await;
        let command = cmd("PING");
        let mut request = std::pin::pin!(socket.send(Outgoing::Command(&command)));
        assert!(poll_once(request.as_mut()).is_pending());
        drop(driver);
        assert!(matches!(poll_once(request), Poll::Ready(Err(_))));
    }

    #[tokio::test]
    async fn messages_and_confirmations_are_told_apart() {
        let messages = Arc::<Mutex<Vec<_>>>::default();
        let all = Arc::clone(&messages);
        let on_message = move |message: &PushInfo| lock(&all).push(message.clone());
        let (socket, driver, mut peer) = pair(Some(Arc::new(on_message))).await;
        let ends = ends(&socket);
        tokio::spawn(driver);
        let channels = ["a", "b"].map(Arc::<str>::from);
        let change = PushKind::SUnsubscribe;
        let both = socket.send(Outgoing::Subscription { change, channels: &channels });
        let confirmation =
            |name: &str| format!(">3\r\n$12\r\nsunsubscribe\r\n$1\r\n{name}\r\n:0\r\n");
        let replies = async {
            let text = format!(
                ">2\r\n$10\r\ninvalidate\r\n_\r\n{}{}{}+OK\r\n",
                confirmation("a"),
                confirmation("b"),
                confirmation("c"),
            );
            // In pieces, so that none is complete at first.
            for piece in text.as_bytes().chunks(3) {
                peer.write_all(piece).await.expect("open");
            }
        };
        let (both, answer, ()) = tokio::join!(both, ping(&socket), replies);
        assert!(matches!(both, Ok(Value::Push { kind: PushKind::SUnsubscribe, .. })), "{both:?}");
        assert_eq!(answer, Ok(Value::Okay), "not the end of the subscription to c");
        assert_eq!(lock(&messages).len(), 4);
        // The end of another channel is no confirmation.
        let change = PushKind::SUnsubscribe;
        let one = socket.send(Outgoing::Subscription { change, channels: &channels[..1] });
        let text = format!("{}-NOPERM no\r\n", confirmation("c"));
        let (one, written) = tokio::join!(one, peer.write_all(text.as_bytes()));
        written.expect("open");
        assert_eq!(one.expect_err("refused").code(), Some("NOPERM"));
        assert_eq!(ends.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_reply_that_nobody_has_asked_for_ends_the_socket() {
        let (socket, driver, mut peer) = pair(None).await;
        let ends = ends(&socket);
        tokio::spawn(driver);
        peer.write_all(b"+OK\r\n").await.expect("open");
        eventually(|| ends.load(Ordering::Relaxed) == 1).await;
    }

    #[tokio::test]
    async fn a_reply_that_is_too_long_ends_the_socket() {
        let (socket, driver, mut peer) = pair(None).await;
        let ends = ends(&socket);
        tokio::spawn(driver);
        let (answer, ()) = tokio::join!(ping(&socket), serve(&mut peer, &["$4294967296\r\n"]));
        assert!(answer.expect_err("too long").to_string().contains("16 MiB"));
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn answers_of_several_commands_belong_together() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        let mut commands = redis::Pipeline::new();
        commands.cmd("PING").cmd("PING");
        let all = socket.send(Outgoing::Commands(&commands));
        let ((all, second), ()) = tokio::join!(
            async { (all.await, ping(&socket).await) },
            serve(&mut peer, &["-ERR no\r\n", ":1\r\n", ":2\r\n"])
        );
        let Ok(Value::Array(all)) = all else { panic!("{all:?}") };
        assert!(matches!(&all[..], [Value::ServerError(_), Value::Int(1)]), "{all:?}");
        assert_eq!(second, Ok(Value::Int(2)));
        let asking = cmd("PING");
        let asking = socket.send(Outgoing::Asking(&asking));
        let (answer, written) = tokio::join!(asking, peer.write_all(b"+OK\r\n:3\r\n"));
        written.expect("open");
        assert_eq!(answer, Ok(Value::Int(3)));
    }

    #[tokio::test]
    async fn answers_that_have_arrived_survive_an_error_of_a_write() {
        let (socket, driver, mut peer) = pair(None).await;
        let command = cmd("PING");
        let mut first = socket.send(Outgoing::Command(&command));
        let mut second = socket.send(Outgoing::Command(&command));
        serve(&mut peer, &[":1\r\n"]).await;
        // The rest of the requests is unread, so this resets the connection.
        drop(peer);
        tokio::time::sleep(TICK).await;
        let third = socket.send(Outgoing::Command(&command));
        tokio::spawn(driver);
        let answer = timeout(LONG, &mut first).await.expect("an end");
        // On some systems, a reset discards what has arrived.
        assert!(matches!(answer, Ok(Value::Int(1)) | Err(_)), "{answer:?}");
        assert!(timeout(LONG, &mut second).await.expect("an end").is_err());
        assert!(timeout(LONG, third).await.expect("an end").is_err());
    }

    #[tokio::test]
    async fn a_waker_that_panics_leaves_no_other_request_without_its_answer() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker that panics");
            }
        }
        let (socket, driver, mut peer) = pair(None).await;
        let command = cmd("PING");
        let mut first = Box::pin(socket.send(Outgoing::Command(&command)));
        let waker = Waker::from(Arc::new(Panics));
        let second = socket.send(Outgoing::Command(&command));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        tokio::spawn(driver);
        let both = async { timeout(LONG, second).await.expect("an answer") };
        let (second, ()) = tokio::join!(both, serve(&mut peer, &[":1\r\n", ":2\r\n"]));
        assert_eq!(second, Ok(Value::Int(2)));
        assert_eq!(ping_after(&socket, &mut peer).await, Ok(Value::Okay), "the driver goes on");
    }

    async fn ping_after(socket: &PipelinedSocket, peer: &mut TcpStream) -> RedisResult<Value> {
        tokio::join!(ping(socket), serve(peer, &["+OK\r\n"])).0
    }

    #[tokio::test]
    async fn a_server_that_reads_nothing_is_left() {
        let (socket, driver, _peer) = pair(None).await;
        let ends = ends(&socket);
        tokio::spawn(driver);
        let mut long = cmd("ECHO");
        long.arg("x".repeat(1 << 20));
        // The buffers of the system come first.
        for _ in 0..100 {
            drop(socket.send(Outgoing::Command(&long)));
        }
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_end_of_a_request_is_noticed_although_the_runtime_of_the_socket_is_blocked() {
        let home = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let home = std::thread::spawn(move || {
            let home = home.expect("a runtime");
            let (socket, driver, peer) = home.block_on(pair(None));
            home.spawn(driver);
            (home, socket, peer)
        });
        let (home, socket, _peer) = home.join().expect("no panic");
        let command = cmd("PING");
        let mut answer = socket.send(Outgoing::Command(&command));
        assert_eq!(timeout(LONG, answer.within(MEASURED)).await.expect("its own timer"), None);
        drop(answer);
        home.shutdown_background();
    }

    #[tokio::test]
    async fn a_request_without_commands_needs_no_answer() {
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        let nothing = redis::Pipeline::new();
        assert_eq!(socket.send(Outgoing::Commands(&nothing)).await, Ok(Value::Array(Vec::new())));
        assert_eq!(ping_after(&socket, &mut peer).await, Ok(Value::Okay));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_answer_is_lost_between_threads() {
        const TASKS: i64 = 8;
        const ROUNDS: usize = 2_000;
        let (socket, driver, mut peer) = pair(None).await;
        tokio::spawn(driver);
        // Answers each request with its own argument.
        tokio::spawn(async move {
            let mut arrived = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = peer.read(&mut buffer).await {
                arrived.extend_from_slice(&buffer[..count]);
                let mut replies = Vec::new();
                // `*2 $4 ECHO $1 n`
                while arrived.len() >= 21 {
                    replies.extend_from_slice(b"$1\r\n");
                    replies.extend(arrived.drain(..21).skip(18));
                }
                peer.write_all(&replies).await.expect("open");
            }
        });
        let tasks = (0..TASKS).map(|task| {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut echo = cmd("ECHO");
                echo.arg(task);
                for round in 0..ROUNDS {
                    let mut answer = Box::pin(socket.send(Outgoing::Command(&echo)));
                    if round % 7 == 0 {
                        // Dropped, polled or not.
                        if round % 2 == 0 {
                            let _ = poll_once(answer.as_mut());
                        }
                        continue;
                    }
                    let answer = timeout(LONG, answer).await.expect("an answer");
                    let expected = Value::BulkString(task.to_string().into_bytes());
                    assert_eq!(answer, Ok(expected), "round {round}");
                    if round % 5 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        });
        for task in join_all(tasks).await {
            task.expect("no answer is lost");
        }
    }
}
