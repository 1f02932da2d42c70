//! Where the API may listen, and what must be set for that.

use attune_config::{Loader, Settings};
use attune_core::Auth;

use crate::{YamlFile, problem};

fn load(flags: &[(&str, &str)]) -> Settings {
    Loader::new()
        .flags(flags.iter().copied())
        .load()
        .unwrap()
        .settings
}

const TLS: [(&str, &str); 2] = [
    ("api.tls.cert_file", "/etc/attune/api.pem"),
    ("api.tls.key_file", "/etc/attune/api.key"),
];
const PROXY: [(&str, &str); 2] = [
    ("api.behind_proxy", "true"),
    ("api.trusted_proxies", "10.0.0.5, fd00::/8"),
];

/// Also a public address, and never without a key that says who somebody is.
#[test]
fn the_api_leaves_loopback_with_keys_that_nobody_can_read_on_the_way() {
    for listen in [
        "0.0.0.0:8080",
        "[::]:8080",
        "10.0.0.1:80",
        "8.8.8.8:443",
        "100.64.0.1:1",
    ] {
        let text = problem(Loader::new().flags([("api.listen", listen)]));
        assert!(
            text.starts_with("api.listen (flag): other machines"),
            "{text}"
        );
        assert!(
            text.contains("`api.tls.cert_file` and `api.tls.key_file`"),
            "{text}"
        );
        assert!(
            text.contains("`api.behind_proxy` and `api.trusted_proxies`"),
            "{text}"
        );
        for way in [TLS, PROXY] {
            let with = |auth: &str| {
                let flags = [("api.listen", listen), ("api.auth", auth)];
                Loader::new().flags(flags).flags(way)
            };
            for auth in ["", "required"] {
                let api = with(auth).load().unwrap().settings.api;
                assert_eq!(api.auth(), Auth::Required, "{listen}");
            }
            let text = problem(with("off"));
            assert!(
                text.starts_with("api.auth (flag): `off` is for this machine alone"),
                "{text}"
            );
        }
    }
}

#[test]
fn this_machine_needs_no_key_unless_that_is_said_or_a_proxy_brings_others() {
    assert_eq!(load(&[]).api.auth(), Auth::Off);
    assert_eq!(load(&[("api.auth", "off")]).api.auth(), Auth::Off);
    assert_eq!(load(&[("api.auth", "required")]).api.auth(), Auth::Required);
    assert_eq!(load(&[("api.listen", "[::1]:1")]).api.auth(), Auth::Off);
    assert_eq!(load(&TLS).api.auth(), Auth::Off);
    assert_eq!(load(&PROXY).api.auth(), Auth::Required);
    let text = problem(Loader::new().flags(PROXY).flags([("api.auth", "off")]));
    assert!(
        text.contains("can reach 127.0.0.1:8080 through a proxy"),
        "{text}"
    );
}

#[test]
fn what_belongs_together_is_asked_for() {
    for (flags, words) in [
        (
            &TLS[..1],
            "api.tls.cert_file (flag): nothing can be proved without `api.tls.key_file`",
        ),
        (
            &TLS[1..],
            "api.tls.key_file (flag): nothing can be proved without `api.tls.cert_file`",
        ),
        (
            &[("api.tls.client_ca_file", "ca.pem")],
            "api.tls.client_ca_file (flag): nothing can be proved without `api.tls.cert_file`",
        ),
        (
            &PROXY[..1],
            "api.behind_proxy (flag): a proxy tells who its client is, and anybody could be one",
        ),
        (
            &PROXY[1..],
            "api.trusted_proxies (flag): nobody is taken for a proxy unless `api.behind_proxy` is true",
        ),
        (
            &[("api.trusted_proxies", "10.0.0.5, nginx")],
            "\"nginx\" is neither an address nor a network such as 10.1.0.0/16; expected a list of addresses",
        ),
        (
            &[("api.trusted_proxies", "0.0.0.0/0")],
            "the prefix of 0.0.0.0/0 is not from 1 to 32",
        ),
        (
            &[("api.auth", "on")],
            "\"on\" does not fit; expected one of required, off, or nothing",
        ),
    ] {
        let text = problem(Loader::new().flags(flags.iter().copied()));
        assert!(text.contains(words), "{text}");
    }
    // Named, not read: the server does that, and tells what is wrong with them.
    let api = load(&TLS).api;
    assert_eq!(api.tls.key_file, Some("/etc/attune/api.key".into()));
    let yaml = "api:\n  behind_proxy: true\n  trusted_proxies: [10.0.0.5, 10.1.0.0/16]\n";
    let loaded = Loader::new().file(Some(YamlFile::new(yaml).path())).load();
    let proxies = loaded.unwrap().settings.api.trusted_proxies;
    assert!(proxies[1].contains("10.1.2.3".parse().unwrap()));
}

/// Nothing is opened by what it once meant.
#[test]
fn a_network_of_the_api_is_refused_with_what_took_its_place() {
    let file = YamlFile::new("api: {network: loopback}\n");
    for loader in [
        Loader::new().file(Some(file.path())),
        Loader::new().environment([("ATTUNE__API__NETWORK", "private")]),
        Loader::new().flags([("api.network", "private")]),
    ] {
        let text = problem(loader);
        assert!(text.starts_with("api.network ("), "{text}");
        assert!(text.contains("it is gone: leave it out"), "{text}");
        assert!(
            text.contains("`api.tls.cert_file`") && text.contains("`api.behind_proxy`"),
            "{text}"
        );
    }
}
