//! Everything that identifies and protects, for the cluster under test: keys and TLS for its API, TLS to
//! both servers with verified names, and messages that name their user.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::fleet::free_port;
use crate::certificates::{Authority, Certified, replace};

/// The user of the broker as whom everybody of the rig speaks.
pub(super) const USER: &str = "attune";

/// The name of the key with which it asks over HTTP.
pub(super) const ASKER: &str = "operator";

/// Certificates of the rig's own authority, and where the broker speaks TLS.
#[derive(Debug, Clone)]
pub(super) struct Security {
    folder: PathBuf,
    broker_port: u16,
    /// The authority, as PEM.
    pub(super) authority: String,
}

impl Security {
    /// Makes an authority, and a certificate for this machine, in a folder of the rig.
    pub(super) async fn prepare(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.join("security");
        std::fs::create_dir_all(&folder)?;
        // The servers are accounts of their own, and read their files there.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        let authority = Authority::new("chaos");
        let Certified { cert, key } = authority.server(&["localhost", "127.0.0.1"]);
        replace(&folder.join("ca.pem"), &authority.pem, 0o644);
        for of in ["server", "api"] {
            let mode = if of == "server" { 0o644 } else { 0o600 };
            replace(&folder.join(format!("{of}.pem")), &cert, 0o644);
            replace(&folder.join(format!("{of}.key")), &key, mode);
        }
        let broker_port = free_port().await?.local_addr()?.port();
        Ok(Self {
            folder,
            broker_port,
            authority: authority.pem,
        })
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// Settings of the broker, in its own terms: so they outlive its death.
    pub(super) fn of_broker(&self) -> String {
        let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|name| self.file(name));
        let port = self.broker_port;
        format!(
            "{{ssl_listeners, [{{\"127.0.0.1\", {port}}}]}}, {{ssl_options, [{{cacertfile, \"{ca}\"}}, \
             {{certfile, \"{cert}\"}}, {{keyfile, \"{key}\"}}, {{verify, verify_none}}]}}"
        )
    }

    /// Has PostgreSQL speak TLS, now and after every start.
    pub(super) async fn protect(&self, database: &str) -> anyhow::Result<()> {
        let mut server = PgConnection::connect(database).await?;
        let (data,): (String,) = sqlx::query_as("SHOW data_directory")
            .fetch_one(&mut server)
            .await?;
        let data = PathBuf::from(data);
        let owner = std::fs::metadata(&data)?;
        for name in ["server.pem", "server.key"] {
            let to = data.join(name);
            std::fs::copy(self.folder.join(name), &to)?;
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o600))?;
            chown(&to, Some(owner.uid()), Some(owner.gid()))?;
        }
        for (name, value) in [
            ("ssl_cert_file", "server.pem"),
            ("ssl_key_file", "server.key"),
            ("ssl", "on"),
        ] {
            // Names and values are our own.
            let change = format!("ALTER SYSTEM SET {name} = '{value}'");
            sqlx::query(AssertSqlSafe(change))
                .execute(&mut server)
                .await?;
        }
        sqlx::query("SELECT pg_reload_conf()")
            .execute(&mut server)
            .await?;
        server.close().await?;
        Ok(())
    }

    /// The address of the database for whoever verifies whom it speaks to.
    pub(super) fn database(&self, url: &str) -> anyhow::Result<String> {
        let mut url = url::Url::parse(url)?;
        url.query_pairs_mut()
            .append_pair("sslmode", "verify-full")
            .append_pair("sslrootcert", &self.file("ca.pem"));
        Ok(url.into())
    }

    /// The same of the broker.
    pub(super) fn broker(&self, url: &str) -> anyhow::Result<String> {
        let secure = url.replacen("amqp://", "amqps://", 1);
        let mut url = url::Url::parse(&secure)?;
        url.set_host(Some("127.0.0.1"))?;
        let port = url.set_port(Some(self.broker_port));
        port.ok().context("the URL takes no port")?;
        Ok(url.into())
    }

    /// Settings of every daemon.
    pub(super) fn settings(&self) -> [(&'static str, String); 13] {
        let many = || "1000000".to_owned();
        [
            ("api.auth", "required".to_owned()),
            ("api.tls.cert_file", self.file("api.pem")),
            ("api.tls.key_file", self.file("api.key")),
            ("api.rates.submit_per_second", many()),
            ("api.rates.submit_burst", many()),
            ("api.rates.read_per_second", many()),
            ("api.rates.read_burst", many()),
            ("api.rates.change_per_second", many()),
            ("api.rates.change_burst", many()),
            ("broker.tls.ca_file", self.file("ca.pem")),
            ("broker.require_user_id", "true".to_owned()),
            // Its clients name for whom they ask.
            ("broker.impersonators", format!("[{USER}]")),
            ("api.rates.failures_per_minute", many()),
        ]
    }
}
