//! The members of an etcd cluster.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// How long the members may take to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Running members, which are killed when this is dropped.
pub(super) struct EtcdMembers(Vec<EtcdMember>);

struct EtcdMember {
    child: Child,
    port: u16,
    arguments: Vec<String>,
    _data: TempDir,
}

impl EtcdMembers {
    /// Starts members that form a cluster, with the default settings.
    pub(super) fn start(count: usize) -> Result<Self> {
        let ports = free_ports(count * 2)?;
        let (clients, peers) = ports.split_at(count);
        let all = peers.iter().enumerate();
        let all: Vec<_> = all.map(|(at, port)| format!("m{at}=http://127.0.0.1:{port}")).collect();
        let mut members = Self(Vec::new());
        for (at, (port, peer)) in clients.iter().zip(peers).enumerate() {
            let data = tempfile::tempdir()?;
            let (client, peer) =
                (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
            let arguments = [
                format!("--name=m{at}"),
                format!("--data-dir={}", data.path().display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={}", all.join(",")),
            ];
            let arguments = arguments.to_vec();
            let child = spawn(&arguments)?;
            members.0.push(EtcdMember { child, port: *port, arguments, _data: data });
        }
        members.wait_until_healthy()?;
        Ok(members)
    }

    pub(super) fn size(&self) -> usize {
        self.0.len()
    }

    pub(super) fn url(&self) -> String {
        let members: Vec<_> =
            self.0.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("etcd://{}", members.join(","))
    }

    pub(super) fn version(&self) -> Result<String> {
        let status = self.0[0].status()?;
        Ok(field(&status, "version").context("no version")?.to_owned())
    }

    /// The member that leads.
    pub(super) fn leader(&self) -> Result<usize> {
        for (at, member) in self.0.iter().enumerate() {
            let status = member.status()?;
            if field(&status, "leader").is_some_and(|id| field(&status, "member_id") == Some(id)) {
                return Ok(at);
            }
        }
        anyhow::bail!("no member leads")
    }

    /// Kills a member with SIGKILL.
    pub(super) fn kill(&mut self, member: usize) -> Result<()> {
        self.0[member].child.kill()?;
        self.0[member].child.wait()?;
        Ok(())
    }

    /// Starts a member again that was killed, with its data, and waits until all members answer.
    pub(super) fn restart(&mut self, member: usize) -> Result<()> {
        self.0[member].child = spawn(&self.0[member].arguments)?;
        self.wait_until_healthy()
    }

    fn wait_until_healthy(&self) -> Result<()> {
        let end = Instant::now() + START_TIMEOUT;
        for member in &self.0 {
            // A member without a leader is not healthy.
            while !member.ask("GET /health", "").is_ok_and(|text| text.contains("\"true\"")) {
                ensure!(Instant::now() < end, "a member of etcd does not answer");
                sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for EtcdMembers {
    fn drop(&mut self) {
        for member in &mut self.0 {
            // Both fail if the member has ended.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl EtcdMember {
    fn status(&self) -> Result<String> {
        self.ask("POST /v3/maintenance/status", "{}")
    }

    /// The answer to a request of the JSON gateway.
    fn ask(&self, request: &str, body: &str) -> Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        let length = body.len();
        write!(
            socket,
            "{request} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn spawn(arguments: &[String]) -> Result<Child> {
    let mut etcd = Command::new("etcd");
    etcd.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    etcd.spawn().context("cannot start etcd; install it, for example with `apt-get install etcd-server`")
}

fn free_ports(count: usize) -> Result<Vec<u16>> {
    // All at once, so that they differ.
    let listeners = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// A field with a string as its value.
fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = json.split_once(&format!("\"{name}\":\""))?;
    value.split('"').next()
}
