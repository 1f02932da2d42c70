//! The routes: what each answers, and what stands before all of them.

mod actions;
mod admin;
mod audit;
mod cluster;
mod dead_letters;
mod events;
mod exchange;
mod executions;
mod explain;
mod holders;
mod keys;
mod operations;
mod pauses;
mod policies;
mod probes;
mod queues;
mod resubmit;
pub(crate) mod submit;
mod worker;

use std::sync::Arc;

use attune_core::Network;
use attune_runtime::http::refuse_foreign;
use axum::Router;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::IntoResponse;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::error;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::answers::AnswerMemory;
use crate::aside::{Aside, Kind, Line};
use crate::auth::waiting::WaitingSums;
use crate::auth::{self, Gate};
use crate::budget::{Budget, SMALL_BODY, Share};
use crate::catalog::Catalog;
use crate::error::ApiError;
use crate::events::Events;
use crate::figures::ApiFigures;
use crate::layers;
use crate::options::ApiOptions;
use crate::policies::{KnownPolicies, Turns};
use crate::polls::Polls;
use crate::ports::Ports;
use crate::reference;

pub use queues::{Verdict, verdicts};

/// What every handler can reach.
pub(crate) type App = Arc<Shared>;

pub(crate) struct Shared {
    pub(crate) options: ApiOptions,
    pub(crate) ports: Ports,
    pub(crate) catalog: Catalog,
    pub(crate) policies: KnownPolicies,
    pub(crate) policy_turns: Turns,
    pub(crate) memory: AnswerMemory,
    pub(crate) aside: Arc<Aside>,
    /// How many executions of keys wait that are bounded.
    pub(crate) waiting: Arc<WaitingSums>,
    /// In which documents that are large are read.
    documents: Line,
    /// The bytes of all bodies.
    pub(crate) bodies: Budget,
    /// What happens.
    pub(crate) events: Arc<Events>,
    /// A permit for each who listens to that.
    pub(crate) listeners: Arc<Semaphore>,
    /// The links of workers that speak HTTP alone.
    pub(crate) polls: Arc<Polls>,
}

impl Shared {
    /// Until when the schemas of a request that comes now may be worked on.
    pub(crate) fn check_deadline(&self) -> Instant {
        Instant::now() + self.options.check_timeout
    }

    /// Reads a body by `read`, which may take many times its length: one that is large beside the threads that serve
    /// requests, and one after the other. In a process that is an executor as well they serve its queues.
    ///
    /// # Errors
    /// What `read` says; 503 `OVERLOADED` with `problem` when it had not ended in time.
    async fn read_document<T: Send + 'static>(
        &self,
        body: Bytes,
        problem: &str,
        read: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Share), ApiError> {
        let deadline = self.check_deadline();
        let share = self
            .aside
            .parsed
            .take(body.len(), deadline, problem)
            .await?;
        if body.len() <= SMALL_BODY {
            return Ok((read(&body)?, share));
        }
        // The share is held already, so that what was read counts until it is dropped.
        let (aside, line) = (&self.aside, (&self.documents, Kind::Plain));
        let read = aside.run(line, 0, deadline, problem, move || read(&body));
        Ok((read.await??, share))
    }
}

/// All routes without a socket. `extra` is served beside them, without the bounds on load and
/// time; it must not have a fallback.
///
/// # Panics
/// When `extra` has a path of the API.
pub fn router(options: ApiOptions, ports: Ports, extra: Router) -> Router {
    router_until(CancellationToken::new(), options, ports, extra)
}

