//! How this process calls itself.

/// The longest name of a host that is used.
const LONGEST_HOST: usize = 200;

/// The name of the host, and the process id.
pub(crate) fn client_name() -> String {
    let process = std::process::id();
    #[cfg(unix)]
    {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        if !host.is_empty() && host.len() <= LONGEST_HOST {
            return format!("{host} (pid {process})");
        }
    }
    format!("pid {process}")
}
