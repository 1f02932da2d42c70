//! A worker that is not ours, played by hand: it has a lease over HTTP and a link of its own on the
//! broker, and says what a test wants it to say.

use anyhow::Context as _;
use attune_bus::{Bus as _, Subscriber, Subscription, Topic};
use attune_bus_rabbitmq::RabbitBus;
use attune_core::{OwnerId, WorkerId};
use attune_testkit::{System, within};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stranger::{connect, envelope, publish};

/// One life of it.
pub(crate) struct Foreign<'a> {
    system: &'a System,
    bus: RabbitBus,
    link: Subscriber,
    pool: String,
    slots: u32,
    pub(crate) worker: Uuid,
}

impl<'a> Foreign<'a> {
    /// Joins a pool of a cluster.
    pub(crate) async fn join(system: &'a System, pool: &str, slots: u32) -> anyhow::Result<Self> {
        let bus = connect(system).await?;
        let worker = Uuid::new_v4();
        let topic = Topic::link(pool, WorkerId(worker));
        let link = Subscription {
            topic,
            prefetch: 1000,
        };
        let link = bus.subscribe(link).await?;
        let pool = pool.to_owned();
        let joined = Self {
            system,
            bus,
            link,
            pool,
            slots,
            worker,
        };
        joined.renews(60).await?;
        let hello = json!({"worker": worker, "pool": joined.pool});
        let hello = envelope("worker.hello", 1, &hello);
        publish(&joined.bus, &Topic::Hello, hello).await?;
        Ok(joined)
    }

    /// The next section that has something under this name; those before it are heard too.
    pub(crate) async fn hears(&mut self, part: &str) -> anyhow::Result<Value> {
        let hearing = async {
            loop {
                let message = self.link.next().await.context("the link is closed")?;
                let message: Value = serde_json::from_slice(&message.body)?;
                let one = std::slice::from_ref(&message["payload"]);
                let sections = message["payload"].as_array().map_or(one, Vec::as_slice);
                let found = sections.iter().find(|section| {
                    let part = section[part].as_array();
                    part.is_some_and(|part| !part.is_empty())
                });
                if let Some(section) = found {
                    return Ok(section.clone());
                }
            }
        };
        within(part, hearing).await?
    }

    /// Tells the owner that said this section something.
    pub(crate) async fn reports(&self, section: &Value, mut report: Value) -> anyhow::Result<()> {
        let owner: Uuid = section["owner"].as_str().context("no owner")?.parse()?;
        report["worker"] = json!(self.worker);
        let report = envelope("worker.report", 1, &report);
        publish(&self.bus, &Topic::Reports(OwnerId(owner)), report).await
    }

    /// Says that what a grant names has ended well.
    pub(crate) async fn ends(&self, grant: &Value) -> anyhow::Result<()> {
        let end = json!({
            "execution_id": grant["execution_id"], "attempt": grant["attempt"],
            "action_id": grant["action_id"], "worker": self.worker, "status": "succeeded",
        });
        let end = envelope("execution.completed", 1, &end);
        publish(&self.bus, &Topic::Completed, end).await
    }

    /// Trusts its lease for so many seconds more.
    pub(crate) async fn renews(&self, seconds: u32) -> anyhow::Result<()> {
        let mut lease = lease(self.worker, &self.pool, self.slots);
        lease["lease_seconds"] = json!(seconds);
        let answer = self.system.api.post("/api/v1/worker/lease", &lease).await?;
        answer.expect(200)?;
        Ok(())
    }

    /// Gives its lease up.
    pub(crate) async fn retires(self) -> anyhow::Result<()> {
        retire(self.system, self.worker).await
    }
}

/// What a worker asks for to be known, or to be known for longer.
pub(crate) fn lease(worker: Uuid, pool: &str, slots: u32) -> Value {
    json!({
        "worker": worker, "name": "stranger", "pool": pool, "slots": slots, "lease_seconds": 60,
    })
}

/// Ends a lease.
pub(crate) async fn retire(system: &System, worker: Uuid) -> anyhow::Result<()> {
    let body = json!({"worker": worker});
    let answer = system.api.post("/api/v1/worker/retire", &body).await?;
    anyhow::ensure!(answer.status == 204, "{answer:?}");
    Ok(())
}
