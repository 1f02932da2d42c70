//! Bounds on connections: how many there may be, from one peer and in all, and how long one may
//! leave an answer unread.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How many connections each peer has; a peer without any has no entry.
#[derive(Clone, Default)]
pub(super) struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// The place of one connection among those of its peer; dropping it frees the place.
pub(super) struct Place {
    peers: Peers,
    peer: IpAddr,
}

impl Peers {
    /// A place for another connection of `peer`, unless it has `max` already.
    pub(super) fn enter(&self, peer: IpAddr, max: usize) -> Option<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(peer).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Place {
            peers: self.clone(),
            peer,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

/// A stream whose writes fail when for `limit` not one byte could be written: whoever asks and
/// does not read must not keep the answer in memory.
pub(super) struct StallBound<T> {
    stream: T,
    limit: Duration,
    /// Runs while a write waits; any progress ends it.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> StallBound<T> {
    pub(super) fn new(stream: T, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            stalled: None,
        }
    }

    fn watch<R>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        if stalled.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the client has read nothing for {} s", limit.as_secs()),
        )))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallBound<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallBound<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_peer_has_so_many_places_and_gets_them_back() {
        let peers = Peers::default();
        let (one, other): (IpAddr, IpAddr) =
            ("127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap());
        let first = peers.enter(one, 2);
        let second = peers.enter(one, 2);
        assert!(first.is_some() && second.is_some());
        assert!(peers.enter(one, 2).is_none());
        assert!(peers.enter(other, 2).is_some());
        drop(first);
        assert!(peers.enter(one, 2).is_some());
        drop(second);
        assert!(peers.0.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_reads_now_and_then_is_kept_and_one_that_stops_is_cut() {
        let (mut client, server) = tokio::io::duplex(16);
        let mut server = StallBound::new(server, Duration::from_secs(30));
        let writing = tokio::spawn(async move { server.write_all(&[7; 64]).await });
        let mut read = [0; 16];
        for _ in 0..2 {
            sleep(Duration::from_secs(29)).await;
            client.read_exact(&mut read).await.unwrap();
        }
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }
}
