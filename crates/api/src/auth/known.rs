//! The keys that were shown to this server, so that the store is not asked for each request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_identity::{Key, KeyHash, KeyId, Pace, Principal};
use attune_store::{KeyRecord, KeyStanding, KeyStore, StoreError};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::debug;

use super::lives::Lives;

/// How long what was read of a key counts: so long a key that was revoked is good still.
pub(crate) const FRESH: Duration = Duration::from_secs(5);
/// How long it counts while the store cannot be asked.
const STALE: Duration = Duration::from_secs(60);
/// How often it is noted that a key was used.
const NOTED: Duration = Duration::from_secs(60);
/// Keys that nobody knows here yet are looked up by so many requests at once: guesses must not take the
/// connections that everybody needs.
const LOOK_UPS: usize = 2;
/// How many may listen to events at once with one key.
pub(crate) const MAX_LISTENERS_OF_KEY: usize = 16;

/// A key that was shown, and how much was asked for with it.
#[derive(Debug)]
pub(crate) struct Known {
    read: Mutex<Read>,
    /// Held by whoever reads it again.
    reading: tokio::sync::Mutex<()>,
    pub(crate) paces: Paces,
    /// For those who listen to events with it: one key does not take all places.
    pub(crate) listeners: Arc<Semaphore>,
}

/// How much of each rate is used.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    pub(crate) submit: Pace,
    pub(crate) read: Pace,
    pub(crate) change: Pace,
    pub(crate) lives: Lives,
}

/// What the store has said of a key, and when.
#[derive(Debug, Clone)]
struct Read {
    principal: Arc<Principal>,
    hash: KeyHash,
    at: Instant,
    /// When its time is over, if that is known; the past for one that is not good.
    good_until: Option<Instant>,
    noted_at: Option<Instant>,
}

impl Read {
    fn of(record: KeyRecord, at: Instant) -> Self {
        Self {
            hash: record.hash,
            at,
            good_until: match record.standing {
                KeyStanding::Good(left) => left.map(|left| at + left),
                KeyStanding::Expired | KeyStanding::Revoked => Some(at),
            },
            principal: Arc::new(Principal::of_key(record.name, record.id, record.grants)),
            noted_at: None,
        }
    }

    fn is_good(&self, key: &Key, now: Instant) -> bool {
        key.fits(&self.hash) && self.good_until.is_none_or(|until| now < until)
    }
}

/// The keys of a server.
pub(crate) struct KnownKeys {
    store: Arc<dyn KeyStore>,
    known: Mutex<HashMap<KeyId, Arc<Known>>>,
    look_ups: Semaphore,
}

impl KnownKeys {
    pub(crate) fn new(store: Arc<dyn KeyStore>) -> Self {
        Self {
            store,
            known: Mutex::default(),
            look_ups: Semaphore::new(LOOK_UPS),
        }
    }

    /// Whether a key is known here, so that to look at it costs nobody else anything.
    pub(crate) fn knows(&self, id: &KeyId) -> bool {
        self.find(id).is_some()
    }

    /// The owner of a key and what of it is used; `None` for a key that is not good, whatever the reason.
    ///
    /// # Errors
    /// When the store has to be asked and fails.
    pub(crate) async fn identify(
        &self,
        key: &Key,
        ip: Option<&str>,
    ) -> Result<Option<(Arc<Principal>, Arc<Known>)>, StoreError> {
        let known = match self.find(key.id()) {
            Some(known) => known,
            None => match self.look_up(key).await? {
                Some(known) => known,
                None => return Ok(None),
            },
        };
        let Some(read) = self.current(&known, key).await? else {
            return Ok(None);
        };
        if !read.is_good(key, Instant::now()) {
            return Ok(None);
        }
        self.note_use(&known, key.id(), ip);
        Ok(Some((read.principal, known)))
    }

    /// Whether a key is good, by what the store says now, or for want of that by what was known.
    pub(crate) async fn is_good_still(&self, id: &KeyId) -> bool {
        match self.store.find_key(id).await {
            Ok(Some(record)) => matches!(record.standing, KeyStanding::Good(_)),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    fn find(&self, id: &KeyId) -> Option<Arc<Known>> {
        lock(&self.known).get(id).cloned()
    }

    /// A key that nobody has shown here. Only one that is good is remembered, so no guess takes any room.
    async fn look_up(&self, key: &Key) -> Result<Option<Arc<Known>>, StoreError> {
        // The semaphore is never closed.
        let _turn = self.look_ups.acquire().await;
        if let Some(known) = self.find(key.id()) {
            return Ok(Some(known));
        }
        let at = Instant::now();
        let Some(record) = self.store.find_key(key.id()).await? else {
            return Ok(None);
        };
        let read = Read::of(record, at);
        if !read.is_good(key, at) {
            return Ok(None);
        }
        let known = Arc::new(Known {
            read: Mutex::new(read),
            reading: tokio::sync::Mutex::default(),
            paces: Paces::default(),
            listeners: Arc::new(Semaphore::new(MAX_LISTENERS_OF_KEY)),
        });
        lock(&self.known).insert(key.id().clone(), Arc::clone(&known));
        Ok(Some(known))
    }

    /// What is known of a key, read again when that is old; `None` when it is gone.
    async fn current(&self, known: &Known, key: &Key) -> Result<Option<Read>, StoreError> {
        let read = lock(&known.read).clone();
        if read.at.elapsed() < FRESH {
            return Ok(Some(read));
        }
        let _reading = known.reading.lock().await;
        let read = lock(&known.read).clone();
        if read.at.elapsed() < FRESH {
            return Ok(Some(read));
        }
        let at = Instant::now();
        match self.store.find_key(key.id()).await {
            Ok(Some(record)) => {
                let mut newer = Read::of(record, at);
                newer.noted_at = lock(&known.read).noted_at;
                *lock(&known.read) = newer.clone();
                Ok(Some(newer))
            }
            Ok(None) => {
                lock(&self.known).remove(key.id());
                Ok(None)
            }
            // Who was let in a moment ago is let in as long as nobody can say otherwise.
            Err(error) if read.at.elapsed() < STALE => {
                debug!(key.id = %key.id(), error.message = %error, "a key counts as it was read before");
                Ok(Some(read))
            }
            Err(error) => Err(error),
        }
    }

    /// Has it noted that a key was used, now and then, beside the request.
    fn note_use(&self, known: &Known, id: &KeyId, ip: Option<&str>) {
        let now = Instant::now();
        {
            let mut read = lock(&known.read);
            if read.noted_at.is_some_and(|at| now - at < NOTED) {
                return;
            }
            read.noted_at = Some(now);
        }
        let (store, id, ip) = (Arc::clone(&self.store), id.clone(), ip.map(str::to_owned));
        tokio::spawn(async move {
            if let Err(error) = store.note_key_use(&id, ip.as_deref()).await {
                debug!(key.id = %id, error.message = %error, "the use of a key was not noted");
            }
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
