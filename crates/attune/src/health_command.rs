//! `attune health`: asks a process of this machine whether it is ready, for container engines and for
//! people without `curl`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use attune_config::{OpsSettings, Settings};

use crate::cli::HealthArguments;

/// Asks, and says on stderr why the answer is no.
pub(crate) async fn run(settings: &Settings, arguments: &HealthArguments) -> ExitCode {
    let path = if arguments.live {
        "/healthz"
    } else {
        "/readyz"
    };
    let asked = match base(settings, arguments.url.as_deref()) {
        Ok(base) => {
            let patience = Duration::from_secs(arguments.wait);
            attune_cli::probe_for(&format!("{base}{path}"), patience, &arguments.trust).await
        }
        Err(why) => Err(why),
    };
    match asked {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("attune: {}", attune_core::foreign::shown(&why));
            ExitCode::FAILURE
        }
    }
}

/// The URL that the paths of the probes are put behind.
fn base(settings: &Settings, url: Option<&str>) -> Result<String, String> {
    match url.map(str::trim) {
        None => Ok(format!("http://{}", probes(settings))),
        Some("") => Err(
            "the value of --url is empty: write a URL such as http://127.0.0.1:8081, or leave --url out"
                .to_owned(),
        ),
        Some(url) => Ok(url.trim_end_matches('/').to_owned()),
    }
}

/// Where the probes of the process are that these settings belong to, as this machine reaches them.
fn probes(settings: &Settings) -> SocketAddr {
    let listen = settings.metrics.listen.or(settings.ops.listen);
    let mut address = listen.unwrap_or(OpsSettings::DEFAULT_LISTEN);
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use attune_config::Loader;

    use super::*;

    #[test]
    fn the_probes_are_where_the_settings_say() {
        let at = |flags: &[(&str, &str)]| {
            let private = [("ops.network", "private"), ("metrics.network", "private")];
            let flags = flags.iter().copied().chain(private);
            probes(&Loader::new().flags(flags).load().unwrap().settings).to_string()
        };
        assert_eq!(at(&[]), "127.0.0.1:8081");
        assert_eq!(at(&[("ops.listen", "0.0.0.0:9000")]), "127.0.0.1:9000");
        assert_eq!(at(&[("ops.listen", "10.1.2.3:9000")]), "10.1.2.3:9000");
        let both = [("ops.listen", "[::]:9000"), ("metrics.listen", "[::]:9100")];
        assert_eq!(at(&both), "[::1]:9100");
    }

    #[test]
    fn an_empty_url_is_told_as_empty() {
        let base = |url| base(&Settings::default(), url);
        assert_eq!(base(None).unwrap(), "http://127.0.0.1:8081");
        assert_eq!(base(Some("http://h:1/")).unwrap(), "http://h:1");
        for empty in ["", " "] {
            let why = base(Some(empty)).unwrap_err();
            assert!(
                why.contains("is empty: write a URL such as http://"),
                "{why}"
            );
        }
    }
}
