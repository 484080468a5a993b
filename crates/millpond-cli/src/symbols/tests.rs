//! Names for addresses of this very process.
