//! Generates references to one element, slices of several, and the iterators over them.
//!
//! Their fields are as visible as those of the structure, so a user may store shorter slices in them. Every method uses the
//! length of the shortest slice.

use crate::input::Input;
use proc_macro2::TokenStream;
use quote::quote;

pub(crate) fn expand(input: &Input) -> TokenStream {
    let (references, shared, exclusive) = (references(input), shared(input), exclusive(input));
    let iterators = [
        iterator(input, &Iterated::shared(input)),
        iterator(input, &Iterated::exclusive(input)),
    ];
    quote!(#references #shared #exclusive #(#iterators)*)
}

/// Generates the references to the fields of one element.
fn references(input: &Input) -> TokenStream {
    let Input {
        vis,
        name,
        one,
        one_mut,
        ..
    } = input;
    let (field, ty) = (input.names(), input.types());
    let column = input.columns();
    let declared = declared(input);
    let get = quote! {
        /// Returns a copy of the element.
        #[must_use]
        #[inline]
        pub fn get(&self) -> #name {
            #name { #(#field: #column::copy(self.#field),)* }
        }
    };
    let doc = format!("References to the fields of one [`{name}`] in a structure of arrays.");
    let doc_mut =
        format!("References to the fields of one [`{name}`] in a structure of arrays, to write them.");
    quote! {
        #[doc = #doc]
        #[derive(Clone, Copy)]
        #vis struct #one<'a> {
            #(#declared: &'a #ty,)*
        }

        #[automatically_derived]
        #[allow(dead_code, unreachable_pub)]
        impl #one<'_> {
            #get
        }

        #[doc = #doc_mut]
        #vis struct #one_mut<'a> {
            #(#declared: &'a mut #ty,)*
        }

        #[automatically_derived]
        #[allow(dead_code, unreachable_pub)]
        impl #one_mut<'_> {
            #get

            /// Writes every field.
            #[inline]
            pub fn set(&mut self, value: #name) {
                #(*self.#field = value.#field;)*
            }
        }
    }
}

/// Generates the shared slices.
fn shared(input: &Input) -> TokenStream {
    let Input {
        vis,
        name,
        one,
        slices,
        iter,
        ..
    } = input;
    let (field, ty) = (input.names(), input.types());
    let declared = declared(input);
    let doc = format!("A slice of each field of several [`{name}`] in a structure of arrays.");
    let common = common(input);
    let traits = slice_traits(input, slices);
    quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, Default)]
        #vis struct #slices<'a> {
            #(#declared: &'a [#ty],)*
        }

        #[automatically_derived]
        #[allow(dead_code, unreachable_pub)]
        impl<'a> #slices<'a> {
            #common

            /// Returns references to an element's fields, or `None` if there is no such element.
            #[must_use]
            #[inline]
            pub fn get_ref(&self, index: usize) -> ::core::option::Option<#one<'a>> {
                ::core::option::Option::Some(#one {
                    #(#field: self.#field.get(index)?,)*
                })
            }

            /// Returns an iterator over references to each element's fields, in order.
            #[must_use]
            #[inline]
            pub fn iter(&self) -> #iter<'a> {
                ::core::iter::IntoIterator::into_iter(*self)
            }
        }

        #traits
    }
}

