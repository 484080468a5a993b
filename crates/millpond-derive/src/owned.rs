//! Generates the type that owns the fields' buffers.

use crate::input::Input;
use proc_macro2::TokenStream;
use quote::quote;

pub(crate) fn expand(input: &Input) -> TokenStream {
    let Input {
        vis,
        name,
        owner,
        krate,
        ..
    } = input;
    let (field, ty) = (input.names(), input.types());
    let text = owner.to_string();
    let doc = format!(
        "A structure of arrays of [`{name}`]: a pooled buffer for each field, all of the same length, whatever fails."
    );
    let (make, change, read) = (make(input), change(input), read(input));
    let (accessors, conversions) = (accessors(input), conversions(input));
    quote! {
        #[doc = #doc]
        #vis struct #owner {
            #(#field: #krate::Buffer<#ty>,)*
        }

        #[automatically_derived]
        #[allow(dead_code, unreachable_pub)]
        impl #owner {
            #make
            #change
            #read
            #accessors
        }

        #[automatically_derived]
        impl ::core::fmt::Debug for #owner {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(#text)
                    .field("len", &self.len())
                    .field("capacity", &self.capacity())
                    .finish()
            }
        }

        #conversions
    }
}

/// Generates the constructors.
fn make(input: &Input) -> TokenStream {
    let Input {
        name, krate, align, ..
    } = input;
    let (field, column) = (input.names(), input.columns());
    let error = quote!(#krate::AllocError);
    quote! {
        /// Creates an empty value in the current pool of host memory. It allocates no memory until it grows.
        ///
        /// # Errors
        /// Returns an error if the pool cannot be created.
        pub fn new() -> ::core::result::Result<Self, #error> {
            #krate::__soa::here(|pool| Self::in_pool(pool))
        }

        /// Creates an empty value in this pool. It allocates no memory until it grows.
        ///
        /// # Errors
        /// Returns an error if the pool cannot provide the alignment.
        pub fn in_pool(pool: &#krate::Pool) -> ::core::result::Result<Self, #error> {
            ::core::result::Result::Ok(Self {
                #(#field: #column::empty(pool, #align)?,)*
            })
        }

        /// Creates an empty value with room for `capacity` elements in the current pool of host memory.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn with_capacity(capacity: usize) -> ::core::result::Result<Self, #error> {
            #krate::__soa::here(|pool| Self::with_capacity_in(capacity, pool))
        }

        /// Creates an empty value with room for `capacity` elements in this pool.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn with_capacity_in(capacity: usize, pool: &#krate::Pool) -> ::core::result::Result<Self, #error> {
            let mut made = Self::in_pool(pool)?;
            made.try_reserve_exact(capacity)?;
            ::core::result::Result::Ok(made)
        }

        /// Copies these elements to memory of the current pool of host memory.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn try_from_slice(values: &[#name]) -> ::core::result::Result<Self, #error> {
            #krate::__soa::here(|pool| Self::try_from_slice_in(values, pool))
        }

        /// Copies these elements to memory of this pool.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn try_from_slice_in(
            values: &[#name],
            pool: &#krate::Pool,
        ) -> ::core::result::Result<Self, #error> {
            let mut made = Self::with_capacity_in(values.len(), pool)?;
            made.try_extend_from_slice(values)?;
            ::core::result::Result::Ok(made)
        }

        /// Returns a copy in memory of the same pool.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn try_clone(&self) -> ::core::result::Result<Self, #error> {
            ::core::result::Result::Ok(Self {
                #(#field: #column::try_clone(&self.#field)?,)*
            })
        }
    }
}

