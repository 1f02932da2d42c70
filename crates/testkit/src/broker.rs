//! A part of the broker for one test.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions, QueuePurgeOptions};
use lapin::{Connection, ConnectionProperties};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{clean_up, prepared};

/// Of users that exist for one test, on a broker that nobody else reaches.
const PASSWORD: &str = "it";
/// What names of queues begin with that a test may have made, for a broker that is not ours.
const MOST_PARTITIONS: u16 = 16;

/// Room on the broker, given back with its handle: a virtual host where the broker lets us make
/// one, else a prefix for the names of queues in the virtual host that the tests were given.
#[derive(Debug)]
pub struct Broker {
    url: String,
    prefix: String,
    /// The address of the virtual host in the broker's HTTP interface.
    vhost: Option<String>,
    /// The addresses of users that were made for it.
    users: Mutex<Vec<String>>,
}

impl Broker {
    /// Makes room on the broker that `ATTUNE_TEST_AMQP_URL` names.
    ///
    /// # Errors
    /// When the variable is not set or the broker refuses.
    pub async fn create() -> anyhow::Result<Self> {
        let url = prepared("ATTUNE_TEST_AMQP_URL")?;
        let name = format!("it-{}", Uuid::now_v7().simple());
        let Ok(admin) = std::env::var("ATTUNE_TEST_AMQP_ADMIN_URL") else {
            return Ok(Self {
                url,
                prefix: format!("{name}."),
                vhost: None,
                users: Mutex::default(),
            });
        };
        let vhost = format!("{}/api/vhosts/{name}", admin.trim_end_matches('/'));
        // Whoever makes a virtual host this way is given all permissions on it.
        ask(reqwest::Method::PUT, &vhost, String::new())
            .await
            .context("a virtual host for the test")?;
        let mut url = url::Url::parse(&url)?;
        url.set_path(&name);
        Ok(Self {
            url: url.into(),
            prefix: String::new(),
            vhost: Some(vhost),
            users: Mutex::default(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Bounds a queue of this virtual host, whatever it was declared with: so many messages fit,
    /// and what is published beyond them is refused.
    ///
    /// # Errors
    /// When the broker refuses, or the tests were given no virtual host of their own.
    pub async fn bound(&self, queue: &str, length: u32) -> anyhow::Result<()> {
        let vhost = self.vhost.as_ref();
        let vhost = vhost.context("a bound needs ATTUNE_TEST_AMQP_ADMIN_URL")?;
        let policy = serde_json::json!({
            "pattern": format!("^{}$", queue.replace('.', "\\.")), "apply-to": "queues",
            "priority": 100,
            "definition": {"max-length": length, "overflow": "reject-publish"},
        });
        let address = format!(
            "{}/{queue}",
            vhost.replace("/api/vhosts/", "/api/policies/")
        );
        ask(reqwest::Method::PUT, &address, policy.to_string()).await
    }

    /// Makes a user with these rights in the virtual host, as `attune topology permissions` prints them; where it
    /// reaches the broker.
    ///
    /// # Errors
    /// When the broker refuses, or the tests were given no virtual host of their own.
    pub async fn account(
        &self,
        user: &str,
        rights: &Value,
        keys: &[&Value],
    ) -> anyhow::Result<String> {
        let vhost = self.vhost.as_ref();
        let vhost = vhost.context("a user needs ATTUNE_TEST_AMQP_ADMIN_URL")?;
        let at = |what: &str| vhost.replace("/api/vhosts/", &format!("/api/{what}/"));
        let (admin, _) = vhost.split_once("/api/").context("no address")?;
        let address = format!("{admin}/api/users/{user}");
        let made = json!({"password": PASSWORD, "tags": ""});
        ask(reqwest::Method::PUT, &address, made.to_string()).await?;
        self.users
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(address);
        let address = format!("{}/{user}", at("permissions"));
        ask(reqwest::Method::PUT, &address, rights.to_string()).await?;
        for key in keys {
            let address = format!("{}/{user}", at("topic-permissions"));
            ask(reqwest::Method::PUT, &address, key.to_string()).await?;
        }
        let mut url = url::Url::parse(&self.url)?;
        url.set_username(user).ok().context("a URL with a user")?;
        url.set_password(Some(PASSWORD))
            .ok()
            .context("a URL with a password")?;
        Ok(url.into())
    }

    /// Gives a user other keys by which it may publish to an exchange and bind to it.
    ///
    /// # Errors
    /// When the broker refuses, or the tests were given no virtual host of their own.
    pub async fn may_publish(&self, user: &str, keys: &Value) -> anyhow::Result<()> {
        let vhost = self.vhost.as_ref();
        let vhost = vhost.context("rights need ATTUNE_TEST_AMQP_ADMIN_URL")?;
        let at = vhost.replace("/api/vhosts/", "/api/topic-permissions/");
        ask(
            reqwest::Method::PUT,
            &format!("{at}/{user}"),
            keys.to_string(),
        )
        .await
    }

    /// Takes away what waits in a queue, as a broker does that ends with it, and says how many messages
    /// that were.
    ///
    /// # Errors
    /// When there is no such queue, or the broker refuses.
    pub async fn lose(&self, queue: &str) -> anyhow::Result<u32> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let queue = format!("{}{queue}", self.prefix);
        let options = QueuePurgeOptions::default();
        let lost = channel.queue_purge(queue.as_str().into(), options).await?;
        connection.close(200, "done".into()).await?;
        Ok(lost)
    }

    /// What the names of exchanges and queues must begin with; may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let (url, prefix) = (self.url.clone(), self.prefix.clone());
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        for user in std::mem::take(users) {
            clean_up("the end of a user".to_owned(), move || async move {
                ask(reqwest::Method::DELETE, &user, String::new()).await
            });
        }
        match self.vhost.clone() {
            Some(vhost) => clean_up("the end of a virtual host".to_owned(), move || async move {
                ask(reqwest::Method::DELETE, &vhost, String::new()).await
            }),
            None => clean_up(format!("the end of {prefix}*"), move || async move {
                delete_prefix(&url, &prefix).await
            }),
        }
    }
}

/// Asks the broker's HTTP interface.
async fn ask(method: reqwest::Method, address: &str, body: String) -> anyhow::Result<()> {
    let answer = crate::api::client()?
        .request(method, address)
        .body(body)
        .send()
        .await;
    // The address holds a password.
    let status = answer.map_err(reqwest::Error::without_url)?.status();
    ensure!(
        status.is_success(),
        "the broker's HTTP interface answers {status}"
    );
    Ok(())
}

async fn delete_prefix(url: &str, prefix: &str) -> anyhow::Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let mut names: Vec<String> = [
        "executions",
        "enforcements",
        "completed",
        "completed.kept",
        "queue-stats",
        "dead-letters",
        "cluster",
        "lives",
        "reports",
    ]
    .map(|name| format!("{prefix}attune.{name}"))
    .into();
    for partition in 0..MOST_PARTITIONS {
        for kind in ["commands", "calls", "control"] {
            names.push(format!("{prefix}attune.partition.{partition:02}.{kind}"));
        }
    }
    for name in names {
        // Deleting what does not exist is fine.
        let (queue, exchange) = (name.as_str().into(), name.as_str().into());
        channel
            .queue_delete(queue, QueueDeleteOptions::default())
            .await?;
        channel
            .exchange_delete(exchange, ExchangeDeleteOptions::default())
            .await?;
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}