/// Generates the mutable slices.
fn exclusive(input: &Input) -> TokenStream {
    let Input {
        vis,
        name,
        one,
        one_mut,
        slices,
        slices_mut,
        iter,
        iter_mut,
        krate,
        ..
    } = input;
    let (field, ty) = (input.names(), input.types());
    let declared = declared(input);
    let doc = format!(
        "A slice of each field of several [`{name}`] in a structure of arrays, all of them to be written at once; by \
         another thread if wanted."
    );
    let common = common(input);
    let traits = slice_traits(input, slices_mut);
    quote! {
        #[doc = #doc]
        #[derive(Default)]
        #vis struct #slices_mut<'a> {
            #(#declared: &'a mut [#ty],)*
        }

        #[automatically_derived]
        #[allow(dead_code, unreachable_pub)]
        impl<'a> #slices_mut<'a> {
            #common

            /// Returns the same slices as shared slices.
            #[must_use]
            #[inline]
            pub fn as_slices(&self) -> #slices<'_> {
                #slices { #(#field: self.#field,)* }
            }

            /// Reborrows the slices.
            #[must_use]
            #[inline]
            pub fn reborrow(&mut self) -> #slices_mut<'_> {
                #slices_mut { #(#field: self.#field,)* }
            }

            /// Returns references to an element's fields, or `None` if there is no such element.
            #[must_use]
            #[inline]
            pub fn get_ref(&self, index: usize) -> ::core::option::Option<#one<'_>> {
                self.as_slices().get_ref(index)
            }

            /// Returns mutable references to an element's fields, or `None` if there is no such element.
            #[must_use]
            #[inline]
            pub fn get_mut(&mut self, index: usize) -> ::core::option::Option<#one_mut<'_>> {
                ::core::option::Option::Some(#one_mut {
                    #(#field: self.#field.get_mut(index)?,)*
                })
            }

            /// Writes every field of an element.
            ///
            /// # Errors
            /// Returns an error if there is no such element.
            #[inline]
            pub fn set(
                &mut self,
                index: usize,
                value: #name,
            ) -> ::core::result::Result<(), #krate::soa::SoaIndexError> {
                let len = self.len();
                let mut place = self.get_mut(index).ok_or(#krate::soa::SoaIndexError { index, len })?;
                place.set(value);
                ::core::result::Result::Ok(())
            }

            /// Returns an iterator over references to each element's fields, in order.
            #[must_use]
            #[inline]
            pub fn iter(&self) -> #iter<'_> {
                self.as_slices().iter()
            }

            /// Returns an iterator over mutable references to each element's fields, in order.
            #[must_use]
            #[inline]
            pub fn iter_mut(&mut self) -> #iter_mut<'_> {
                ::core::iter::IntoIterator::into_iter(self.reborrow())
            }
        }

        #traits
    }
}

/// Generates the methods of both kinds of slices. `split_at` uses the slices' `split_at` or `split_at_mut`, depending on the
/// type.
fn common(input: &Input) -> TokenStream {
    let Input { name, krate, .. } = input;
    let (field, local) = (input.names(), input.locals());
    let column = input.columns();
    quote! {
        /// Returns the number of elements.
        #[must_use]
        #[inline]
        pub fn len(&self) -> usize {
            usize::MAX #(.min(self.#field.len()))*
        }

        /// Returns whether there are no elements.
        #[must_use]
        #[inline]
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Returns a copy of an element, or `None` if there is no such element.
        #[must_use]
        #[inline]
        pub fn get(&self, index: usize) -> ::core::option::Option<#name> {
            ::core::option::Option::Some(#name {
                #(#field: #column::copy(self.#field.get(index)?),)*
            })
        }

        /// Splits the elements before index `mid`. If there are fewer elements, all of them are in the first part.
        #[must_use]
        pub fn split_at(self, mid: usize) -> (Self, Self) {
            let mid = mid.min(self.len());
            #(let #local = #krate::__soa::Cut::cut(self.#field, mid);)*
            (Self { #(#field: #local.0,)* }, Self { #(#field: #local.1,)* })
        }

        /// Returns an iterator over parts of `len` elements. The last part may have fewer. A length of 0 means 1.
        pub fn chunks(self, len: usize) -> #krate::soa::SoaChunks<Self> {
            #krate::__soa::chunks(self, len)
        }

        /// Returns the elements as an array of structures, in memory of the global allocator.
        #[must_use]
        pub fn to_vec(&self) -> ::std::vec::Vec<#name> {
            ::core::iter::Iterator::collect(::core::iter::Iterator::map(self.iter(), |element| element.get()))
        }
    }
}

fn slice_traits(input: &Input, slices: &syn::Ident) -> TokenStream {
    let text = slices.to_string();
    let iterated = if *slices == input.slices {
        Iterated::shared(input)
    } else {
        Iterated::exclusive(input)
    };
    let Iterated { iter, item, .. } = &iterated;
    let zipped = zipped(input, &iterated);
    let krate = &input.krate;
    quote! {
        #[automatically_derived]
        impl #krate::__soa::Split for #slices<'_> {
            fn elements(&self) -> usize {
                self.len()
            }

            fn split(self, mid: usize) -> (Self, Self) {
                self.split_at(mid)
            }
        }

        #[automatically_derived]
        impl ::core::fmt::Debug for #slices<'_> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(#text).field("len", &self.len()).finish_non_exhaustive()
            }
        }

        #[automatically_derived]
        impl<'a> ::core::iter::IntoIterator for #slices<'a> {
            type Item = #item<'a>;
            type IntoIter = #iter<'a>;

            #[inline]
            fn into_iter(self) -> Self::IntoIter {
                #iter(#zipped)
            }
        }
    }
}