/// Generates the methods that change the length. They make room in every field before they write an element to any field.
fn change(input: &Input) -> TokenStream {
    let Input { name, krate, .. } = input;
    let (field, column) = (input.names(), input.columns());
    let error = quote!(#krate::AllocError);
    quote! {
        /// Makes room for at least `additional` more elements. After an error, all elements are unchanged. Fields for which
        /// room was made before the error keep it.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        #[inline]
        pub fn try_reserve(&mut self, additional: usize) -> ::core::result::Result<(), #error> {
            #(#column::buffer_mut(&mut self.#field).try_reserve(additional)?;)*
            ::core::result::Result::Ok(())
        }

        /// Makes room for `len` elements in total. After an error, the same holds as for [`try_reserve`](Self::try_reserve).
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn try_reserve_exact(&mut self, len: usize) -> ::core::result::Result<(), #error> {
            #(#column::buffer_mut(&mut self.#field).try_reserve_exact(len)?;)*
            ::core::result::Result::Ok(())
        }

        /// Appends an element. After an error, every field is unchanged.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        #[inline]
        pub fn try_push(&mut self, value: #name) -> ::core::result::Result<(), #error> {
            self.try_reserve(1)?;
            #(#column::buffer_mut(&mut self.#field).extend_within_capacity(::core::option::Option::Some(value.#field));)*
            ::core::result::Result::Ok(())
        }

        /// Appends the elements of an iterator. After an error, the length is the same as before.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn try_extend(
            &mut self,
            values: impl ::core::iter::IntoIterator<Item = #name>,
        ) -> ::core::result::Result<(), #error> {
            let mut values = ::core::iter::IntoIterator::into_iter(values);
            let before = self.len();
            self.try_reserve(::core::iter::Iterator::size_hint(&values).0)?;
            let appended = ::core::iter::Iterator::try_for_each(&mut values, |value| self.try_push(value));
            if appended.is_err() {
                self.truncate(before);
            }
            appended
        }

        /// Appends copies of elements, one field after the other. After an error, every field is unchanged.
        ///
        /// # Errors
        /// Returns an error if the memory cannot be allocated.
        pub fn try_extend_from_slice(&mut self, values: &[#name]) -> ::core::result::Result<(), #error> {
            self.try_reserve(values.len())?;
            #(
                #column::buffer_mut(&mut self.#field)
                    .extend_within_capacity(values.iter().map(|value| #column::copy(&value.#field)));
            )*
            ::core::result::Result::Ok(())
        }

        /// Removes the last element and returns it, or `None` if there are no elements.
        pub fn pop(&mut self) -> ::core::option::Option<#name> {
            ::core::option::Option::Some(#name {
                #(#field: #column::buffer_mut(&mut self.#field).pop()?,)*
            })
        }

        /// Removes an element and returns it. The last element takes its place. Returns `None` if there is no such element.
        pub fn swap_remove(&mut self, index: usize) -> ::core::option::Option<#name> {
            ::core::option::Option::Some(#name {
                #(#field: #column::buffer_mut(&mut self.#field).swap_remove(index)?,)*
            })
        }

        /// Shortens the length to `len`, if it is greater. Keeps the memory.
        pub fn truncate(&mut self, len: usize) {
            #(#column::buffer_mut(&mut self.#field).truncate(len);)*
        }

        /// Removes all elements. Keeps the memory.
        pub fn clear(&mut self) {
            self.truncate(0);
        }
    }
}

/// Generates the methods that read and write elements.
fn read(input: &Input) -> TokenStream {
    let Input {
        name,
        krate,
        one,
        one_mut,
        slices,
        slices_mut,
        iter,
        iter_mut,
        ..
    } = input;
    let (field, column) = (input.names(), input.columns());
    let first = field.first();
    quote! {
        /// Returns the number of elements.
        #[must_use]
        #[inline]
        pub fn len(&self) -> usize {
            self.#first.len()
        }

        /// Returns whether there are no elements.
        #[must_use]
        #[inline]
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// Returns the number of elements that fit without a new block for any field.
        #[must_use]
        pub fn capacity(&self) -> usize {
            usize::MAX #(.min(#column::buffer(&self.#field).capacity()))*
        }

        /// Returns a copy of an element, or `None` if there is no such element.
        #[must_use]
        #[inline]
        pub fn get(&self, index: usize) -> ::core::option::Option<#name> {
            self.slices().get(index)
        }

        /// Returns references to an element's fields, or `None` if there is no such element.
        #[must_use]
        #[inline]
        pub fn get_ref(&self, index: usize) -> ::core::option::Option<#one<'_>> {
            self.slices().get_ref(index)
        }

        /// Returns mutable references to an element's fields, or `None` if there is no such element.
        #[must_use]
        #[inline]
        pub fn get_mut(&mut self, index: usize) -> ::core::option::Option<#one_mut<'_>> {
            ::core::option::Option::Some(#one_mut {
                #(#field: #column::buffer_mut(&mut self.#field).get_mut(index)?,)*
            })
        }

        /// Writes every field of an element.
        ///
        /// # Errors
        /// Returns an error if there is no such element.
        #[inline]
        pub fn set(&mut self, index: usize, value: #name) -> ::core::result::Result<(), #krate::soa::SoaIndexError> {
            self.slices_mut().set(index, value)
        }

        /// Returns an iterator over references to each element's fields, in order.
        #[must_use]
        #[inline]
        pub fn iter(&self) -> #iter<'_> {
            ::core::iter::IntoIterator::into_iter(self.slices())
        }

        /// Returns an iterator over mutable references to each element's fields, in order.
        #[must_use]
        #[inline]
        pub fn iter_mut(&mut self) -> #iter_mut<'_> {
            ::core::iter::IntoIterator::into_iter(self.slices_mut())
        }

        /// Returns a slice of each field.
        #[must_use]
        #[inline]
        pub fn slices(&self) -> #slices<'_> {
            #slices {
                #(#field: #column::buffer(&self.#field),)*
            }
        }

        /// Returns a mutable slice of each field. All of them can be written at once.
        #[must_use]
        #[inline]
        pub fn slices_mut(&mut self) -> #slices_mut<'_> {
            #slices_mut {
                #(#field: #column::buffer_mut(&mut self.#field),)*
            }
        }

        /// Splits the elements before index `mid`. If there are fewer elements, all of them are in the first part.
        #[must_use]
        pub fn split_at(&self, mid: usize) -> (#slices<'_>, #slices<'_>) {
            self.slices().split_at(mid)
        }

        /// Splits the elements into two mutable parts, which two threads can write.
        #[must_use]
        pub fn split_at_mut(&mut self, mid: usize) -> (#slices_mut<'_>, #slices_mut<'_>) {
            self.slices_mut().split_at(mid)
        }

        /// Returns an iterator over parts of `len` elements. The last part may have fewer. A length of 0 means 1.
        pub fn chunks(&self, len: usize) -> #krate::soa::SoaChunks<#slices<'_>> {
            self.slices().chunks(len)
        }

        /// Returns an iterator over mutable parts of `len` elements, which different threads can write.
        pub fn chunks_mut(&mut self, len: usize) -> #krate::soa::SoaChunks<#slices_mut<'_>> {
            self.slices_mut().chunks(len)
        }

        /// Returns the elements as an array of structures, in memory of the global allocator.
        #[must_use]
        pub fn to_vec(&self) -> ::std::vec::Vec<#name> {
            self.slices().to_vec()
        }
    }
}

