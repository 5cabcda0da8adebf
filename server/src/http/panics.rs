//! Handlers that panic: the client gets a 500 answer, a metric counts it, one line is logged, and other requests go on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use tower_http::catch_panic::{CatchPanicLayer, ResponseForPanic};

use super::state::AppState;
use super::transport::Transport;
use super::wrapped_body::{PolledFrame, WrappedBody, Wrapper};
use crate::api_error::ApiError;
use crate::openai::events::Events;

/// Answers 500 for a handler that panics.
pub fn catch_panics(transport: &Arc<Transport>) -> CatchPanicLayer<Answerer> {
    CatchPanicLayer::custom(Answerer(Arc::clone(transport)))
}

/// Makes the answer, and counts.
#[derive(Clone)]
pub struct Answerer(Arc<Transport>);

impl ResponseForPanic for Answerer {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, _: Box<dyn Any + Send + 'static>) -> Response {
        self.0.count_panic();
        failed().into_response()
    }
}

// The panic's message may hold text of the request, so it goes into the log only.
fn failed() -> ApiError {
    let message = "the server failed on this request by a defect of its own; its log says where";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).with_code("internal_error")
}

/// Watches over the bodies of answers, which are made after their handler has returned.
pub async fn catch_body_panics(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let is_event_stream = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    let transport = Arc::clone(&state.transport);
    let guard = Guard {
        transport,
        is_event_stream,
    };
    response.map(|inner| Body::new(WrappedBody::new(inner, guard)))
}

/// Ends a body that panics: with an event where the client reads events, else as a broken connection.
struct Guard {
    transport: Arc<Transport>,
    is_event_stream: bool,
}

impl Wrapper for Guard {
    fn poll_frame(&mut self, inner: &mut Body, cx: &mut Context<'_>) -> PolledFrame {
        // A handler that panicked is not polled again.
        if let Ok(polled) = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *inner).poll_frame(cx))) {
            return polled;
        }
        let broken = std::mem::take(inner);
        // Its drop may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        self.transport.count_panic();
        Poll::Ready(Some(if self.is_event_stream {
            Ok(Frame::data(Bytes::from(Events::failure(&failed()))))
        } else {
            Err(axum::Error::new(std::io::Error::other("the answer broke off")))
        }))
    }
}
