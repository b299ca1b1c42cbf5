//! A running order service, driven over HTTP.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};
use ureq::Agent;

/// A running service, killed on drop.
pub(crate) struct Service {
    child: Child,
    /// Kept open, because the service continues to write to its standard output.
    _output: BufReader<ChildStdout>,
    address: String,
    agent: Agent,
}

impl Service {
    pub(crate) fn start(url: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_orders"))
            .env("LOCK_URL", url)
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("built with the tests");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("the service prints its address");
        let address = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        let config = Agent::config_builder().http_status_as_error(false).build();
        Self { child, _output: output, address, agent: config.into() }
    }

    /// Sends a request and returns its status.
    pub(crate) fn post(&self, path: &str, body: &Value) -> u16 {
        self.post_for_retry(path, body).0
    }

    /// Sends a request, and returns its status and after how many seconds it may be repeated.
    pub(crate) fn post_for_retry(&self, path: &str, body: &Value) -> (u16, Option<String>) {
        let url = format!("{}{path}", self.address);
        let answer = self.agent.post(url).send_json(body).expect("a response");
        let retry_after = answer.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().expect("text").to_owned());
        (answer.status().as_u16(), retry_after)
    }

    pub(crate) fn set_stock(&self, item: &str, units: u32) {
        let url = format!("{}/stock/{item}", self.address);
        let answer = self.agent.put(url).send_json(json!({ "units": units })).expect("a response");
        assert_eq!(answer.status(), 200);
    }

    /// The status and the text of a page.
    pub(crate) fn page(&self, path: &str) -> (u16, String) {
        let mut answer =
            self.agent.get(format!("{}{path}", self.address)).call().expect("a response");
        (answer.status().as_u16(), answer.body_mut().read_to_string().expect("a text"))
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child of the test")
    }

    pub(crate) fn stock(&self, item: &str) -> u64 {
        let url = format!("{}/stock/{item}", self.address);
        let mut answer = self.agent.get(url).call().expect("a response");
        let body: Value = answer.body_mut().read_json().expect("a JSON body");
        body["units"].as_u64().expect("a number")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Fails if the service has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
