//! Compares sums with a naive oracle on random histories, and tests hostile recordings.

mod engine;
mod figures;
pub(in crate::analysis) mod made;
mod oracle;
mod sides;

use super::{By, Window};
