//! Errors as one line of text.

use std::error::Error;

/// An error and its causes, joined by colons, with the passwords of URLs hidden: what a log line
/// says of it. A cause that the text before it ends with already is not repeated.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    attune_config::redact_urls(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_and_secrets_do_not() {
        let error = anyhow::anyhow!("connection refused")
            .context("cannot reach amqp://attune:hunter2@mq/x")
            .context("start failed");
        assert_eq!(
            error_chain(error.as_ref()),
            "start failed: cannot reach amqp://attune:***@mq/x: connection refused"
        );
        let repeated = std::io::Error::other(std::io::Error::other("gone"));
        assert_eq!(error_chain(&repeated), "gone");
    }
}
