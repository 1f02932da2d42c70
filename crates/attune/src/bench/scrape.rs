//! Asks a process of the benchmark for one of its figures.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const MAX_BYTES: u64 = 4 << 20;

/// The counter of this name, by the `/metrics` at this port of this machine; `None` when there is
/// no answer, or none with that counter.
pub(super) async fn figure(port: u16, name: &str) -> Option<u64> {
    let text = timeout(ANSWER, get(port)).await.ok()?.ok()?;
    figure_in(&text, name)
}

async fn get(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_BYTES).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The sum over all labels.
fn figure_in(text: &str, name: &str) -> Option<u64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let is_it = labels.is_empty() || labels.starts_with('{');
        is_it.then(|| value.trim().parse::<f64>().ok()).flatten()
    });
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_with_and_without_labels() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# HELP a_total x\na_total{of=\"b c\"} 3\na_total{of=\"d\"} 4\n\
                    a_total_more 100\nb_total 7\n";
        assert_eq!(figure_in(text, "a_total"), Some(7));
        assert_eq!(figure_in(text, "b_total"), Some(7));
        assert_eq!(figure_in(text, "c_total"), None);
    }
}
