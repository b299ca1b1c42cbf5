//! Tests of the dialects.

use std::io::Cursor;
use std::time::Duration;

use redis::cmd;

use super::*;
use crate::client_id::ClientId;
use crate::hash_slot;
use crate::scripts::dialect::LONGEST_NAME;
use crate::scripts::script::Publish;
#[cfg(lock_controls)]
use crate::scripts::script::SWITCHES;
use lock_core::store::owner::OwnerId;

#[test]
fn each_layout_has_its_dialect() {
    for layout in Layout::ALL {
        assert_eq!(of(layout).layout, layout);
    }
}

/// A control has no effect if the scripts no longer contain the piece that it replaces.
#[cfg(lock_controls)]
#[test]
fn the_pieces_that_controls_replace_exist() {
    for (_, with, _) in SWITCHES {
        let mut texts = ALL.iter().flat_map(|format| format.scripts()).map(Script::text);
        assert!(texts.any(|text| text.contains(with)), "{with}");
    }
}

const CLIENT: &str = "b983c153-7421-469a-addb-44fb92259a1b";

fn client() -> ClientId {
    ClientId::parse(CLIENT)
}

fn owner(dialect: &Dialect, owner: OwnerId) -> String {
    String::from_utf8(dialect.owner(owner, &client()).as_bytes().to_vec()).expect("text")
}

#[test]
fn an_owner_is_named_by_its_token_or_like_a_thread() {
    let id = OwnerId::new().expect("randomness");
    for format in [&TOKEN, &TIMESTAMP] {
        assert_eq!(owner(format, id).as_bytes(), client().owner_name(id));
    }
    let name = owner(&REDISSON, id);
    let (client, number) = name.rsplit_once(':').expect("a colon");
    assert_eq!(client, CLIENT);
    assert_eq!(number.parse(), Ok(id.number()));
}

fn arguments(command: &Cmd) -> Vec<String> {
    let text = |argument| match argument {
        redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    };
    command.args_iter().map(text).collect()
}

#[test]
fn a_lock_has_one_key_or_two_in_one_hash_slot() {
    for (dialect, keys) in [(&TOKEN, 1), (&REDISSON, 1), (&TIMESTAMP, 2)] {
        let mut command = cmd("X");
        dialect.add_keys(&mut command, "order:42");
        let added = &arguments(&command)[1..];
        assert_eq!((dialect.keys(), added.len()), (keys, keys));
        assert_eq!(added[0], "order:42");
        let slots: Vec<_> = added.iter().map(|key| hash_slot::tag(key)).collect();
        assert!(slots.iter().all(|slot| *slot == slots[0]), "{added:?}");
    }
}

#[test]
fn an_owner_is_written_as_its_name() {
    let (id, mut command) = (OwnerId::new().expect("randomness"), cmd("X"));
    command.arg(TOKEN.owner(id, &client()));
    assert_eq!(arguments(&command)[1].as_bytes(), client().owner_name(id));
}

#[test]
fn only_redisson_does_not_name_the_sender_of_a_message() {
    for dialect in ALL {
        let is_anonymous = dialect.layout == Layout::Wire(WireFormat::Redisson);
        assert_eq!(dialect.is_anonymous(), is_anonymous);
        assert_eq!(dialect.message(CLIENT), if is_anonymous { "0" } else { CLIENT });
    }
}

#[test]
fn all_scripts_are_loaded() {
    // Two probes, and the question who has a lock.
    let others = 3;
    let scripts = ALL.iter().flat_map(|format| format.scripts()).count() + others;
    assert_eq!(load_all(false).cmd_iter().count(), scripts);
    assert_eq!(load_all(true).cmd_iter().count(), scripts + 4 * ALL.len() + 2);
}

#[test]
fn releases_publish_in_both_ways() {
    for dialect in ALL {
        for release in [Dialect::release, Dialect::release_all] {
            let everywhere = release(dialect, Publish::Everywhere).text();
            let to_shard = release(dialect, Publish::ToShard).text();
            assert!(everywhere.contains("'publish'") && !everywhere.contains("'spublish'"));
            assert!(to_shard.contains("'spublish'") && !to_shard.contains("'publish'"));
        }
    }
}

#[test]
fn durations_are_written_in_milliseconds() {
    assert_eq!(milliseconds(Duration::from_secs(2)), 2000);
    assert_eq!(milliseconds(Duration::MAX), u64::MAX);
}

#[test]
fn the_longest_name_fits() {
    let mut name = Cursor::new([0; LONGEST_NAME]);
    write!(name, "{CLIENT}:{}", i64::MAX).expect("it fits");
    assert_eq!(usize::try_from(name.position()), Ok(LONGEST_NAME));
}

#[test]
fn channels_are_named_by_the_rule_of_redisson() {
    assert_eq!(TOKEN.channel("order:42"), "lock_wake:{order:42}");
    assert_eq!(REDISSON.channel("order:42"), "redisson_lock__channel:{order:42}");
    assert_eq!(REDISSON.channel("{user:7}:cart"), "redisson_lock__channel:{user:7}:cart");
    // Redisson only searches for an opening brace.
    assert_eq!(REDISSON.channel("a{"), "redisson_lock__channel:a{");
}

#[test]
fn a_channel_of_this_library_has_the_slot_of_its_key() {
    for key in ["order:42", "{user:7}:cart", "a{", "a{}b", "a}b", "}", "}{", "{}", "a{b}c{d}"] {
        for dialect in [&TOKEN, &TIMESTAMP] {
            let channel = dialect.channel(key);
            assert_eq!(hash_slot::slot(&channel), hash_slot::slot(key), "{key}: {channel}");
            assert!(channel.starts_with("lock_wake:") && channel.contains(key));
        }
    }
}
