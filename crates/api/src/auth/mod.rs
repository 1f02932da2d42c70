//! Who asks, and whether they may: what stands before every endpoint.
//!
//! A request shows its key as `Authorization: Bearer atk_…`. Without one it comes from somebody on this machine
//! where [`Auth::Off`] is set, and from nobody otherwise. The [table](access) says what each
//! endpoint needs; a route that does not stand there is refused to everybody.

pub(crate) mod access;
mod failures;
mod known;
mod lives;
pub(crate) mod waiting;

use std::sync::Arc;
use std::time::Duration;

use attune_core::input::check_text;
use attune_core::{Asker, Auth, PolicyTarget, RequestId, WaitBound};
use attune_identity::{Key, Permission, Principal, Rate, Rates};
use attune_runtime::http::Client;
use attune_store::{Actor, ActorKind, AuditStore, NewAudit, Origin, Via, What};
use axum::extract::{FromRequestParts, MatchedPath, OptionalFromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use self::access::{Class, Need};
use self::failures::{Failed, Failures};
use self::known::{Known, KnownKeys};
use crate::error::ApiError;
use crate::ports::Ports;

/// Who does something where nobody needs a key and no name is given.
const NOBODY: &str = "api";

/// How much may be asked for, unless a key says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientRates {
    /// How many executions one key may ask for.
    pub submit: Rate,
    /// How many questions it may ask.
    pub read: Rate,
    /// How many other changes it may make.
    pub change: Rate,
    /// How many keys one address may try in a minute that are not good.
    pub failures_per_minute: u32,
}

impl Default for ClientRates {
    fn default() -> Self {
        let rate = |per_second, burst| Rate { per_second, burst };
        Self {
            submit: rate(1000, 5000),
            read: rate(50, 100),
            change: rate(10, 50),
            failures_per_minute: 10,
        }
    }
}

/// Tells who asks, and lets through who may.
pub(crate) struct Gate {
    auth: Auth,
    rates: ClientRates,
    keys: KnownKeys,
    failures: Failures,
    audit: Arc<dyn AuditStore>,
    local: Arc<Principal>,
    began: Instant,
}

/// The machine from which a request comes, as far as it is known.
pub(crate) type Peer = Option<std::net::IpAddr>;

impl Gate {
    pub(crate) fn new(auth: Auth, rates: ClientRates, ports: &Ports) -> Self {
        Self {
            audit: ports.audit.clone(),
            auth,
            rates,
            keys: KnownKeys::new(ports.keys.clone()),
            failures: Failures::new(rates.failures_per_minute),
            local: Arc::new(Principal::local()),
            began: Instant::now(),
        }
    }

