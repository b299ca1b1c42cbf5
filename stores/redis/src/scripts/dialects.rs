//! The dialects of all layouts.

use std::io::Write;

use redis::{Cmd, Pipeline};

use super::dialect::{Dialect, PublishingScript, RunScripts, milliseconds};
use super::script::{Script, script};
use lock_core::key;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::Layout;
use lock_core::wire_format::WireFormat;

static TOKEN: Dialect = Dialect {
    layout: Layout::TOKEN,
    acquire: PublishingScript::new(script!(
        notes_asking: "tell.lua",
        "token/transfer.lua",
        "enter_queue.lua",
        "kind.lua",
        "token/acquire.lua"
    )),
    renew: script!("token/held.lua", "extend.lua", "renew.lua"),
    release: PublishingScript::new(script!(
        "token/free.lua",
        "tell.lua",
        "token/transfer.lua",
        "token/held.lua",
        "token/keep.lua",
        "token/release.lua",
        "token/release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "token/free_all.lua",
        "tell.lua",
        "token/transfer.lua",
        "token/held.lua",
        "token/keep.lua",
        "token/release.lua",
        "token/release_all.lua"
    )),
    fence: Some(script!("token/held.lua", "owned.lua", "fence.lua")),
    check: PublishingScript::new(script!("place.lua", "token/check.lua")),
    acquire_all: Some(script!(notes_asking: "token/acquire_all.lua")),
    announcements: Some([
        script!("token/held.lua", "owned.lua", "token/announcement.lua", "token/announce.lua"),
        script!("token/announcement.lua", "token/announced.lua"),
    ]),
    runs: Some(RunScripts {
        start: script!(
            "token/held.lua",
            "owned.lua",
            "token/run_record.lua",
            "token/start_run.lua"
        ),
        end: script!("token/held.lua", "owned.lua", "token/run_record.lua", "token/end_run.lua"),
        last: script!("token/held.lua", "token/run_record.lua", "token/last_run.lua"),
    }),
    change: None,
    take: Some(|claim, client| {
        let mut set = Cmd::with_capacity(6, claim.resource.key.len() + 64);
        set.arg("SET").arg(claim.resource.key).arg(&client.owner_name(claim.owner)[..]);
        if Safeguard::OnlyIfFree.is_on() {
            set.arg("NX");
        }
        if Safeguard::Expiry.is_on() {
            set.arg("PX").arg(milliseconds(claim.term));
        }
        set
    }),
    second_key: None,
    queues: true,
    owner_name: |owner, client, name| name.write_all(&client.owner_name(owner)),
    channel_prefix: "lock_wake:",
    fixed_message: None,
};

/// In Redisson, owners are threads: the UUID of a client, and the number of a thread. Here the
/// number is random for each acquisition. Two acquisitions of one client have the same name with a
/// probability of 2^-63, and those of two clients only if the UUIDs of the clients are equal as
/// well.
static REDISSON: Dialect = Dialect {
    layout: Layout::Wire(WireFormat::Redisson),
    acquire: PublishingScript::new(script!("kind.lua", "redisson/acquire.lua")),
    renew: script!("redisson/held.lua", "extend.lua", "renew.lua"),
    release: PublishingScript::new(script!(
        "redisson/held.lua",
        "redisson/keep.lua",
        "release.lua",
        "release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "redisson/held.lua",
        "redisson/keep.lua",
        "release.lua",
        "release_all.lua"
    )),
    fence: Some(script!("redisson/held.lua", "owned.lua", "fence.lua")),
    check: PublishingScript::new(script!("redisson/check.lua")),
    acquire_all: None,
    announcements: None,
    runs: None,
    change: None,
    take: None,
    second_key: None,
    queues: false,
    owner_name: |owner, client, name| write!(name, "{}:{}", client.uuid(), owner.number()),
    channel_prefix: "redisson_lock__channel:",
    fixed_message: Some("0"),
};

/// Other clients read the lock as a number, so it cannot name its owner. A second key does.
static TIMESTAMP: Dialect = Dialect {
    layout: Layout::Wire(WireFormat::Timestamp),
    acquire: PublishingScript::new(script!(
        "timestamp/held.lua",
        "timestamp/write.lua",
        "kind.lua",
        "timestamp/acquire.lua"
    )),
    renew: script!(
        "timestamp/held.lua",
        "timestamp/write.lua",
        "timestamp/extend.lua",
        "renew.lua"
    ),
    release: PublishingScript::new(script!(
        "timestamp/held.lua",
        "timestamp/keep.lua",
        "release.lua",
        "release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "timestamp/held.lua",
        "timestamp/keep.lua",
        "release.lua",
        "release_all.lua"
    )),
    fence: Some(script!("timestamp/held.lua", "owned.lua", "fence.lua")),
    check: PublishingScript::new(script!("timestamp/held.lua", "timestamp/check.lua")),
    acquire_all: None,
    announcements: None,
    runs: None,
    change: None,
    take: None,
    second_key: Some(key::OWNERS),
    queues: false,
    owner_name: |owner, client, name| name.write_all(&client.owner_name(owner)),
    channel_prefix: "lock_wake:",
    fixed_message: None,
};

