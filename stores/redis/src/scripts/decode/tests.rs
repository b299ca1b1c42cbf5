use super::*;

fn string(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn with(status: &str, field: Value) -> Value {
    Value::Array(vec![string(status), field])
}

fn number(status: &str, field: i64) -> Value {
    with(status, Value::Int(field))
}

fn time(left: u64) -> Left {
    Left::Time(Duration::from_millis(left))
}

/// Replies that no script gives, and replies to other commands.
fn unrelated() -> Vec<Value> {
    let (queued, empty) = (Value::SimpleString("QUEUED".into()), Value::Array(Vec::new()));
    let unknown = [string("STRANGE"), with("STRANGE", string("text")), number("STRANGE", 1)];
    // Statuses of scripts with a field of the wrong type, and without the field.
    let wrong = ["GRANTED", "EXTENDED", "GONE", "TAKEN", "FREE"].map(|status| number(status, 1));
    let typed = ["BUSY", "KEPT"].map(|status| with(status, string("1")));
    let texts = ["ISSUED", "UNPUBLISHED", "FAILED"].map(|status| number(status, 1));
    let bare = ["BUSY", "KEPT", "ISSUED", "UNPUBLISHED", "FAILED"].map(string);
    let negative = [number("BUSY", -2), number("KEPT", -1)];
    let map = Value::Map(vec![(string("a"), Value::Int(1))]);
    let plain = [queued, empty, map, Value::Boolean(true), Value::Double(1.0), Value::Nil];
    let numbers = [Value::Okay, Value::Int(0), Value::Int(1), Value::Int(-1), Value::Int(-2)];
    let three = Value::Array(vec![string("KEPT"), Value::Int(1), Value::Int(1)]);
    let mut all = vec![string("5f"), with("ISSUED", string("5f")), three];
    for some in [&unknown[..], &wrong, &typed, &texts, &bare, &negative, &plain, &numbers] {
        all.extend_from_slice(some);
    }
    all
}

#[test]
fn only_the_expected_replies_grant_a_lock() {
    assert_eq!(taken(&Value::Okay), Ok(AcquireReply::Granted));
    assert_eq!(taken(&Value::Nil), Ok(AcquireReply::Busy(Left::Unknown)));
    assert_eq!(acquired(&string("GRANTED")), Ok(AcquireReply::Granted));
    assert_eq!(acquired(&number("BUSY", -1)), Ok(AcquireReply::Busy(Left::Forever)));
    assert_eq!(acquired(&number("BUSY", 0)), Ok(AcquireReply::Busy(time(0))));
    assert_eq!(acquired(&number("BUSY", 7)), Ok(AcquireReply::Busy(time(7))));
    let other = with("WRONGFORMAT", string("hash"));
    assert_eq!(acquired(&other), Ok(AcquireReply::WrongFormat("hash".into())));
    for reply in unrelated() {
        assert!(acquired(&reply).is_err(), "{reply:?}");
        if !matches!(reply, Value::Okay | Value::Nil) {
            assert!(taken(&reply).is_err(), "{reply:?}");
        }
    }
}

#[test]
fn every_status_has_its_meaning() {
    assert_eq!(probed(&Value::Int(1)), Ok(()));
    assert_eq!(probed(&Value::Int(0)), Err(Unexpected("an integer")));
    let all = |replies: &[Value]| Value::Array(replies.to_vec());
    let renewals = all(&["EXTENDED", "GONE", "TAKEN"].map(string));
    let meanings = [Renewed::Extended, Renewed::Gone, Renewed::Taken].map(Ok).to_vec();
    assert_eq!(renewed(&renewals, 3), Ok(meanings));
    assert_eq!(renewed(&renewals, 2), Err(Unexpected("an array")));
    let checks = all(&[string("FREE"), number("BUSY", 1), number("BUSY", -1)]);
    let meanings =
        [CheckResult::Free, CheckResult::Busy(time(1)), CheckResult::Busy(Left::Forever)];
    assert_eq!(checked(&checks, 3), Ok(meanings.to_vec()));
    assert_eq!(checked(&checks, 2), Err(Unexpected("an array")));
    let freed = ReleaseReply::Freed { subscribers: 2 };
    assert_eq!(released(&Value::Int(2)), Ok(freed));
    assert_eq!(released(&number("KEPT", 0)), Ok(ReleaseReply::Kept { subscribers: 0 }));
    assert_eq!(released(&string("GONE")), Ok(ReleaseReply::Gone));
    assert_eq!(released(&string("TAKEN")), Ok(ReleaseReply::Taken));
    let unpublished = ReleaseReply::Unpublished("NOPERM no permissions".into());
    assert_eq!(released(&with("UNPUBLISHED", string("NOPERM no permissions"))), Ok(unpublished));
    assert_eq!(fenced(&with("ISSUED", string("12"))), Ok(FenceReply::With(12)));
    assert_eq!(fenced(&string("GONE")), Ok(FenceReply::Gone));
    assert_eq!(fenced(&string("TAKEN")), Ok(FenceReply::Taken));
    let wrong = with("WRONGFORMAT", string("list"));
    assert_eq!(fenced(&wrong), Ok(FenceReply::WrongFormat("list".into())));
}

#[test]
fn the_replies_about_a_quarantine() {
    let time = Value::Array(vec![string("12"), string("345678")]);
    assert_eq!(marker(&time), Ok(MarkerReply::Time(12_345)));
    assert_eq!(marker(&string("a b")), Ok(MarkerReply::Text("a b".into())));
    for none in [Value::Okay, Value::Nil] {
        assert_eq!(marker(&none), Ok(MarkerReply::None));
    }
    let three = Value::Array(vec![string("1"), string("2"), string("3")]);
    let words = Value::Array(vec![string("a"), string("b")]);
    for reply in [three, words, Value::Array(Vec::new()), Value::Map(Vec::new())] {
        assert!(marker(&reply).is_err(), "{reply:?}");
    }
}

#[test]
fn unrelated_replies_are_unexpected() {
    for reply in unrelated() {
        let one = || Value::Array(vec![reply.clone()]);
        assert!(renewed(&reply, 2).is_err(), "{reply:?}");
        assert!(renewed(&one(), 1).is_err(), "{reply:?}");
        assert!(fenced(&reply).is_err(), "{reply:?}");
        assert!(checked(&reply, 2).is_err(), "{reply:?}");
        assert!(checked(&one(), 1).is_err(), "{reply:?}");
        // The number of subscribers that a release has reached.
        if !matches!(reply, Value::Int(0..)) {
            assert!(released(&reply).is_err(), "{reply:?}");
            assert!(released_all(&one(), 1).is_err(), "{reply:?}");
        }
    }
}

#[test]
fn one_release_of_several_may_fail() {
    let failed = Value::Array(vec![string("FAILED"), string("NOPERM no permissions")]);
    let reply = Value::Array(vec![Value::Int(0), failed]);
    let denied = StoreError::Denied("NOPERM no permissions".into());
    let freed = ReleaseReply::Freed { subscribers: 0 };
    assert_eq!(released_all(&reply, 2), Ok(vec![Ok(freed), Err(denied)]));
}

#[test]
fn subscribers_are_counted_in_both_protocol_versions() {
    let (channel, count) = (|| string("channel"), || Value::Int(3));
    assert_eq!(subscribers(&Value::Array(vec![channel(), count()])), Ok(3));
    assert_eq!(subscribers(&Value::Map(vec![(channel(), count())])), Ok(3));
    for other in [
        Value::Array(vec![channel(), count(), channel(), count()]),
        Value::Map(vec![(channel(), count()), (channel(), count())]),
        Value::Array(vec![channel(), Value::Int(-1)]),
        count(),
    ] {
        assert!(subscribers(&other).is_err(), "{other:?}");
    }
}

#[test]
fn the_description_of_a_server_is_a_text() {
    assert_eq!(info(&string("redis_version:7")), Ok("redis_version:7".into()));
    assert_eq!(info(&Value::Array(Vec::new())), Err(Unexpected("an array")));
}

#[test]
fn an_unexpected_value_is_not_shown() {
    let shown = format!("{:?}", released(&string("5f0c")));
    assert!(!shown.contains("5f0c"), "{shown}");
}