    /// Who asks; `None` for somebody who shows no key where one is needed.
    async fn identify(
        self: &Arc<Self>,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<Option<Caller>, ApiError> {
        let Some(key) = shown_key(headers)? else {
            let local = (self.auth == Auth::Off).then(|| Caller {
                principal: Arc::clone(&self.local),
                known: None,
                peer,
                gate: Arc::clone(self),
            });
            return Ok(local);
        };
        let key: Key = match key.parse() {
            Ok(key) => key,
            Err(_) => return Err(self.failed(peer)),
        };
        // Who has tried many keys is not let try others; whose key is known is not kept out by that.
        if !self.keys.knows(key.id()) && self.failures.are_many(peer, self.since()) {
            return Err(too_many_failures());
        }
        let ip = peer.map(|ip| ip.to_string());
        match self.keys.identify(&key, ip.as_deref()).await? {
            Some((principal, known)) => Ok(Some(Caller {
                principal,
                known: Some(known),
                peer,
                gate: Arc::clone(self),
            })),
            None => {
                debug!(key.id = %key.id(), peer = ?peer, "a key was not accepted");
                Err(self.failed(peer))
            }
        }
    }

    /// Notes that a key was not accepted.
    fn failed(&self, peer: Peer) -> ApiError {
        let failed = self.failures.note(peer, self.since());
        if failed == Failed::First {
            self.note_denied(peer);
        }
        match failed {
            Failed::TooOften => too_many_failures(),
            Failed::First | Failed::Again => unauthenticated(
                "this key is not accepted; keys are made with `attune keys create` and listed with \
                 `attune keys list`",
            ),
        }
    }

    /// Writes down, beside the request, that somebody has shown a key that is not good.
    fn note_denied(&self, peer: Peer) {
        let entry = NewAudit {
            request_id: RequestId::fresh(),
            who: Actor {
                name: NOBODY.to_owned(),
                origin: Origin {
                    address: peer,
                    via: Some(Via::Http),
                    ..Origin::default()
                },
            },
            what: What::AuthDenied,
            target: peer.map_or_else(|| "unknown".to_owned(), |ip| ip.to_string()),
            reason: None,
            before: None,
            after: None,
        };
        let audit = Arc::clone(&self.audit);
        tokio::spawn(async move {
            if let Err(error) = audit.note_audit(&entry).await {
                warn!(peer = entry.target, error.message = %error, "a key that is not good was shown, and that could not be written down");
            }
        });
    }

    fn since(&self) -> Duration {
        self.began.elapsed()
    }

    fn rate(&self, class: Class, own: Rates) -> Option<Rate> {
        match class {
            Class::Submit => Some(own.submit.unwrap_or(self.rates.submit)),
            Class::Read => Some(own.read.unwrap_or(self.rates.read)),
            Class::Change => Some(own.change.unwrap_or(self.rates.change)),
            Class::Work => None,
        }
    }
}

/// What the headers show as a key, if they show anything; what is shown in another form is refused.
fn shown_key(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(unauthenticated("the header `Authorization` is given twice"));
    }
    let text = value.to_str().unwrap_or_default();
    let (scheme, key) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(unauthenticated(
            "the header `Authorization` shows no key; it has the form `Bearer atk_…`",
        ));
    }
    Ok(Some(key.trim()))
}

pub(crate) fn unauthenticated(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
}

fn rate_limited(words: String, wait: Duration) -> ApiError {
    let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", words);
    let seconds = wait.as_millis().div_ceil(1000);
    error.detail.retry_after_seconds = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
    error
}

fn too_many_failures() -> ApiError {
    let words = "too many keys that are not good came from this address; try again in a minute";
    rate_limited(words.to_owned(), Duration::from_secs(60))
}

fn forbidden(permission: &str, message: String) -> ApiError {
    debug!(permission, "a request was not allowed");
    ApiError::new(StatusCode::FORBIDDEN, "FORBIDDEN", message)
}

/// Whoever makes a request.
#[derive(Clone)]
pub(crate) struct Caller {
    principal: Arc<Principal>,
    known: Option<Arc<Known>>,
    peer: Peer,
    gate: Arc<Gate>,
}

/// Nobody is known to make a request, where a key would be needed to hear more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anonymous;

impl Caller {
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Refuses what none of these permissions allows.
    pub(crate) fn needs(&self, any: &[Permission]) -> Result<(), ApiError> {
        if any.iter().any(|it| self.principal.may(*it)) {
            return Ok(());
        }
        let names: Vec<_> = any.iter().map(|it| format!("`{}`", it.name())).collect();
        let name = self.principal.name();
        Err(forbidden(
            &names.join(", "),
            format!(
                "the key of {name} lacks the permission {}, which this needs; docs/SECURITY.md says which \
                 roles have it",
                names.join(" or ")
            ),
        ))
    }