/// One of the two iterators.
struct Iterated<'i> {
    iter: &'i syn::Ident,
    item: &'i syn::Ident,
    /// The standard library's iterator over one field.
    of_field: TokenStream,
    /// The slice method that returns this iterator.
    method: TokenStream,
    clone: bool,
}

impl<'i> Iterated<'i> {
    fn shared(input: &'i Input) -> Self {
        Self {
            iter: &input.iter,
            item: &input.one,
            of_field: quote!(::core::slice::Iter),
            method: quote!(iter),
            clone: true,
        }
    }

    fn exclusive(input: &'i Input) -> Self {
        Self {
            iter: &input.iter_mut,
            item: &input.one_mut,
            of_field: quote!(::core::slice::IterMut),
            method: quote!(iter_mut),
            clone: false,
        }
    }
}

/// Generates the zipped iterators of all fields. The compiler merges their indices into one.
fn zipped(input: &Input, of: &Iterated<'_>) -> TokenStream {
    let method = &of.method;
    let each = input.fields.iter().map(|field| {
        let field = &field.name;
        quote!(self.#field.#method())
    });
    each.reduce(|zipped, next| quote!(::core::iter::Iterator::zip(#zipped, #next)))
        .unwrap_or_default()
}

fn iterator(input: &Input, of: &Iterated<'_>) -> TokenStream {
    let Input { vis, name, .. } = input;
    let Iterated {
        iter,
        item,
        of_field,
        clone,
        ..
    } = of;
    let (field, local) = (input.names(), input.locals());
    let types = input.fields.iter().map(|field| {
        let ty = &field.ty;
        quote!(#of_field<'a, #ty>)
    });
    let inner = types.reduce(|zipped, next| quote!(::core::iter::Zip<#zipped, #next>));
    let pattern = local
        .iter()
        .map(|local| quote!(#local))
        .reduce(|zipped, next| quote!((#zipped, #next)));
    let doc = format!("An iterator over [`{name}`] in a structure of arrays.");
    let derive = clone.then(|| quote!(#[derive(Clone)]));
    let made = quote!(|#pattern| #item { #(#field: #local,)* });
    quote! {
        #[doc = #doc]
        #derive
        #[must_use]
        #vis struct #iter<'a>(#inner);

        #[automatically_derived]
        impl<'a> ::core::iter::Iterator for #iter<'a> {
            type Item = #item<'a>;

            #[inline]
            fn next(&mut self) -> ::core::option::Option<Self::Item> {
                ::core::iter::Iterator::next(&mut self.0).map(#made)
            }

            #[inline]
            fn size_hint(&self) -> (usize, ::core::option::Option<usize>) {
                ::core::iter::Iterator::size_hint(&self.0)
            }

            #[inline]
            fn nth(&mut self, skipped: usize) -> ::core::option::Option<Self::Item> {
                ::core::iter::Iterator::nth(&mut self.0, skipped).map(#made)
            }

            #[inline]
            fn fold<B, F: FnMut(B, Self::Item) -> B>(self, first: B, work: F) -> B {
                ::core::iter::Iterator::fold(::core::iter::Iterator::map(self.0, #made), first, work)
            }
        }

        #[automatically_derived]
        impl ::core::iter::DoubleEndedIterator for #iter<'_> {
            #[inline]
            fn next_back(&mut self) -> ::core::option::Option<Self::Item> {
                ::core::iter::DoubleEndedIterator::next_back(&mut self.0).map(#made)
            }
        }

        #[automatically_derived]
        impl ::core::iter::ExactSizeIterator for #iter<'_> {}

        #[automatically_derived]
        impl ::core::iter::FusedIterator for #iter<'_> {}
    }
}

/// Returns the beginnings of the declarations of the fields: the user's documentation, the visibility and the name.
fn declared(input: &Input) -> Vec<TokenStream> {
    let declared = input.fields.iter().map(|field| {
        let (docs, vis, name) = (&field.docs, &field.vis, &field.name);
        let doc = format!("The field `{name}`.");
        let doc = docs.is_empty().then(|| quote!(#[doc = #doc]));
        quote!(#doc #(#docs)* #vis #name)
    });
    declared.collect()
}
