//! What a process opens to other machines, said at every start.

use std::net::SocketAddr;

use attune_config::{Settings, Wiring};
use attune_core::Network;
use tracing::warn;

use crate::roles::Role;

/// Warns of listeners that other machines can reach, of a broker to which everything goes in the clear, and
/// of a listener that was to be opened and is not, as far as these roles have them.
pub(crate) fn warn_of(settings: &Settings, roles: &[Role]) {
    for words in exposures(settings, roles) {
        warn!("{words}");
    }
    for words in unopened(settings, roles) {
        warn!("{words}");
    }
}

/// Listeners for which a private network is said, though only this machine can connect: probably a mistake.
pub(crate) fn unopened(settings: &Settings, roles: &[Role]) -> Vec<String> {
    let (ops, metrics) = (&settings.ops, &settings.metrics);
    let serves_api = roles.contains(&Role::Api);
    let listeners = [
        ("ops", ops.listen.filter(|_| serves_api), ops.network),
        (
            "metrics",
            metrics.listen.filter(|_| !serves_api),
            metrics.network,
        ),
    ];
    let said = |(section, listen, network): (_, Option<SocketAddr>, _)| {
        let listen = listen.filter(|listen| Network::Loopback.reaches(listen.ip()))?;
        (network == Network::Private).then(|| {
            format!(
                "{section}.network is private and opens nothing: {section}.listen is {listen}, which only \
                 this machine reaches; listen on 0.0.0.0:{} or on an address of the network, or leave \
                 {section}.network out",
                listen.port()
            )
        })
    };
    listeners.into_iter().filter_map(said).collect()
}

/// What other machines can reach or hear that they perhaps should not.
pub(crate) fn exposures(settings: &Settings, roles: &[Role]) -> Vec<String> {
    let (api, ops, metrics) = (&settings.api, &settings.ops, &settings.metrics);
    let serves_api = roles.contains(&Role::Api);
    let mut found = Vec::new();
    let listeners = [
        ("ops", ops.listen.filter(|_| serves_api)),
        ("metrics", metrics.listen.filter(|_| !serves_api)),
    ];
    if serves_api
        && api.behind_proxy
        && api.tls.cert_file.is_none()
        && !Network::Loopback.reaches(api.listen.ip())
    {
        found.push(format!(
            "api.behind_proxy is set and api.tls.cert_file is not: the keys of clients go from the proxies to \
             {} in the clear",
            api.listen
        ));
    }
    for (section, listen) in listeners {
        if let Some(listen) = listen.filter(|listen| !Network::Loopback.reaches(listen.ip())) {
            found.push(format!(
                "{section}.network is private: everybody who reaches {listen} may read health and metrics"
            ));
        }
    }
    if settings.wiring == Wiring::PostgresRabbitmq
        && settings.broker.require_user_id == Some(false)
        && !settings.broker.is_near()
    {
        found.push(
            "broker.require_user_id is false: whoever may publish to the broker may say of any run that it has ended"
                .to_owned(),
        );
    }
    let broker = settings.broker.url.expose();
    if settings.wiring == Wiring::PostgresRabbitmq
        && settings.broker.network == Network::Private
        && broker.starts_with("amqp://")
    {
        found.push(format!(
            "broker.network is private: the password and all messages go to {} in the clear",
            settings.broker.url.endpoint()
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use attune_config::Loader;

    use super::*;

    #[test]
    fn what_other_machines_reach_is_said_by_who_opens_it() {
        let flags = [
            ("api.listen", "0.0.0.0:8080"),
            ("api.behind_proxy", "true"),
            ("api.trusted_proxies", "10.0.0.5"),
            ("ops.listen", "10.0.0.1:8081"),
            ("ops.network", "private"),
            ("metrics.listen", "0.0.0.0:9100"),
            ("metrics.network", "private"),
            ("broker.url", "amqp://u:hunter2@mq:5672/v"),
            ("broker.network", "private"),
        ];
        let settings = Loader::new().flags(flags).load().unwrap().settings;
        let of = |roles: &[Role]| exposures(&settings, roles).join("\n");
        let (api, worker) = (of(&[Role::Api]), of(&[Role::Worker]));
        assert!(api.contains("reaches 10.0.0.1:8081 may read"), "{api}");
        let words = "from the proxies to 0.0.0.0:8080 in the clear";
        assert!(api.contains(words), "{api}");
        assert!(!api.contains("9100"), "{api}");
        assert!(worker.contains("reaches 0.0.0.0:9100 may read"), "{worker}");
        assert!(!worker.contains("808"), "{worker}");
        for said in [api, worker] {
            assert!(said.contains("go to mq:5672 in the clear"), "{said}");
            assert!(!said.contains("hunter2"));
        }
        let settings = Settings::default();
        assert!(exposures(&settings, &Role::ALL).is_empty());
    }

    #[test]
    fn what_was_to_be_opened_and_is_not_is_said() {
        let flags = [
            ("ops.listen", "127.0.0.1:8081"),
            ("ops.network", "private"),
            ("metrics.listen", "[::1]:9100"),
            ("metrics.network", "private"),
        ];
        let settings = Loader::new().flags(flags).load().unwrap().settings;
        let of = |roles: &[Role]| unopened(&settings, roles).join("\n");
        let (api, worker) = (of(&[Role::Api]), of(&[Role::Worker]));
        assert!(api.contains("ops.listen is 127.0.0.1:8081"), "{api}");
        assert!(!api.contains("metrics"), "{api}");
        assert!(worker.contains("metrics.listen is [::1]:9100"), "{worker}");
        assert!(!worker.contains("ops"), "{worker}");
        assert!(unopened(&Settings::default(), &Role::ALL).is_empty());
    }
}
