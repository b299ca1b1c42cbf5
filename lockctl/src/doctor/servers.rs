//! The checks of all servers that a URL names: the one server, each sentinel and the servers of its master, or each
//! node of a cluster.

use std::collections::BTreeMap;

use redis::RedisError;

use super::Finding;
use super::rights::{self, RightsOf};
use super::server::{ServerConnection, ServerRole, is_denied};
use super::servers_url::{NoServers, ServersKind, ServersUrl, with_port};
use crate::messages::Messages;
use crate::options::{Format, GlobalOptions};

/// The port of a server without another one.
const DEFAULT_PORT: u16 = 6379;

/// Checks all servers.
pub(super) async fn examine(global: &GlobalOptions, url: &str, messages: Messages) -> Vec<Finding> {
    let servers = match ServersUrl::read(url).await {
        Ok(servers) => servers,
        Err(NoServers::OtherStore) => {
            let found = "not looked at: `doctor` looks at Redis servers only";
            return vec![Finding::warn("server", found, "nothing, if this is intended")];
        }
        Err(NoServers::ServerName) => {
            let found = "not looked at: `doctor` cannot use the option `tls_server_name`";
            let change = "run `doctor` with a host name of the certificate";
            return vec![Finding::warn("server", found, change)];
        }
        Err(NoServers::File(failure)) => {
            return vec![Finding::fail("server", failure.to_string(), "check the URL")];
        }
    };
    let examination = Examination { servers: &servers, global, messages };
    match &servers.kind {
        ServersKind::One => examination.server(&servers.hosts[0], ServerRole::Master, &[]).await,
        ServersKind::Sentinels(name) => examination.sentinels(name).await,
        ServersKind::Cluster => examination.cluster().await,
    }
}

/// Examines the servers of a URL.
struct Examination<'a> {
    servers: &'a ServersUrl,
    global: &'a GlobalOptions,
    messages: Messages,
}

impl Examination<'_> {
    /// Checks a server, whose user also needs these rights.
    async fn server(&self, address: &str, role: ServerRole, also: &[RightsOf]) -> Vec<Finding> {
        let opened = match self.servers.server(address) {
            Ok(client) => ServerConnection::open(client).await,
            Err(error) => Err(error),
        };
        let mut server = match opened {
            Ok(server) => server,
            Err(error) => return vec![unreachable("server", &error)],
        };
        let mut lists = also.to_vec();
        match self.global.format {
            Format::Token => {}
            Format::Redisson => lists.push(RightsOf::Redisson),
            Format::Timestamp => lists.push(RightsOf::Timestamp),
        }
        let mut findings = server.examine(role).await;
        let namespace = &self.global.namespace;
        findings.extend(rights::examine(&mut server, namespace, &lists, self.messages).await);
        findings
    }

    /// The same, for one of several servers.
    async fn one_of(&self, address: &str, role: ServerRole, also: &[RightsOf]) -> Vec<Finding> {
        let findings = self.server(address, role, also).await;
        findings.into_iter().map(|finding| finding.of_server(address)).collect()
    }

    /// Checks each sentinel of the URL, and the master and the replicas that they name.
    async fn sentinels(&self, name: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        // How many sentinels name each master.
        let mut masters: BTreeMap<String, usize> = BTreeMap::new();
        let mut replicas: Vec<String> = Vec::new();
        for address in &self.servers.hosts {
            match self.sentinel(address, name).await {
                Ok(answer) => {
                    let found = format!("names {} as the master", answer.master);
                    let finding = match answer.problem {
                        None => Finding::ok("sentinel", found),
                        Some(problem) => {
                            let found = format!("{found}, and says: {problem}");
                            Finding::warn("sentinel", found, "start the missing sentinels")
                        }
                    };
                    findings.push(finding.of_server(address));
                    *masters.entry(answer.master).or_default() += 1;
                    replicas.extend(answer.replicas);
                }
                Err(error) => findings.push(unreachable("sentinel", &error).of_server(address)),
            }
        }
        if masters.len() > 1 {
            let change = "repeat in a moment; if it stays, reset the sentinels that are wrong";
            findings.push(Finding::fail("sentinels", "name different masters", change));
        }
        let most = masters.into_iter().max_by_key(|(_, count)| *count).map(|(master, _)| master);
        let Some(master) = most else { return findings };
        findings.extend(self.one_of(&master, ServerRole::Master, &[RightsOf::Sentinels]).await);
        replicas.sort_unstable();
        replicas.dedup();
        for replica in replicas.iter().filter(|replica| **replica != master) {
            findings
                .extend(self.one_of(replica, ServerRole::Replica, &[RightsOf::Sentinels]).await);
        }
        findings
    }

    /// Asks a sentinel.
    async fn sentinel(&self, address: &str, name: &str) -> Result<NamedMaster, RedisError> {
        let mut sentinel = ServerConnection::open(self.servers.sentinel(address)?).await?;
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
        let (host, port) = sentinel.ask::<(String, u16)>(&words).await?;
        let quorum = sentinel.ask::<String>(&["SENTINEL", "CKQUORUM", name]).await;
        let words = ["SENTINEL", "REPLICAS", name];
        let known = sentinel.ask::<Vec<BTreeMap<String, String>>>(&words).await;
        let replica = |it: &BTreeMap<String, String>| {
            let (host, port, flags) = (it.get("ip")?, it.get("port")?, it.get("flags")?);
            let address = with_port(&bracketed(host), port.parse().ok()?);
            (!flags.contains("down")).then_some(address)
        };
        Ok(NamedMaster {
            master: with_port(&bracketed(&host), port),
            problem: quorum.err().map(|error| error.to_string()),
            // Without the permission, they are not looked at.
            replicas: known.unwrap_or_default().iter().filter_map(replica).collect(),
        })
    }

    /// Checks each node of a cluster.
    async fn cluster(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for address in &self.servers.hosts {
            let nodes = match self.nodes(address).await {
                Ok(nodes) => nodes,
                Err(error) if is_denied(&error) => {
                    let change = "grant +cluster|nodes, so that all nodes are looked at";
                    let found = "only the nodes of the URL are looked at";
                    findings.push(Finding::warn("cluster", found, change));
                    let node = |address: &String| ExaminedNode::of_url(address);
                    self.servers.hosts.iter().map(node).collect()
                }
                Err(error) => {
                    findings.push(unreachable("cluster", &error).of_server(address));
                    continue;
                }
            };
            for node in nodes {
                if node.is_down {
                    let found = "the other nodes take it for down";
                    let change = "start it, or remove it with `CLUSTER FORGET`";
                    findings.push(Finding::fail("node", found, change).of_server(&node.address));
                } else {
                    let also = [RightsOf::Cluster];
                    findings.extend(self.one_of(&node.address, node.role, &also).await);
                }
            }
            break;
        }
        findings
    }

    /// The nodes that this one knows.
    async fn nodes(&self, address: &str) -> Result<Vec<ExaminedNode>, RedisError> {
        let mut server = ServerConnection::open(self.servers.server(address)?).await?;
        let text = server.ask::<String>(&["CLUSTER", "NODES"]).await?;
        Ok(text.lines().filter_map(|line| ExaminedNode::of_line(line, address)).collect())
    }
}

