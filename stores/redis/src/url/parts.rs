//! The parts that all URLs have: the credentials, the database and the options.

use std::borrow::Cow;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use super::scheme::Scheme;
use crate::transport::endpoint::Access;
use crate::transport::login::Login;
use lock_core::client_name::connection_name;
use lock_core::error::LockError;
use lock_core::store::settings::Settings;
use lock_core::store::url_options::{TLS_OPTIONS, UrlOptions};

/// Returns an error if there is an `@` after the address. A `/`, `?` or `#` in a password ends the
/// address too early. A part of the password would then be shown as the address.
pub(super) fn check_address_end(after_address: &str) -> Result<(), LockError> {
    if after_address.contains('@') {
        return Err(error(
            "the URL contains an `@` after the address; special characters in the user name and the \
             password must be percent-encoded, such as `%23` for `#`, and so must an `@` in an \
             option, as `%40`",
        ));
    }
    Ok(())
}

/// Parses `plain`, which redis-rs understands: the address, the credentials and the database, and
/// the options of `scheme`.
pub(super) fn read(scheme: Scheme, plain: &str) -> Result<(ConnectionInfo, UrlOptions), LockError> {
    let url = redis::parse_redis_url(plain);
    let mut url = url.ok_or_else(|| unusable("it is not a URL", scheme))?;
    if url.fragment().is_some() {
        return Err(error(
            "the URL contains a `#`; special characters in the password must be percent-encoded, \
             such as `%23` for `#`, and TLS certificates are always verified",
        ));
    }
    let options = options(url.query_pairs(), scheme)?;
    if scheme != Scheme::Unix {
        url.set_query(None);
    }
    let info = url.into_connection_info().and_then(|info| {
        // Redis-rs checks more of the URL when it opens a client.
        Ok(Client::open(info)?.get_connection_info().clone())
    });
    // Only fixed texts of redis-rs are shown.
    let info = info.map_err(|error| match error.detail() {
        None => unusable(&error.to_string(), scheme),
        Some(_) => unusable(error.category(), scheme),
    })?;
    Ok((info, options))
}

/// The options after the `?`, without those that redis-rs reads.
fn options<'a>(
    pairs: impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
    scheme: Scheme,
) -> Result<UrlOptions, LockError> {
    let mut options = UrlOptions::new();
    for (name, value) in pairs {
        // Redis-rs users give it. Push messages, which announce releases, need version 3.
        if name == "protocol" && matches!(&*value, "3" | "resp3") {
            continue;
        }
        let Some(known) = scheme.options().iter().find(|known| **known == name) else {
            return Err(match TLS_OPTIONS.iter().find(|known| **known == name) {
                Some(known) => error(&format!("`{known}` needs `{}`", scheme.secure())),
                None => {
                    let problem = match scheme.options() {
                        [] => "the option after the `?` is unknown".to_owned(),
                        known => format!(
                            "an option after the `?` is unknown; the options are `{}`",
                            known.join("`, `")
                        ),
                    };
                    unusable(&problem, scheme)
                }
            });
        };
        if value.is_empty() {
            return Err(error(&format!("the option `{known}` of the URL is empty")));
        }
        if options.iter().any(|(earlier, _)| earlier == known) {
            return Err(error(&format!("the URL contains `{known}` twice")));
        }
        options.push((known, value.into_owned()));
    }
    Ok(options)
}

/// Removes an option, and returns its value.
pub(super) fn take(options: &mut UrlOptions, name: &str) -> Option<String> {
    let at = options.iter().position(|(known, _)| *known == name)?;
    Some(options.remove(at).1)
}

/// How to connect to the servers that have the keys. The remaining options are those of TLS.
pub(super) fn access(
    scheme: Scheme,
    info: &ConnectionInfo,
    options: UrlOptions,
    settings: &Settings,
) -> Result<Access, LockError> {
    let login = info.redis_settings();
    if settings.credentials.is_some() && (login.password().is_some() || login.username().is_some())
    {
        let problem = "the URL contains credentials as well; choose one";
        return Err(LockError::config("credentials", problem));
    }
    let login = Login::new(for_locks(login.clone()), settings.credentials.clone());
    let access = Access::new(login, &connection_name(settings.told.as_ref()));
    if scheme.has_tls() {
        with_tls(access, settings, options)
    } else {
        without_tls(access, scheme, settings)
    }
}

/// The settings that every connection needs.
pub(super) fn for_locks(login: RedisConnectionInfo) -> RedisConnectionInfo {
    // A user with the documented permissions may not run `CLIENT SETINFO`.
    login.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name()
}

#[cfg(feature = "tls")]
fn with_tls(access: Access, settings: &Settings, options: UrlOptions) -> Result<Access, LockError> {
    use lock_core::store::tls::Tls;
    use lock_core::store::url_options::tls_options;

    Ok(access.with_tls(Tls::new(tls_options(settings.tls.as_ref(), options)?)?.into()))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: Access, _: &Settings, _: UrlOptions) -> Result<Access, LockError> {
    Err(error("this build has no TLS; enable the feature `tls` of `lock-runtime`"))
}

#[cfg(feature = "tls")]
fn without_tls(access: Access, scheme: Scheme, settings: &Settings) -> Result<Access, LockError> {
    if settings.tls.is_some() {
        let problem = format!("the URL is without TLS; use `{}`", scheme.secure());
        return Err(LockError::config("tls", problem));
    }
    Ok(access)
}

#[cfg(not(feature = "tls"))]
#[allow(clippy::unnecessary_wraps)]
fn without_tls(access: Access, _: Scheme, _: &Settings) -> Result<Access, LockError> {
    Ok(access)
}

pub(super) fn error(problem: &str) -> LockError {
    LockError::config("url", problem)
}

pub(super) fn unusable(problem: &str, scheme: Scheme) -> LockError {
    error(&format!(
        "the URL cannot be used ({problem}); expected {}, with special characters in the password \
         percent-encoded",
        scheme.form()
    ))
}
