//! The stream that lapin reads: a connection to the broker whose answers were made
//! [`legible`](crate::legible), and the runtime that has such streams.

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use futures_util::Stream;
use futures_util::io::{AsyncRead, AsyncWrite};
use lapin::tcp::AsyncTcpStream;

use crate::legible::{Legible, MAX_FRAME};

/// How much is asked for at a time; the buffer grows only for the header of a message that is longer.
const READ: usize = 64 * 1024;

/// A connection of tokio's, with TLS where its address says so.
pub(crate) type Wire = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// Reads from `wire` what has been made legible; writes go on as they are.
pub(crate) struct LegibleStream {
    wire: Wire,
    legible: Legible,
    /// What has come: from `begin` to `ready` it can be read, from there to `end` it waits for the
    /// rest of its frame.
    buffer: Vec<u8>,
    begin: usize,
    ready: usize,
    end: usize,
}

impl LegibleStream {
    /// For a connection that asks for frames of at most so many bytes.
    pub(crate) fn new(wire: Wire, most: u32) -> Self {
        Self {
            wire,
            legible: Legible::new(most),
            buffer: vec![0; READ],
            begin: 0,
            ready: 0,
            end: 0,
        }
    }

    /// Waits for more, until something can be read or the broker has ended.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.begin == self.ready {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            (self.begin, self.ready) = (0, 0);
            if self.end == self.buffer.len() {
                // Bounded: no more than the longest frame waits for its rest.
                self.buffer.resize(2 * self.end, 0);
            }
            let free = &mut self.buffer[self.end..];
            let count = ready!(Pin::new(&mut self.wire).poll_read(context, free))?;
            if count == 0 {
                // The broker has ended, in the middle of a frame perhaps: its rest never comes.
                self.ready = self.end;
                return Poll::Ready(Ok(()));
            }
            self.end += count;
            let mended = self.legible.mend(&mut self.buffer[..self.end]);
            (self.ready, self.end) = (mended.ready, mended.end);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for LegibleStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_fill(context))?;
        let count = into.len().min(self.ready - self.begin);
        let begin = self.begin;
        into[..count].copy_from_slice(&self.buffer[begin..begin + count]);
        self.begin += count;
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for LegibleStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_close(context)
    }
}

/// tokio, with [`LegibleStream`] as its stream: lapin takes none but that of its runtime.
pub(crate) type Runtime = async_rs::Runtime<RuntimeParts<Tokio, LegibleReactor>>;

/// The runtime that the caller is in.
///
/// # Panics
/// Outside of a tokio runtime.
pub(crate) fn runtime() -> Runtime {
    RuntimeParts::new(Tokio::current(), LegibleReactor(Tokio::current())).into()
}

/// tokio's sockets and timers.
#[derive(Clone, Debug)]
pub(crate) struct LegibleReactor(Tokio);

impl Reactor for LegibleReactor {
    type TcpStream = LegibleStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, period: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(period)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async {
            let wire = AsyncTcpStream::Plain(connecting.await?);
            Ok(LegibleStream::new(wire, MAX_FRAME))
        }
    }
}
