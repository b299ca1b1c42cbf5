//! How this process calls itself.

/// The longest name of a host that is used.
const LONGEST_HOST: usize = 200;

/// The name of the host, and the process id.
pub(crate) fn client_name() -> String {
    let process = std::process::id();
    match host() {
        Some(host) => format!("{host} (pid {process})"),
        None => format!("pid {process}"),
    }
}

/// The name of connections, which `CLIENT LIST` shows: `lock-runtime:<host>:<process id>`. It consists of
/// printable ASCII characters without spaces.
#[cfg(feature = "redis")]
pub(crate) fn connection_name() -> String {
    let host: String = host().unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_graphic() && c != ':';
    let host = host.replace(|c| !is_allowed(c), "-");
    format!("lock-runtime:{host}:{}", std::process::id())
}

pub(crate) fn host() -> Option<String> {
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
