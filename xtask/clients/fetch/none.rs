//! Nothing: this package names what is fetched.
