//! The commands against whoever else listens at the address.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::Exit;
use super::attune;

/// Answers whatever is asked with `head`, then with `body`, again and again if it is `endless`,
/// until the other side has enough.
async fn answers(head: &str, body: Vec<u8>, endless: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let head = head.to_owned();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(answer(&mut stream, &head, &body, endless).await);
        }
    });
    url
}

async fn answer(
    stream: &mut TcpStream,
    head: &str,
    body: &[u8],
    endless: bool,
) -> std::io::Result<()> {
    let mut asked = [0; 16 * 1024];
    if stream.read(&mut asked).await? == 0 {
        return Ok(());
    }
    stream.write_all(head.as_bytes()).await?;
    loop {
        stream.write_all(body).await?;
        if !endless {
            return Ok(());
        }
    }
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[";
    let url = answers(head, vec![b' '; 1 << 20], true).await;
    let failure = attune(&url, "executions list").await.unwrap_err();
    assert_eq!(failure.exit, Exit::Unknown);
    assert_eq!(
        failure.message,
        format!("{url}/ answers, but not as Attune does: more than 64 MiB")
    );
}

/// A line of somebody else's must not look like one of ours.
#[tokio::test]
async fn an_error_stays_on_its_line() {
    let body = r#"{"error": {"code": "A\nB", "message": "no\r\nattune: all is well"}}"#;
    let head = "HTTP/1.1 422 No\r\nconnection: close\r\n\r\n";
    let url = answers(head, body.into(), false).await;
    for line in ["executions list", "executions cancel 1", "submit core.echo"] {
        let told = match attune(&url, line).await {
            Ok(output) => output.problems.join("|"),
            Err(failure) => failure.message,
        };
        assert!(told.ends_with("no  attune: all is well [A B]"), "{told:?}");
    }
    // What does not fit is quoted too.
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let url = answers(head, br#"{"id": 1, "status": "a\nb"}"#.to_vec(), false).await;
    let output = attune(&url, "executions cancel 1").await.unwrap();
    let told = output.problems.join("|");
    assert!(
        told.contains("does not fit: unknown variant `a b`"),
        "{told:?}"
    );
}
