//! A Chromium that is driven by chromedriver.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use axum::http::Method;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use url::{ParseError, Url};

/// How long an expected page may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const MISSING: &str = "The tests of the dashboard need Chromium and chromedriver, which `scripts/browser` installs \
                       (on Debian: apt-get install chromium chromium-driver)";

/// A browser with a profile of its own. Ended when dropped.
pub(crate) struct Browser {
    client: Client,
    driver: Child,
    /// Kept open, because the driver continues to write.
    _output: BufReader<ChildStdout>,
    _profile: TempDir,
}

/// A command that WebDriver does not have, but chromedriver.
#[derive(Debug)]
struct ChromeCommand {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for ChromeCommand {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

fn chromium() -> PathBuf {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    let found = folders.find_map(|folder| {
        names.iter().map(|name| folder.join(name)).find(|program| program.is_file())
    });
    found.expect(MISSING)
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let binary = chromium();
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect(MISSING);
        let mut output = BufReader::new(driver.stdout.take().expect("piped"));
        let port = port(&mut output);
        let profile = tempfile::tempdir().expect("a temporary directory");
        let folder = format!("--user-data-dir={}", profile.path().display());
        let args = [
            &*folder,
            "--headless=new",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            // Chromium refuses to run as root with it, as in containers.
            "--no-sandbox",
        ];
        let options = json!({ "binary": binary, "args": args });
        let capabilities = json!({
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object") };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .unwrap_or_else(|error| panic!("{MISSING}. It does not start: {error}"));
        Self { client, driver, _output: output, _profile: profile }
    }

    async fn chrome(&self, path: &'static str, body: Value) -> Value {
        let command = ChromeCommand { path, body };
        self.client.issue_cmd(command).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// A command of the protocol of the developer tools.
    async fn tools(&self, command: &str, parameters: Value) {
        self.chrome("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await;
    }

    /// Sets the size of the page, and what the user prefers.
    pub(crate) async fn show_as(&self, width: u32, height: u32, scheme: &str, motion: &str) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.tools("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": motion },
        ]);
        self.tools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    pub(crate) async fn open(&self, address: &str) {
        self.client.goto(address).await.expect("a page");
    }

    /// The value of an expression.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let value = self.client.execute(&format!("return {expression};"), Vec::new()).await;
        value.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    pub(crate) async fn text(&self, expression: &str) -> String {
        let value = self.value(expression).await;
        value.as_str().unwrap_or_else(|| panic!("{expression}: {value}")).to_owned()
    }

    pub(crate) async fn run(&self, statement: &str) {
        let run = self.client.execute(statement, Vec::new()).await;
        run.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let begun = Instant::now();
        loop {
            let value = self.value(&format!("Boolean({expression})")).await;
            if value == true {
                return;
            }
            if begun.elapsed() > PATIENCE {
                let page = self.text("document.body.innerText").await;
                panic!(
                    "{expression} is not true in {PATIENCE:?}:\n{page}\n{:?}",
                    self.console().await
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Presses keys where the focus is.
    pub(crate) async fn press(&self, keys: &str) {
        let element = self.client.active_element().await.expect("the page has the focus");
        element.send_keys(keys).await.expect("it takes keys");
    }

    /// The messages on the console since it was last read.
    pub(crate) async fn console(&self) -> Vec<String> {
        let entries = self.chrome("se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().expect("entries").clone();
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

    pub(crate) async fn assert_console_is_empty(&self) {
        let messages = self.console().await;
        assert!(messages.is_empty(), "{messages:#?}");
    }

    /// Saves what the page looks like, for people to look at.
    pub(crate) async fn screenshot(&self, name: &str) {
        let image = self.client.screenshot().await.expect("an image");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(name).with_extension("png"), image).expect("writable");
    }

    /// Ends the browser.
    pub(crate) async fn close(self) {
        self.client.clone().close().await.expect("it ends");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium is in the group of its driver, and would outlive it after a test that has failed.
        let group = format!("-{}", self.driver.id());
        // Both fail if they have already ended.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.driver.wait();
    }
}

/// The port on which the driver says that it listens.
fn port(output: &mut BufReader<ChildStdout>) -> u16 {
    let mut line = String::new();
    while output.read_line(&mut line).expect("readable") > 0 {
        let port = line.trim().strip_prefix("ChromeDriver was started successfully on port ");
        if let Some(port) = port {
            return port.trim_end_matches('.').parse().expect("a port");
        }
        line.clear();
    }
    panic!("chromedriver has not started");
}
