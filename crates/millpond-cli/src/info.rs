//! `millpond info`.
use crate::args::InfoArgs;
use crate::exit::{CliError, Exit};
pub(crate) fn command(_args: &InfoArgs) -> Result<Exit, CliError> {
    Ok(Exit::Done)
}
