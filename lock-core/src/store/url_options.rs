//! The options after the `?` of a URL that are about TLS.

#[cfg(feature = "tls")]
use crate::error::LockError;
#[cfg(feature = "tls")]
use crate::tls::TlsOptions;

/// Options, by name.
pub type UrlOptions = Vec<(&'static str, String)>;

/// The options of a URL with TLS.
pub const TLS_OPTIONS: [&str; 4] = ["tls_ca", "tls_cert", "tls_key", "tls_server_name"];

/// The settings of a client, or those of its URL.
#[cfg(feature = "tls")]
pub fn tls_options(
    of_client: Option<&TlsOptions>,
    of_url: UrlOptions,
) -> Result<TlsOptions, LockError> {
    let mut tls = of_client.cloned().unwrap_or_default();
    if !of_url.is_empty() && !tls.is_default() {
        return Err(LockError::config(
            "url",
            "TLS options are given both in the URL and with `tls`; choose one",
        ));
    }
    for (name, value) in of_url {
        match name {
            "tls_ca" => tls.ca = Some(value.into()),
            "tls_cert" => tls.certificate = Some(value.into()),
            "tls_key" => tls.key = Some(value.into()),
            _ => tls.server_name = Some(value),
        }
    }
    Ok(tls)
}