/// Generates the methods that return the slices of single fields.
fn accessors(input: &Input) -> TokenStream {
    let methods = input.fields.iter().map(|field| {
        let (vis, docs, name, ty) = (&field.vis, &field.docs, &field.name, &field.ty);
        let (slice, slice_mut) = (&field.slice, &field.slice_mut);
        let column = field.column(&input.krate);
        let doc = format!("The field `{name}` of every element.");
        let doc_mut = format!("The field `{name}` of every element, to be written.");
        quote! {
            #[doc = #doc]
            ///
            #(#docs)*
            #[must_use]
            #[inline]
            #vis fn #slice(&self) -> &[#ty] {
                #column::buffer(&self.#name)
            }

            #[doc = #doc_mut]
            ///
            #(#docs)*
            #[must_use]
            #[inline]
            #vis fn #slice_mut(&mut self) -> &mut [#ty] {
                #column::buffer_mut(&mut self.#name)
            }
        }
    });
    quote!(#(#methods)*)
}

/// Generates the conversions from and to arrays of structures, and the loops over elements.
fn conversions(input: &Input) -> TokenStream {
    let Input {
        name,
        owner,
        krate,
        one,
        one_mut,
        iter,
        iter_mut,
        ..
    } = input;
    quote! {
        #[automatically_derived]
        impl ::core::convert::TryFrom<&[#name]> for #owner {
            type Error = #krate::AllocError;

            fn try_from(values: &[#name]) -> ::core::result::Result<Self, Self::Error> {
                Self::try_from_slice(values)
            }
        }

        #[automatically_derived]
        impl ::core::convert::TryFrom<::std::vec::Vec<#name>> for #owner {
            type Error = #krate::AllocError;

            fn try_from(values: ::std::vec::Vec<#name>) -> ::core::result::Result<Self, Self::Error> {
                Self::try_from_slice(&values)
            }
        }

        #[automatically_derived]
        impl ::core::convert::From<&#owner> for ::std::vec::Vec<#name> {
            fn from(arrays: &#owner) -> Self {
                arrays.to_vec()
            }
        }

        #[automatically_derived]
        impl ::core::convert::From<#owner> for ::std::vec::Vec<#name> {
            fn from(arrays: #owner) -> Self {
                arrays.to_vec()
            }
        }

        #[automatically_derived]
        impl<'a> ::core::iter::IntoIterator for &'a #owner {
            type Item = #one<'a>;
            type IntoIter = #iter<'a>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        #[automatically_derived]
        impl<'a> ::core::iter::IntoIterator for &'a mut #owner {
            type Item = #one_mut<'a>;
            type IntoIter = #iter_mut<'a>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter_mut()
            }
        }
    }
}
