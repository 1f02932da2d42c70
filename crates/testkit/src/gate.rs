//! Programs that say when they have started and end when the test lets them.

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::wait::within;

/// What a program does: it reports to the gate, waits for the exit code, and ends with it. When
/// the gate is gone it ends by itself. Port and what to start first are arguments.
const PROGRAM: &str = r#"
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 98
echo "$ATTUNE_EXECUTION_ID $ATTUNE_ATTEMPT" >&3
child=
if [[ -n $2 ]]; then
    $2 &
    child=$!
fi
read -r code <&3 || code=99
[[ -z $child ]] || kill "$child"
exit "$code"
"#;
/// Programs that may wait at a gate.
const MOST_VISITORS: usize = 1024;

/// Where programs report and wait.
#[derive(Debug)]
pub struct Gate {
    port: u16,
    visitors: mpsc::Receiver<Visitor>,
    _accepting: AbortOnDropHandle<()>,
}

/// A program that runs, and will until it is told to end.
#[derive(Debug)]
pub struct Visitor {
    /// The execution for which it runs.
    pub execution_id: i64,
    /// Which attempt of it.
    pub attempt: i64,
    connection: BufReader<TcpStream>,
}

impl Gate {
    /// Opens a gate on a free port of loopback.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (arrivals, visitors) = mpsc::channel(MOST_VISITORS);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // One after the other, so that they come out in the order of their arrival.
                if let Ok(visitor) = Visitor::greet(stream).await
                    && arrivals.send(visitor).await.is_err()
                {
                    return;
                }
            }
        });
        Ok(Self {
            port,
            visitors,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// The `run` of an action whose program reports here.
    #[must_use]
    pub fn run(&self) -> Value {
        self.program("")
    }

    /// The `run` of an action whose program reports here and has a child of its own.
    #[must_use]
    pub fn run_with_child(&self) -> Value {
        self.program("sleep 600")
    }

    /// The `run` of an action whose program reports here and has a child that leaves its process
    /// group and its session.
    #[must_use]
    pub fn run_with_escaped_child(&self) -> Value {
        self.program("setsid sleep 600")
    }

    fn program(&self, child: &str) -> Value {
        let port = self.port.to_string();
        json!({"program": ["/bin/bash", "-c", PROGRAM, "gate", port, child]})
    }

    /// The next program that has started.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn next(&mut self) -> anyhow::Result<Visitor> {
        let next = within("the start of a program", self.visitors.recv()).await?;
        next.context("the gate is closed")
    }

    /// The ids of the executions whose programs have started and were not taken by
    /// [`next`](Self::next); those are let go.
    pub fn uninvited(&mut self) -> Vec<i64> {
        std::iter::from_fn(|| self.visitors.try_recv().ok())
            .map(|visitor| visitor.execution_id)
            .collect()
    }
}

impl Visitor {
    async fn greet(stream: TcpStream) -> anyhow::Result<Self> {
        let mut connection = BufReader::new(stream);
        let mut line = String::new();
        connection.read_line(&mut line).await?;
        let (execution_id, attempt) = line.trim().split_once(' ').context("no greeting")?;
        let (execution_id, attempt) = (execution_id.parse()?, attempt.parse()?);
        Ok(Self {
            execution_id,
            attempt,
            connection,
        })
    }

    /// Lets the program end with this exit code.
    ///
    /// # Errors
    /// When it is gone already.
    pub async fn leave(mut self, code: u8) -> anyhow::Result<()> {
        self.connection
            .write_all(format!("{code}\n").as_bytes())
            .await?;
        self.gone().await
    }

    /// Waits until the program and everything that it started has ended, however it did.
    ///
    /// # Errors
    /// When it goes on.
    pub async fn gone(mut self) -> anyhow::Result<()> {
        let mut rest = Vec::new();
        let ended = self.connection.read_to_end(&mut rest);
        // A reset is an end as well.
        let _ended = within("the end of a program", ended).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn start(run: &Value, id: &str) -> std::process::Child {
        let argv: Vec<String> = serde_json::from_value(run["program"].clone()).unwrap();
        Command::new(&argv[0])
            .args(&argv[1..])
            .env("ATTUNE_EXECUTION_ID", id)
            .env("ATTUNE_ATTEMPT", "1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn programs_report_and_end_as_they_are_told() {
        let mut gate = Gate::open().await.unwrap();
        for (run, code) in [
            (gate.run(), 3),
            (gate.run_with_child(), 0),
            (gate.run_with_escaped_child(), 0),
        ] {
            let mut program = start(&run, "41");
            let visitor = gate.next().await.unwrap();
            assert_eq!((visitor.execution_id, visitor.attempt), (41, 1));
            visitor.leave(code).await.unwrap();
            assert_eq!(program.wait().unwrap().code(), Some(code.into()));
        }
    }

    #[tokio::test]
    async fn programs_end_with_their_gate() {
        let mut gate = Gate::open().await.unwrap();
        let mut program = start(&gate.run(), "1");
        let visitor = gate.next().await.unwrap();
        drop((gate, visitor));
        assert_eq!(program.wait().unwrap().code(), Some(99));
    }
}
