//! The files of the page, which are a part of the program.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

/// Where the page has the address of its folder.
const HEAD_PLACE: &str = "<!-- head -->";

const PAGE: &str = include_str!("assets/page.html");
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The name, the type and the text of each file.
const FILES: [(&str, &str, &str); 8] = [
    ("style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("script.js", SCRIPT, include_str!("assets/script.js")),
    ("rows.js", SCRIPT, include_str!("assets/rows.js")),
    ("tables.js", SCRIPT, include_str!("assets/tables.js")),
    ("lines.js", SCRIPT, include_str!("assets/lines.js")),
    ("lock.js", SCRIPT, include_str!("assets/lock.js")),
    ("text.js", SCRIPT, include_str!("assets/text.js")),
];

/// A file, and the tag of its text.
#[derive(Debug, Clone)]
pub(crate) struct Asset {
    content_type: &'static str,
    text: Bytes,
    tag: String,
}

impl Asset {
    fn new(content_type: &'static str, text: Bytes) -> Self {
        let tag = format!("\"{:016x}\"", hash(&text));
        Self { content_type, text, tag }
    }

    /// The page, for a request of this path.
    ///
    /// The addresses in the page are relative to the folder of its files. A page that is nested under `/locks` has no
    /// slash at its end, so it has to name the folder.
    pub(crate) fn page(path: &str) -> Self {
        let folder = path.rsplit('/').next().unwrap_or_default();
        // Such as percent signs and all that has no meaning in HTML.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~%".contains(c);
        let base = match folder {
            "" => String::new(),
            _ if folder.chars().all(is_plain) => format!("<base href=\"./{folder}/\">"),
            _ => String::new(),
        };
        Self::new("text/html; charset=utf-8", PAGE.replace(HEAD_PLACE, &base).into())
    }

    /// The other files, with their names.
    pub(crate) fn files() -> impl Iterator<Item = (&'static str, Self)> {
        let file = |(name, content_type, text): (_, _, &'static str)| {
            (name, Self::new(content_type, Bytes::from_static(text.as_bytes())))
        };
        FILES.into_iter().map(file)
    }

    /// The file, or that it has not changed since the browser has read it.
    pub(crate) fn response(&self, request: &HeaderMap) -> Response {
        let known = request.get_all(header::IF_NONE_MATCH).iter();
        let mut known =
            known.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(','));
        let is_known = known.any(|tag| tag.trim().trim_start_matches("W/") == self.tag);
        let body = if is_known { Body::empty() } else { Body::from(self.text.clone()) };
        let mut response = Response::new(body);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Ok(tag) = HeaderValue::from_str(&self.tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
