//! The files of the page.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use lock_dashboard::router;
use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;
use tower::ServiceExt;

use crate::site::{Site, request};

const FILES: [(&str, &str); 9] = [
    ("/", "text/html; charset=utf-8"),
    ("/style.css", "text/css; charset=utf-8"),
    ("/script.js", "text/javascript; charset=utf-8"),
    ("/rows.js", "text/javascript; charset=utf-8"),
    ("/tables.js", "text/javascript; charset=utf-8"),
    ("/lines.js", "text/javascript; charset=utf-8"),
    ("/lock.js", "text/javascript; charset=utf-8"),
    ("/text.js", "text/javascript; charset=utf-8"),
    ("/icon.svg", "image/svg+xml"),
];

#[tokio::test]
async fn every_response_forbids_foreign_code_and_frames() {
    let site = Site::of(&LockClient::memory());
    let others = ["/api/state", "/api/locks?search=x", "/api/revoke"];
    for path in FILES.iter().map(|(path, _)| *path).chain(others) {
        let answer = site.get(path, &[]).await;
        let policy = answer.header("content-security-policy");
        let parts: Vec<_> = policy.split("; ").collect();
        assert!(parts.contains(&"default-src 'self'"), "{path}: {policy}");
        assert!(parts.contains(&"frame-ancestors 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin", "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), "", "{path}");
    }
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let site = Site::of(&LockClient::memory());
    for (path, content_type) in FILES {
        let first = site.get(path, &[]).await;
        assert_eq!((first.status.as_u16(), first.header("content-type")), (200, content_type));
        let tag = first.header("etag").to_owned();
        assert!(tag.len() > 10 && tag.starts_with('"'), "{path}: {tag}");
        let tags = format!("\"other\", W/{tag}");
        for known in [&tag, &tags] {
            let again = site.get(path, &[("if-none-match", known)]).await;
            assert_eq!((again.status.as_u16(), &*again.text), (304, ""), "{path}");
            assert_eq!(again.header("etag"), tag);
        }
        let other = site.get(path, &[("if-none-match", "\"other\"")]).await;
        assert_eq!((other.status.as_u16(), other.text), (200, first.text), "{path}");
    }
}

/// The addresses in a page: of its folder, and of its files.
fn addresses(page: &str) -> (Option<&str>, Vec<&str>) {
    let quoted = |after| page.split(after).skip(1).filter_map(|rest: &str| rest.split('"').next());
    let base = quoted("<base href=\"").next();
    let files = quoted("href=\"").chain(quoted("src=\""));
    (base, files.filter(|address| Some(*address) != base).collect())
}

#[tokio::test]
async fn the_page_works_nested_under_a_path() {
    let dashboard = || router(LockAdmin::new(&LockClient::memory()));
    let nested = |path| Router::new().nest(path, dashboard());
    for (service, page, base, folder) in [
        (dashboard(), "/", None, "/"),
        (nested("/locks"), "/locks", Some("./locks/"), "/locks/"),
        (nested("/a/b%20c"), "/a/b%20c", Some("./b%20c/"), "/a/b%20c/"),
        (nested("/x/"), "/x/", None, "/x/"),
        (Router::new().nest("/out", nested("/in")), "/out/in", Some("./in/"), "/out/in/"),
    ] {
        let get = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let response = service.clone().oneshot(request).await.expect("infallible");
            let status = response.status();
            let body = to_bytes(response.into_body(), 1024 * 1024).await.expect("a body");
            (status, String::from_utf8(body.to_vec()).expect("a text"))
        };
        let (status, text) = get(page).await;
        assert_eq!(status, 200, "{page}");
        let (found, files) = addresses(&text);
        assert_eq!(found, base, "{page}");
        assert!(files.len() >= 3, "{files:?}");
        for file in files.into_iter().chain(["api/locks?search=x"]) {
            assert!(!file.starts_with(['/', '#']) && !file.contains("//"), "{file}");
            assert_eq!(get(&format!("{folder}{file}")).await.0, 200, "{folder}{file}");
        }
    }
}

#[tokio::test]
async fn a_path_cannot_put_markup_into_the_page() {
    let dashboard = router(LockAdmin::new(&LockClient::memory()));
    let service = Router::new().nest("/{tenant}", dashboard);
    for path in ["/\"onerror=alert(1)", "/a'b", "/%22%3E%3Cscript%3E", "/&quot;"] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = service.clone().oneshot(request).await.expect("infallible");
        let body = to_bytes(response.into_body(), 1024 * 1024).await.expect("a body");
        let text = String::from_utf8(body.to_vec()).expect("a text");
        assert!(!text.contains("alert(1)") && !text.contains("a'b"), "{path}");
        assert!(!text.contains("<script>") && !text.contains("&quot;"), "{path}");
    }
}

#[tokio::test]
async fn other_paths_and_methods_do_not_exist() {
    let site = Site::of(&LockClient::memory());
    for path in ["/index.html", "/api", "/api/other", "/../x", "/style.css/"] {
        assert_eq!(site.get(path, &[]).await.status, 404, "{path}");
    }
    for (method, path) in [("POST", "/"), ("DELETE", "/api/state"), ("GET", "/api/revoke")] {
        assert_eq!(site.send(request(method, path, &[], "")).await.status, 405, "{method} {path}");
    }
}

/// The readme is compiled as a part of the package.
#[test]
fn the_documentation_has_the_code_of_the_readme() {
    let code = |page: &str| {
        let code = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
        code.expect("code").to_owned()
    };
    let readme = include_str!("../../README.md");
    assert_eq!(code(include_str!("../../../docs/dashboard.md")), code(readme));
}
