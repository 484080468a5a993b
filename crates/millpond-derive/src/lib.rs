//! `#[derive(Soa)]` and `#[limits]` of the crate `millpond`, whose documentation explains their use.
//!
//! ```text
//!   limits    a function whose body is checked against limits
//!
//!   input     valid inputs; everything that is refused, with the place of the error
//!   owned     the type that owns the fields' buffers
//!   views     references to one element and slices of several, and their iterators
//!   layout    the bytes that an array of the structure loses, and the checks at compile time
//! ```
//!
//! The generated code contains no unsafe code. Lengths that differ could give a wrong result, but never an invalid access.
// The examples use `millpond`, so that crate tests them. If the tests of this crate depended on `millpond`, it would be built a second
// time, because dependencies of a macro are built for the compiler.
#![forbid(unsafe_code)]

mod input;
mod layout;
mod limits;
mod owned;
#[cfg(test)]
mod tests;
mod views;

use input::Input;
use proc_macro2::TokenStream;
use quote::quote;
use syn::DeriveInput;

#[cfg_attr(not(doctest), doc = include_str!("soa.md"))]
#[proc_macro_derive(Soa, attributes(soa))]
pub fn derive_soa(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(item.into())
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

#[cfg_attr(not(doctest), doc = include_str!("limits.md"))]
#[proc_macro_attribute]
pub fn limits(
    options: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    limits::expand(options.into(), function.into())
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

fn expand(item: TokenStream) -> syn::Result<TokenStream> {
    let input = Input::read(syn::parse2::<DeriveInput>(item)?)?;
    let (owned, views, layout) = (
        owned::expand(&input),
        views::expand(&input),
        layout::expand(&input),
    );
    Ok(quote!(#owned #views #layout))
}
