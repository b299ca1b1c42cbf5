//! How this process calls itself.

use crate::client_info::ClientInfo;

/// The longest name of a host that is used.
const LONGEST_HOST: usize = 200;

/// The name of connections, which `CLIENT LIST` shows: `lock-runtime:<host>:<process id>`, or `lock-runtime` for a client that
/// tells nothing about itself. It consists of printable ASCII characters without spaces.
pub fn connection_name(told: Option<&ClientInfo>) -> String {
    let Some(told) = told else { return "lock-runtime".to_owned() };
    let is_allowed = |c: char| c.is_ascii_graphic() && c != ':';
    let host = told.name.as_deref().unwrap_or_default().replace(|c| !is_allowed(c), "-");
    format!("lock-runtime:{host}:{}", std::process::id())
}

pub fn host() -> Option<String> {
    #[cfg(unix)]
    {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        if !host.is_empty() && host.len() <= LONGEST_HOST {
            return Some(host.into_owned());
        }
    }
    None
}
