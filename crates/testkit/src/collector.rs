//! A collector of OTLP over HTTP, as small as a test needs it: it takes what is sent and gives it to the test.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

/// A collector that listens for as long as the test runs.
#[derive(Debug)]
pub struct Collector {
    /// What `otlp.endpoint` is to be.
    pub endpoint: String,
    /// The requests that came, each with its head in lower case and its body.
    pub taken: mpsc::Receiver<(String, Vec<u8>)>,
}

impl Collector {
    /// One at an address of its own.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}/", listener.local_addr()?);
        let (sender, taken) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // What breaks off is sent again by whoever cares.
                if let Some(request) = request(stream)
                    && sender.send(request).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { endpoint, taken })
    }

    /// The spans that have come since it was asked last.
    pub fn spans(&self) -> Vec<Span> {
        let requests = self.taken.try_iter();
        let traces = requests.filter(|(head, _)| head.starts_with("post /v1/traces "));
        traces.flat_map(|(_, body)| spans(&body)).collect()
    }
}

fn request(mut stream: TcpStream) -> Option<(String, Vec<u8>)> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&buffer[..count]);
        let end = read.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let length = head
            .lines()
            .find_map(|it| it.strip_prefix("content-length: "))?;
        let length: usize = length.parse().ok()?;
        let body = &read[end + 4..];
        if body.len() >= length {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).ok()?;
            return Some((head, body.to_vec()));
        }
    }
}

/// A span as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// What it is called.
    pub name: String,
    /// Its trace, as hexadecimal digits.
    pub trace_id: String,
    /// Its own id, likewise.
    pub span_id: String,
    /// The id of the span above it; empty where there is none.
    pub parent_id: String,
    /// When it began and ended, in nanoseconds since 1970.
    pub times: (u64, u64),
    /// Texts and numbers that it has, by their names.
    pub attributes: Vec<(String, String)>,
}

impl Span {
    /// What it has under this name; empty where it has nothing.
    pub fn attribute(&self, name: &str) -> &str {
        let mut attributes = self.attributes.iter();
        attributes
            .find(|(it, _)| it == name)
            .map_or("", |(_, value)| value)
    }
}

/// The spans of an `ExportTraceServiceRequest`, by the numbers of opentelemetry/proto/trace/v1.
fn spans(body: &[u8]) -> Vec<Span> {
    let resources = fields(body).filter(|(number, _)| *number == 1);
    let scopes =
        resources.flat_map(|(_, it)| fields(it.bytes()).filter(|(number, _)| *number == 2));
    let spans = scopes.flat_map(|(_, it)| fields(it.bytes()).filter(|(number, _)| *number == 2));
    spans.map(|(_, it)| span(it.bytes())).collect()
}

fn span(body: &[u8]) -> Span {
    let mut span = Span {
        name: String::new(),
        trace_id: String::new(),
        span_id: String::new(),
        parent_id: String::new(),
        times: (0, 0),
        attributes: Vec::new(),
    };
    for (number, field) in fields(body) {
        match number {
            1 => span.trace_id = field.hex(),
            2 => span.span_id = field.hex(),
            4 => span.parent_id = field.hex(),
            5 => span.name = field.text(),
            7 => span.times.0 = field.number(),
            8 => span.times.1 = field.number(),
            9 => span.attributes.extend(attribute(field.bytes())),
            _ => {}
        }
    }
    span
}

fn attribute(body: &[u8]) -> Option<(String, String)> {
    let (_, name) = fields(body).find(|(number, _)| *number == 1)?;
    let (_, value) = fields(body).find(|(number, _)| *number == 2)?;
    let (number, value) = fields(value.bytes()).next()?;
    let value = match number {
        1 => value.text(),
        _ => value.number().to_string(),
    };
    Some((name.text(), value))
}

/// A field of a message of Protocol Buffers.
#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => &[],
        }
    }

    fn text(self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    fn hex(self) -> String {
        let digits = self.bytes().iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    }

    fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Bytes(_) => 0,
        }
    }
}

/// The fields of a message, with their numbers, up to one that is not understood.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, Field<'_>)> {
    std::iter::from_fn(move || {
        let tag = varint(&mut rest)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut rest)?),
            1 => {
                let (number, more) = rest.split_first_chunk::<8>()?;
                rest = more;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let (bytes, more) = rest.split_at_checked(length)?;
                rest = more;
                Field::Bytes(bytes)
            }
            5 => {
                let (number, more) = rest.split_first_chunk::<4>()?;
                rest = more;
                Field::Number(u32::from_le_bytes(*number).into())
            }
            _ => return None,
        };
        Some((tag >> 3, field))
    })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, more) = rest.split_first()?;
        *rest = more;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