/// The same, where whoever waits for something to happen is answered at once when `stop` comes.
pub(crate) fn router_until(
    stop: CancellationToken,
    options: ApiOptions,
    ports: Ports,
    extra: Router,
) -> Router {
    let permits = Arc::new(Semaphore::new(options.max_requests));
    let request_timeout = options.request_timeout();
    let gate = Gate::new(options.auth, options.rates, &ports);
    let network = options.asked_by_names_of();
    let aside = Arc::new(Aside::new());
    let catalog = Catalog::new(ports.actions.clone(), Arc::clone(&aside));
    let events = Events::new(Arc::clone(&ports.bus));
    let polls = Polls::new(Arc::clone(&ports.bus), options.max_message_bytes, stop);
    let app: App = Arc::new(Shared {
        options,
        ports,
        catalog,
        policies: KnownPolicies::default(),
        policy_turns: Turns::new(),
        memory: AnswerMemory::new(),
        aside,
        waiting: Arc::default(),
        documents: Line::default(),
        bodies: Budget::of_bodies(),
        events,
        listeners: events::listeners(),
        polls,
    });
    let figures = Arc::clone(&app.ports.figures);
    let (probes, of_probes) = probes(app.ports.clone()).split_for_parts();
    let (api, mut described) = api(app).split_for_parts();
    described.merge(of_probes);
    let api = api
        .merge(reference::routes(described))
        .layer(middleware::from_fn(layers::refuse_conditions))
        .layer(middleware::from_fn_with_state(
            request_timeout,
            layers::bound_time,
        ))
        .layer(middleware::from_fn_with_state(permits, layers::bound_load));
    let routes = api.merge(probes).merge(extra);
    layered(
        (network, figures),
        routes.layer(middleware::from_fn_with_state(Arc::new(gate), auth::admit)),
    )
}

/// The probes, and what `extra` adds to them, without the API.
pub(crate) fn ops_routes(network: Network, ports: Ports, extra: Router) -> Router {
    let figures = Arc::clone(&ports.figures);
    layered(
        (Some(network), figures),
        Router::from(probes(ports)).merge(extra),
    )
}

fn probes(ports: Ports) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .with_state(ports)
}

/// What stands before every route of a listener that must be asked for by names of a network, if it must.
fn layered((network, figures): (Option<Network>, Arc<ApiFigures>), routes: Router) -> Router {
    let mut routes = routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(layers::on_panic));
    if let Some(network) = network {
        routes = routes.layer(middleware::from_fn_with_state(network, refuse_foreign));
    }
    routes.layer(middleware::from_fn_with_state(figures, layers::observe))
}

fn api(app: App) -> OpenApiRouter {
    let v1 = OpenApiRouter::new()
        .routes(routes!(submit::submit, executions::list))
        .routes(routes!(executions::show))
        .routes(routes!(executions::cancel))
        .routes(routes!(events::listen))
        .routes(routes!(resubmit::resubmit))
        .routes(routes!(explain::explain))
        .routes(routes!(holders::release))
        .routes(routes!(actions::list))
        .routes(routes!(actions::show, actions::apply))
        .routes(routes!(queues::show))
        .routes(routes!(holders::list))
        .routes(routes!(queues::list))
        .routes(routes!(pauses::list))
        .routes(routes!(pauses::hold, pauses::resume))
        .routes(routes!(pauses::hold_all, pauses::resume_all))
        .routes(routes!(policies::list, policies::apply_many))
        .routes(routes!(
            policies::show_global,
            policies::apply_global,
            policies::remove_global
        ))
        .routes(routes!(policies::global_versions))
        .routes(routes!(policies::show, policies::apply, policies::remove))
        .routes(routes!(policies::versions))
        .routes(routes!(operations::begin, operations::list))
        .routes(routes!(operations::preview))
        .routes(routes!(operations::show))
        .routes(routes!(admin::list))
        .routes(routes!(admin::queue))
        .routes(routes!(admin::set_priority))
        .routes(routes!(cluster::show))
        .routes(routes!(audit::list))
        .routes(routes!(audit::check))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::show))
        .routes(routes!(dead_letters::requeue))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::rotate))
        .routes(routes!(keys::revoke))
        .routes(routes!(worker::lease))
        .routes(routes!(worker::retire))
        .routes(routes!(exchange::exchange))
        .with_state(app);
    OpenApiRouter::new().nest("/api/v1", v1)
}

async fn not_found() -> impl IntoResponse {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "NOT_FOUND",
        "there is nothing at this path; /docs at the address of the API (api.listen) describes \
         what there is",
    )
}

async fn method_not_allowed() -> impl IntoResponse {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        "this path does not take this method; the header `Allow` says which it takes",
    )
}

/// What is to be answered when a task that did the work of a request did not come to its end.
pub(crate) fn lost_task(error: JoinError) -> ApiError {
    error!(error.message = %error, "the task of a request did not end");
    ApiError::internal()
}
