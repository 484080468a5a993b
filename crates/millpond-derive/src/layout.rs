//! Generates the layout of the structure, and the checks on it at compile time.

use crate::input::Input;
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;

pub(crate) fn expand(input: &Input) -> TokenStream {
    let Input {
        name, owner, krate, ..
    } = input;
    let described = input.fields.iter().map(|field| {
        let (field, ty) = (&field.name, &field.ty);
        let text = field.unraw().to_string();
        quote!(#krate::soa::SoaField::of::<#ty>(#text, ::core::mem::offset_of!(#name, #field)))
    });
    let names = input.fields.iter().map(|field| field.name.unraw().to_string());
    let names: Vec<_> = names.collect();
    let (field, column) = (input.names(), input.columns());
    let text = name.unraw().to_string();
    let sized = sized_fields(input);
    let unpadded = input.no_padding.then(|| unpadded(input));
    quote! {
        #sized
        #unpadded

        #[automatically_derived]
        impl #krate::Soa for #name {
            type Vec = #owner;
            const LAYOUT: #krate::soa::SoaLayout =
                #krate::soa::SoaLayout::of::<Self>(#text, &const { #krate::__soa::arrange::<Self, _>([#(#described),*]) });

            fn columns(arrays: &#owner) -> impl ::core::iter::Iterator<Item = (&'static str, &[u8])> {
                [#((#names, #column::bytes(&arrays.#field))),*].into_iter()
            }

            fn columns_mut(
                arrays: &mut #owner,
            ) -> impl ::core::iter::Iterator<Item = (&'static str, &mut [u8])> {
                [#((#names, #column::bytes_mut(&mut arrays.#field))),*].into_iter()
            }
        }
    }
}

/// Generates a check that each field has a size. The error points at the field's type.
fn sized_fields(input: &Input) -> TokenStream {
    let checks = input.fields.iter().map(|field| {
        let ty = &field.ty;
        let empty = format!(
            "field `{}` has zero size, so an array of it would be empty: remove the field",
            field.name
        );
        quote_spanned! {ty.span()=>
            const _: () = ::core::assert!(::core::mem::size_of::<#ty>() != 0, #empty);
        }
    });
    quote!(#(#checks)*)
}

/// Generates a check that no bytes are lost after any field. The error points at the field and states the number of bytes.
fn unpadded(input: &Input) -> TokenStream {
    let Input { name, krate, .. } = input;
    let checks = input.fields.iter().map(|field| {
        let field = &field.name;
        let lost = format!(
            "lost after field `{field}` of `{name}`: order the fields from the largest alignment to the smallest, \
             and declare a field for the bytes that remain"
        );
        quote_spanned! {field.span()=>
            const _: () = #krate::__soa::forbid_padding(
                #krate::__soa::padding_after(
                    &<#name as #krate::Soa>::LAYOUT,
                    ::core::mem::offset_of!(#name, #field),
                ),
                #lost,
            );
        }
    });
    quote!(#(#checks)*)
}
