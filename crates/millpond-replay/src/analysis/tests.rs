//! Sums against a naive oracle on random histories, and recordings that mean harm.

mod engine;
mod figures;
pub(in crate::analysis) mod made;
mod oracle;
mod sides;

use super::{By, Window};