/// The master that a sentinel names, and what it knows about it.
struct NamedMaster {
    master: String,
    /// Why no failover is possible.
    problem: Option<String>,
    replicas: Vec<String>,
}

/// A node of a cluster, as another one knows it.
#[derive(Debug, PartialEq, Eq)]
struct ExaminedNode {
    address: String,
    role: ServerRole,
    is_down: bool,
}

impl ExaminedNode {
    fn of_url(address: &str) -> Self {
        Self { address: address.to_owned(), role: ServerRole::Any, is_down: false }
    }

    /// Reads a line of `CLUSTER NODES`, which the node at `asked` has sent.
    fn of_line(line: &str, asked: &str) -> Option<Self> {
        let mut words = line.split(' ').skip(1);
        let (address, flags) = (words.next()?, words.next()?);
        let (host, port) = address.split('@').next()?.rsplit_once(':')?;
        let flags: Vec<&str> = flags.split(',').collect();
        if flags.contains(&"noaddr") || flags.contains(&"handshake") {
            return None;
        }
        // A node that was never told its own address does not know it.
        let host = match host {
            "" => asked.rsplit_once(':')?.0.to_owned(),
            host => bracketed(host),
        };
        let is_replica = flags.contains(&"slave");
        Some(Self {
            address: with_port(&host, port.parse().unwrap_or(DEFAULT_PORT)),
            role: if is_replica { ServerRole::Replica } else { ServerRole::Master },
            is_down: flags.contains(&"fail"),
        })
    }
}

/// A host as URLs name it.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn unreachable(check: &'static str, error: &RedisError) -> Finding {
    let change = "start it, or make it reachable from here; its state is not known";
    Finding::fail(check, error.to_string(), change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_cluster_are_read() {
        let node = |line: &str| ExaminedNode::of_line(line, "asked:1");
        let found = |address: &str, role, is_down| {
            Some(ExaminedNode { address: address.to_owned(), role, is_down })
        };
        let master = "id 10.0.0.1:7000@17000,name myself,master - 0 0 1 connected 0-5460";
        assert_eq!(node(master), found("10.0.0.1:7000", ServerRole::Master, false));
        let replica = "id fd00::1:7001@17001 slave,fail id 0 0 1 connected";
        assert_eq!(node(replica), found("[fd00::1]:7001", ServerRole::Replica, true));
        let alone = "id :7002@17002 myself,master - 0 0 0 connected";
        assert_eq!(node(alone), found("asked:7002", ServerRole::Master, false));
        for line in ["", "id", "id :0@0 master,noaddr - 0 0 1 disconnected"] {
            assert_eq!(node(line), None, "{line:?}");
        }
    }
}