    /// Counts `cost` more of a request against the rate of the key.
    pub(crate) fn charge(&self, class: Class, cost: u32) -> Result<(), ApiError> {
        let Some(known) = &self.known else {
            return Ok(());
        };
        let Some(rate) = self.gate.rate(class, self.principal.grants().rates) else {
            return Ok(());
        };
        let (pace, what) = match class {
            Class::Submit => (&known.paces.submit, "executions"),
            Class::Read => (&known.paces.read, "questions"),
            Class::Change | Class::Work => (&known.paces.change, "changes"),
        };
        let taken = pace.take(rate, cost, self.gate.since());
        taken.map_err(|wait| {
            let words = format!(
                "the key of {} may ask for {} {what} a second, and for {} at once; nothing was done",
                self.principal.name(),
                rate.per_second,
                rate.burst
            );
            rate_limited(words, wait)
        })
    }

    /// Whether its key is good still, for what goes on after it was let in. While nobody can say otherwise it is.
    pub(crate) async fn is_good_still(&self) -> bool {
        match self.principal.key() {
            None => true,
            Some(id) => self.gate.keys.is_good_still(id).await,
        }
    }

    /// Who is written down as having done what is asked.
    pub(crate) fn who(&self, said: Option<String>) -> Result<Actor, ApiError> {
        if let Some(said) = &said {
            check_text("who", said)?;
        }
        let who = self.principal.answers_for(said);
        Ok(self.named(who.unwrap_or_else(|| NOBODY.to_owned())))
    }

    /// The caller under this name, with how it is known.
    pub(crate) fn named(&self, name: String) -> Actor {
        let key = self.principal.key();
        Actor {
            name,
            origin: Origin {
                kind: Some(match key {
                    Some(_) => ActorKind::Key,
                    None => ActorKind::Local,
                }),
                key: key.map(ToString::to_string),
                address: self.peer,
                via: Some(Via::Http),
            },
        }
    }

    /// In whose name executions are asked for.
    pub(crate) fn requested_by(&self, given: Option<String>) -> Result<Option<String>, ApiError> {
        self.principal.speaks_for(given).map_err(|_| {
            let name = self.principal.name();
            ApiError {
                status: StatusCode::FORBIDDEN,
                ..ApiError::field(
                    "requested_by",
                    format!(
                        "the key of {name} asks in no other name; leave `requested_by` out, or make a key \
                         with `--impersonate`"
                    ),
                )
            }
            .with_code("FORBIDDEN")
        })
    }

    /// How many of its executions may wait at once, if that is bounded.
    pub(crate) fn wait_bound(&self) -> Option<WaitBound> {
        let max_waiting = self.principal.grants().max_waiting?;
        Some(WaitBound {
            asker: Asker::of(self.principal.name()),
            max_waiting,
        })
    }

    /// The id under which a request is known: clients cannot meet the requests of each other.
    pub(crate) fn own_request(&self, id: RequestId) -> RequestId {
        match self.principal.key() {
            Some(_) => id.of_principal(self.principal.name()),
            None => id,
        }
    }

    /// Whose lives of workers are those that it registers: they are nobody else's from then on.
    pub(crate) fn owner_of_lives(&self) -> Option<String> {
        let key = self.principal.key();
        key.map(|_| self.principal.name().to_owned())
    }

    /// Refuses to end a life that somebody else has registered.
    pub(crate) fn not_its_life(&self) -> ApiError {
        let name = self.principal.name();
        let words = format!("this life of a worker was not registered by {name}");
        forbidden(Permission::Work.name(), words)
    }

    /// Refuses an action that the key is not for.
    pub(crate) fn check_action(&self, action_ref: &str) -> Result<(), ApiError> {
        if self.principal.is_for_action(action_ref) {
            return Ok(());
        }
        let name = self.principal.name();
        let words = format!("the key of {name} is not for the action {action_ref}");
        Err(forbidden("actions", words))
    }

    /// Refuses a pool that the key is not for.
    pub(crate) fn check_pool(&self, pool: &str) -> Result<(), ApiError> {
        if self.principal.is_for_pool(pool) {
            return Ok(());
        }
        let name = self.principal.name();
        let words = format!("the key of {name} is not for the pool {pool}");
        Err(forbidden("pools", words))
    }

