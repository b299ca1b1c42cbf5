//! The names of the connections of a client in `pg_stat_activity`: `lock-runtime`, the id of the client, its process and host,
//! and its service, such as `lock-runtime kX3_8fRtq 4711@web-3 shop/1.4.2`. The id is the beginning of the tokens of its owners.
//! So operators see who holds a lock, and nothing is written for that.

use lock_core::client_info::{ClientInfo, harmless};

/// The name of a connection of a client that tells nothing about itself.
pub(super) const ANONYMOUS: &str = "lock-runtime";

/// The longest name, in bytes. The server would cut it off.
const LONGEST: usize = 63;

/// What stands for a part of a text that is too long.
const CUT: char = '~';

/// What stands for a text that is not known.
const UNKNOWN: &str = "-";

/// The name of the connections of a client.
pub(super) fn of_client(client: &ClientInfo) -> String {
    let ClientInfo { id, name, process, service, version, .. } = client;
    let text = |text: &Option<String>| text.as_deref().map_or(UNKNOWN.to_owned(), one_word);
    let process = process.map_or(UNKNOWN.to_owned(), |process| process.to_string());
    let start = format!("{ANONYMOUS} {} {process}@", text(id));
    // The version is left out first, and then the service. The last part of a host's name distinguishes the instances.
    let service = service.as_ref().map(|name| one_word(name).replace('/', "_"));
    let with_version = service.as_ref().map(|service| format!(" {service}/{}", text(version)));
    let with_service = service.map(|service| format!(" {service}/{UNKNOWN}"));
    let name = text(name);
    let fits = |end: &String| start.len() + name.len() + end.len() <= LONGEST;
    let end = [with_version, with_service].into_iter().flatten().find(fits).unwrap_or_default();
    let room = LONGEST.saturating_sub(start.len() + end.len());
    let mut shown = format!("{start}{}{end}", shortened(&name, room));
    shown.truncate(LONGEST);
    shown
}

/// The beginning and the end of a text of ASCII characters that is longer than this.
fn shortened(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    let kept = length.saturating_sub(1);
    let end = text.len() - kept.div_ceil(2);
    format!("{}{CUT}{}", &text[..kept / 2], &text[end..])
}

/// The client whose connections have this name.
pub(super) fn client_of(shown: &str) -> Option<ClientInfo> {
    let mut words = shown.strip_prefix(ANONYMOUS)?.strip_prefix(' ')?.split(' ');
    let known = |text: &str| harmless(text).filter(|text| text != UNKNOWN);
    let (id, place) = (words.next().and_then(known)?, words.next()?);
    let (process, name) = place.split_once('@')?;
    let service = words.next().unwrap_or_default();
    let (service, version) = service.split_once('/').unwrap_or((service, ""));
    let mut client = ClientInfo::default().with_id(id);
    client.name = known(&name.replace(CUT, "…"));
    client.process = process.parse().ok();
    (client.service, client.version) = (known(service), known(version));
    Some(client)
}

/// The text without characters that the server or a statement would take for something else.
fn one_word(text: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || "-_.+@:/".contains(c);
    text.chars().map(|c| if is_kept(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> ClientInfo {
        let text = |text: &str| Some(text.to_owned());
        let mut client = ClientInfo::default().with_id("kX3_8fRtq");
        client.name = text("web-3");
        client.process = Some(4711);
        (client.service, client.version) = (text("shop"), text("1.4.2"));
        client
    }

    /// The same with a change.
    fn with(change: impl FnOnce(&mut ClientInfo)) -> ClientInfo {
        let mut client = client();
        change(&mut client);
        client
    }

    #[test]
    fn a_name_tells_who_the_client_is() {
        let name = of_client(&client());
        assert_eq!(name, "lock-runtime kX3_8fRtq 4711@web-3 shop/1.4.2");
        assert_eq!(client_of(&name), Some(client()));
        let few = with(|client| {
            client.name = None;
            client.service = None;
            client.version = None;
        });
        assert_eq!(of_client(&few), "lock-runtime kX3_8fRtq 4711@-");
        assert_eq!(client_of(&of_client(&few)), Some(few));
    }

    #[test]
    fn a_name_has_only_characters_that_mean_nothing_else() {
        let hostile = with(|client| {
            client.name = Some("é'; \\\n~x".to_owned());
        });
        assert_eq!(of_client(&hostile), "lock-runtime kX3_8fRtq 4711@_______x shop/1.4.2");
        let team = with(|client| {
            client.service = Some("team/shop".to_owned());
        });
        let known = client_of(&of_client(&team)).expect("a client");
        assert_eq!(known.service.as_deref(), Some("team_shop"));
    }

    #[test]
    fn a_long_name_keeps_what_distinguishes_instances() {
        let pod = "billing-worker-deployment-7d9f8b6c5d-x2x4z";
        let of_pod = with(|client| {
            client.name = Some(pod.to_owned());
        });
        let name = of_client(&of_pod);
        assert_eq!(name, "lock-runtime kX3_8fRtq 4711@billing-worker-de~-7d9f8b6c5d-x2x4z");
        let known = client_of(&name).expect("a client");
        assert_eq!(known.name.as_deref(), Some("billing-worker-de…-7d9f8b6c5d-x2x4z"));
        assert_eq!((known.process, known.service), (Some(4711), None));
        // Without the version, the service has room.
        let long = with(|client| {
            client.version = Some("1".repeat(40));
        });
        let known = client_of(&of_client(&long)).expect("a client");
        assert_eq!((known.service.as_deref(), known.version), (Some("shop"), None));
        for length in 0..100 {
            let name = with(|client| {
                client.name = Some("x".repeat(length));
            });
            assert!(of_client(&name).len() <= LONGEST);
        }
    }

    #[test]
    fn other_names_tell_nothing() {
        for other in [
            "",
            "psql",
            ANONYMOUS,
            "lock-runtime a",
            "lock-runtime a b",
            "lock-runtime - 1@b",
            "lock-runtimes a 1@b",
        ] {
            assert_eq!(client_of(other), None, "{other}");
        }
    }
}
