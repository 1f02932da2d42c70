//! URLs of servers: what the drivers take, and nothing that they would log or send elsewhere.

use serde_json::Value;
use url::Url;

use crate::keys::is_name;
use crate::secret::percent_decoded;

/// How a password stands in a URL.
pub(crate) const PASSWORDS: &str =
    "write in a password %2F for /, %23 for #, %3F for ? and %40 for @";

/// Never repeats the value: it may hold a password.
pub(crate) fn check_url(value: &Value, schemes: &[&str]) -> Result<Value, String> {
    let Value::String(text) = value else {
        return Err("the value is not a text (it is not shown here)".to_owned());
    };
    let place = text
        .split_once("://")
        .filter(|(scheme, _)| schemes.contains(scheme))
        .map(|(_, rest)| rest)
        .ok_or("the value is not such a URL (it is not shown here)")?;
    if place.is_empty() {
        return Err("the URL names no host".to_owned());
    }
    if text.chars().any(char::is_whitespace) {
        return Err("the URL holds white space; write it as %20".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("the URL holds a control character, such as NUL".to_owned());
    }
    // The drivers read it by the same library; its words repeat nothing of what was read.
    let url = Url::parse(text).map_err(|error| match text.contains('@') {
        true => format!("the URL cannot be read: {error}; {PASSWORDS}"),
        false => format!("the URL cannot be read: {error}"),
    })?;
    if url.port() == Some(0) {
        return Err("the URL names port 0".to_owned());
    }
    if schemes.contains(&"postgres") {
        check_postgres_parameters(place)?;
    }
    Ok(value.clone())
}

/// What the database driver knows; whatever else there is it logs, with the value.
pub(crate) const POSTGRES_PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// What the driver takes for `sslmode`.
const SSL_MODES: [&str; 6] = [
    "disable",
    "allow",
    "prefer",
    "require",
    "verify-ca",
    "verify-full",
];

/// Refuses parameters that the driver does not know, without their values.
fn check_postgres_parameters(place: &str) -> Result<(), String> {
    let before_fragment = place.split('#').next().unwrap_or_default();
    let Some((_, query)) = before_fragment.split_once('?') else {
        return Ok(());
    };
    // With an unescaped `?` in it, this may be the end of a password.
    let shown = !place[before_fragment.find('?').unwrap_or_default()..].contains('@');
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, has_value) = match parameter.split_once('=') {
            Some((name, _)) => (percent_decoded(name), true),
            None => (percent_decoded(parameter), false),
        };
        let is_mode = matches!(&*name, "sslmode" | "ssl-mode");
        let mode = parameter.split_once('=').map_or("", |(_, mode)| mode);
        let mode = percent_decoded(mode).to_ascii_lowercase();
        if is_mode && !SSL_MODES.contains(&mode.as_str()) {
            let modes = SSL_MODES.join(", ");
            return Err(format!("`{name}` of the URL is none of {modes}"));
        }
        let is_option = name.starts_with("options[") && name.ends_with(']');
        if is_option || POSTGRES_PARAMETERS.contains(&&*name) {
            continue;
        }
        let named = if shown && has_value && name.len() <= 64 && name.bytes().all(is_name) {
            format!("the URL has a parameter `{name}`")
        } else {
            "the URL has a parameter (it is not shown here)".to_owned()
        };
        return Err(format!(
            "{named} that is not known; there are {} and options[NAME]",
            POSTGRES_PARAMETERS.join(", ")
        ));
    }
    Ok(())
}