/// Locks that are shares of a capacity: read-write locks and semaphores, which differ in the shares that are asked for.
const fn counted(layout: Layout) -> Dialect {
    Dialect {
        layout,
        acquire: PublishingScript::new(script!(
            notes_asking: "counted/take.lua",
            "counted/shares.lua",
            "tell.lua",
            "counted/settle.lua",
            "enter_queue.lua",
            "kind.lua",
            "counted/acquire.lua"
        )),
        renew: script!("counted/shares.lua", "counted/extend.lua", "renew.lua"),
        release: PublishingScript::new(script!(
            "counted/free.lua",
            "counted/shares.lua",
            "tell.lua",
            "counted/settle.lua",
            "counted/release.lua",
            "token/release_one.lua"
        )),
        release_all: PublishingScript::new(script!(
            "counted/shares.lua",
            "tell.lua",
            "counted/settle.lua",
            "counted/release.lua",
            "token/release_all.lua"
        )),
        fence: Some(script!("counted/shares.lua", "owned.lua", "counted/writer.lua", "fence.lua")),
        check: PublishingScript::new(script!(
            "counted/shares.lua",
            "tell.lua",
            "counted/settle.lua",
            "place.lua",
            "counted/check.lua",
            "check_each.lua"
        )),
        acquire_all: None,
        announcements: None,
        runs: None,
        change: Some(PublishingScript::new(script!(
            "counted/shares.lua",
            "owned.lua",
            "tell.lua",
            "counted/settle.lua",
            "counted/change.lua"
        ))),
        take: None,
        second_key: None,
        queues: true,
        owner_name: |owner, client, name| name.write_all(&client.owner_name(owner)),
        channel_prefix: "lock_wake:",
        fixed_message: None,
    }
}

static READ_WRITE: Dialect = counted(Layout::ReadWrite);
static SEMAPHORE: Dialect = counted(Layout::Semaphore);

/// The same keys and owners as in `Token`, so that the clients of both exclude each other. A lock has a majority
/// of such votes, so no store can give it to the next claim by itself.
static VOTE: Dialect = Dialect {
    layout: Layout::Vote,
    acquire: PublishingScript::new(script!("kind.lua", "vote/acquire.lua")),
    renew: script!("token/held.lua", "extend.lua", "renew.lua"),
    release: PublishingScript::new(script!(
        "vote/free.lua",
        "token/held.lua",
        "token/keep.lua",
        "release.lua",
        "release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "vote/free_all.lua",
        "token/held.lua",
        "token/keep.lua",
        "release.lua",
        "release_all.lua"
    )),
    fence: Some(script!("token/held.lua", "owned.lua", "fence.lua")),
    check: PublishingScript::new(script!("vote/check.lua")),
    acquire_all: None,
    announcements: Some([
        script!("token/held.lua", "owned.lua", "token/announcement.lua", "token/announce.lua"),
        script!("token/announcement.lua", "token/announced.lua"),
    ]),
    runs: None,
    change: None,
    take: TOKEN.take,
    second_key: None,
    queues: false,
    owner_name: TOKEN.owner_name,
    channel_prefix: "lock_wake:",
    fixed_message: None,
};

/// In the order of [`Layout::ALL`].
static ALL: [&Dialect; Layout::ALL.len()] =
    [&TOKEN, &REDISSON, &TIMESTAMP, &READ_WRITE, &SEMAPHORE, &VOTE];

/// Does nothing. Its reply shows that the server runs scripts.
pub(crate) static PROBE: Script = Script::new("return 1", false);

/// A write that has no effect, because its key does not exist. The server rejects it like the writes of
/// locks: if it is a replica, out of memory, or unable to save its data.
pub(crate) static WRITE_PROBE: Script =
    Script::new("return redis.call('zadd', KEYS[1], 'xx', 0, '')", false);

/// Tells who has a lock, in any layout.
pub(crate) static HOLDER: Script = script!("holder.lua");

/// Tells what a key holds that may be a lock. Rarely used, so it is not loaded with the others.
pub(crate) static INSPECT: Script = script!("inspect.lua");

/// Deletes a lock of another library. Rarely used as well.
pub(crate) static DELETE: Script = script!("delete.lua");

/// Loads the texts of all scripts into the server, which may be a node of a cluster.
pub(crate) fn load_all(into_node: bool) -> Pipeline {
    let mut load = Pipeline::new();
    let scripts = ALL.iter().flat_map(|format| format.scripts());
    let to_shard = ALL.iter().filter(|_| into_node);
    let to_shard = to_shard.flat_map(|format| {
        let [acquire, release, release_all, check] = format.publishing();
        let all = [acquire, release, release_all, check].into_iter().chain(&format.change);
        all.map(|script| &script.to_shard)
    });
    for script in scripts.chain(to_shard).chain([&PROBE, &WRITE_PROBE, &HOLDER]) {
        load.cmd("SCRIPT").arg("LOAD").arg(script.text());
    }
    load
}

/// The dialect of a layout.
pub(crate) fn of(layout: Layout) -> &'static Dialect {
    ALL[layout.index()]
}

#[cfg(test)]
mod tests;