    /// Refuses a policy document that holds for other actions than those of the key.
    pub(crate) fn check_policy(&self, target: &PolicyTarget) -> Result<(), ApiError> {
        match target {
            PolicyTarget::Action(action_ref) => self.check_action(action_ref.as_str()),
            PolicyTarget::Pack(pack) => self.check_action(&format!("{pack}.*")),
            // Only a pattern for all actions fits this.
            PolicyTarget::Global | PolicyTarget::User(_) => self.check_action("*"),
        }
    }

    /// Whether an action is to be seen.
    pub(crate) fn is_shown(&self, action_ref: &str) -> bool {
        self.principal.may(Permission::Read) || self.principal.is_for_action(action_ref)
    }

    /// Whose executions are listed: of who sees only its own, those.
    pub(crate) fn user_of_list(&self, asked: Option<String>) -> Result<Option<String>, ApiError> {
        if !self.principal.sees_only_its_own() {
            return Ok(asked);
        }
        let own = self.principal.name();
        match asked {
            Some(asked) if asked != own => {
                let words =
                    format!("the key of {own} sees its own executions only; leave `user` out");
                Err(forbidden(Permission::Read.name(), words))
            }
            _ => Ok(Some(own.to_owned())),
        }
    }

    /// Whether it sees nothing of what others have asked for.
    pub(crate) fn sees_only_its_own(&self) -> bool {
        self.principal.sees_only_its_own()
    }

    /// Whether an execution is to be seen that was asked for in this name.
    pub(crate) fn sees(&self, requested_by: Option<&str>) -> bool {
        !self.sees_only_its_own() || requested_by == Some(self.principal.name())
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| unauthenticated(NO_KEY))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Anonymous {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, ApiError> {
        Ok(parts.extensions.get().copied())
    }
}

const NO_KEY: &str =
    "a key is needed: `Authorization: Bearer atk_…`, as `attune keys create` makes it";

/// Lets through who may do what a request asks for, with a [`Caller`] for its handler.
pub(crate) async fn admit(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else {
        // There is nothing at this path.
        return next.run(request).await;
    };
    // Not the request itself: its body cannot be looked at by two threads.
    let asked = Asked {
        method: request.method(),
        headers: request.headers(),
        peer: peer_of(&request),
    };
    match judge(&gate, asked, path.as_str()).await {
        Ok(Some(caller)) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Ok(None) => {
            request.extensions_mut().insert(Anonymous);
            next.run(request).await
        }
        Err(refusal) => told(refusal),
    }
}

/// What is looked at of a request.
struct Asked<'a> {
    method: &'a Method,
    headers: &'a HeaderMap,
    peer: Peer,
}

async fn judge(gate: &Arc<Gate>, asked: Asked<'_>, path: &str) -> Result<Option<Caller>, ApiError> {
    let caller = gate.identify(asked.headers, asked.peer).await?;
    let any = match access::find(asked.method, path) {
        Some(Need::Nothing) => return Ok(caller),
        Some(Need::AnyOf(any)) => any,
        None => {
            error!(
                http.route = path,
                "a route that nobody may use: it is missing in the table of endpoints"
            );
            return Err(forbidden(path, "nobody may use this path".to_owned()));
        }
    };
    let caller = caller.ok_or_else(|| unauthenticated(NO_KEY))?;
    caller.needs(any)?;
    match access::class(asked.method, Need::AnyOf(any)) {
        // As many as it asks for, which the handler knows.
        Class::Submit => {}
        class => caller.charge(class, 1)?,
    }
    Ok(Some(caller))
}

/// The machine from which a request comes.
fn peer_of(request: &Request) -> Peer {
    request.extensions().get::<Client>().map(|client| client.0)
}

/// A refusal with the header that belongs to it.
fn told(refusal: ApiError) -> Response {
    let status = refusal.status;
    let mut response = refusal.into_response();
    if status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}
