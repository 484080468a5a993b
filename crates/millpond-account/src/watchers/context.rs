//! A value of the caller that is attached to each event of a pool.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A value that distinguishes events, such as a request's number or a step's name. It is set on a pool and attached to
/// every event of that pool, on any thread. Cloning is cheap.
///
/// ```
/// use millpond::event::Context;
///
/// assert_eq!(Context::from(7).number(), Some(7));
/// assert_eq!(Context::from("step 7").text(), Some("step 7"));
///
/// #[derive(Debug, PartialEq)]
/// struct Request { user: u32 }
/// let context = Context::new(Request { user: 3 });
/// assert_eq!(context.downcast_ref(), Some(&Request { user: 3 }));
/// ```
#[derive(Clone)]
pub struct Context(Value);

#[derive(Clone)]
enum Value {
    Number(u64),
    Text(Arc<str>),
    Other(Arc<dyn Any + Send + Sync>),
}

impl Context {
    /// Makes a context from any value.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self::from(Arc::new(value) as Arc<dyn Any + Send + Sync>)
    }

    /// Returns the number, if the context was made from one.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match &self.0 {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text, if the context was made from one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.0 {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value, if it has this type.
    #[must_use]
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        match &self.0 {
            Value::Number(number) => (number as &dyn Any).downcast_ref(),
            Value::Text(text) => (text as &dyn Any).downcast_ref(),
            Value::Other(value) => value.downcast_ref(),
        }
    }
}

impl From<u64> for Context {
    fn from(number: u64) -> Self {
        Self(Value::Number(number))
    }
}

impl From<&str> for Context {
    fn from(text: &str) -> Self {
        Self(Value::Text(text.into()))
    }
}

impl From<Arc<dyn Any + Send + Sync>> for Context {
    fn from(value: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Value::Other(value))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Value::Number(number) => write!(f, "Context({number})"),
            Value::Text(text) => write!(f, "Context({text:?})"),
            Value::Other(_) => f.write_str("Context(..)"),
        }
    }
}
