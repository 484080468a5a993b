//! Checks and reads the structure to derive for.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Fields, LitInt, Path, Type, Visibility};

/// The owner's methods that do not belong to a field. The slice of a field cannot have one of these names.
pub(crate) const METHODS: &[&str] = &[
    "new",
    "in_pool",
    "with_capacity",
    "with_capacity_in",
    "try_from_slice",
    "try_from_slice_in",
    "try_clone",
    "len",
    "is_empty",
    "capacity",
    "try_reserve",
    "try_reserve_exact",
    "try_push",
    "try_extend",
    "try_extend_from_slice",
    "get",
    "get_ref",
    "get_mut",
    "set",
    "pop",
    "swap_remove",
    "truncate",
    "clear",
    "iter",
    "iter_mut",
    "slices",
    "slices_mut",
    "split_at",
    "split_at_mut",
    "chunks",
    "chunks_mut",
    "to_vec",
];

/// The largest alignment that can be requested.
const MOST_ALIGN: usize = 2 << 20;

/// A structure to derive for.
pub(crate) struct Input {
    pub(crate) vis: Visibility,
    /// The structure's name.
    pub(crate) name: Ident,
    /// The names of the generated types.
    pub(crate) owner: Ident,
    pub(crate) one: Ident,
    pub(crate) one_mut: Ident,
    pub(crate) slices: Ident,
    pub(crate) slices_mut: Ident,
    pub(crate) iter: Ident,
    pub(crate) iter_mut: Ident,
    pub(crate) align: usize,
    pub(crate) no_padding: bool,
    /// The path of the crate `millpond`.
    pub(crate) krate: TokenStream,
    /// The fields, at least one.
    pub(crate) fields: Vec<Field>,
}

/// One field of the structure.
pub(crate) struct Field {
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    pub(crate) ty: Type,
    pub(crate) docs: Vec<Attribute>,
    /// The names of the owner's methods for the shared and the exclusive slice.
    pub(crate) slice: Ident,
    pub(crate) slice_mut: Ident,
    /// The name of the field's variable in patterns. It cannot collide with a name of the user.
    pub(crate) local: Ident,
}

impl Input {
    pub(crate) fn read(item: DeriveInput) -> syn::Result<Self> {
        let fields = named_fields(&item)?;
        if !item.generics.params.is_empty() {
            return Err(Error::new(
                item.generics.span(),
                "derive(Soa) does not support generic parameters: derive it for a structure without parameters",
            ));
        }
        let options = Options::read(&item.attrs)?;
        let name = item.ident;
        let named = |what: &str| format_ident!("{name}{what}");
        let fields = fields
            .into_iter()
            .enumerate()
            .map(|(at, field)| Field::read(at, field))
            .collect::<syn::Result<Vec<_>>>()?;
        check_names(&fields)?;
        Ok(Self {
            vis: item.vis,
            owner: options.name.unwrap_or_else(|| named("Vec")),
            one: named("Ref"),
            one_mut: named("Mut"),
            slices: named("Slices"),
            slices_mut: named("SlicesMut"),
            iter: named("Iter"),
            iter_mut: named("IterMut"),
            align: options.align.unwrap_or(64),
            no_padding: options.no_padding,
            krate: path_or_millpond(options.krate.as_ref()),
            name,
            fields,
        })
    }

    /// Returns the names of the fields.
    pub(crate) fn names(&self) -> Vec<&Ident> {
        self.fields.iter().map(|field| &field.name).collect()
    }

    /// Returns the types of the fields.
    pub(crate) fn types(&self) -> Vec<&Type> {
        self.fields.iter().map(|field| &field.ty).collect()
    }

    /// Returns a local name for each field.
    pub(crate) fn locals(&self) -> Vec<&Ident> {
        self.fields.iter().map(|field| &field.local).collect()
    }

    /// Returns the [`column`](Field::column) of each field.
    pub(crate) fn columns(&self) -> Vec<TokenStream> {
        self.fields
            .iter()
            .map(|field| field.column(&self.krate))
            .collect()
    }
}

/// Returns the fields if there are any and they have names.
fn named_fields(item: &DeriveInput) -> syn::Result<Vec<syn::Field>> {
    let refuse = |span: Span, why: &str| Err(Error::new(span, why));
    match &item.data {
        Data::Enum(data) => refuse(
            data.enum_token.span,
            "derive(Soa) supports only structures: the values of an enum do not all have the same fields",
        ),
        Data::Union(data) => refuse(
            data.union_token.span,
            "derive(Soa) supports only structures: the fields of a union share their bytes",
        ),
        Data::Struct(data) => match &data.fields {
            Fields::Unnamed(fields) => refuse(
                fields.span(),
                "derive(Soa) needs fields with names, because it names each array after its field",
            ),
            Fields::Named(fields) if !fields.named.is_empty() => Ok(fields.named.iter().cloned().collect()),
            _ => refuse(item.ident.span(), "derive(Soa) needs at least one field"),
        },
    }
}

impl Field {
    /// Returns the path of the trait methods that handle the field's buffer and copies of its values. Each call has the same bound: the
    /// type is plain data. A type that is not plain data therefore gives one error at the field, and not one for each call.
    pub(crate) fn column(&self, krate: &TokenStream) -> TokenStream {
        let ty = &self.ty;
        // All tokens have the span of the type. Otherwise the compiler would report the derive as the place of the error.
        let words = krate.clone().into_iter().map(|mut word| {
            word.set_span(ty.span());
            word
        });
        let krate: TokenStream = words.collect();
        quote_spanned!(ty.span()=> <#krate::Buffer<#ty> as #krate::__soa::Column>)
    }

    fn read(at: usize, field: syn::Field) -> syn::Result<Self> {
        let name = field
            .ident
            .ok_or_else(|| Error::new(field.ty.span(), "this field has no name"))?;
        let mut slice = None;
        each_option(&field.attrs, |option| {
            if option.path.is_ident("slice") {
                return once(&mut slice, &option, option.value()?.parse::<Ident>()?);
            }
            Err(option.error("unknown option: a field supports only `slice = name`"))
        })?;
        let slice = slice.unwrap_or_else(|| name.clone());
        Ok(Self {
            vis: field.vis,
            ty: field.ty,
            docs: field
                .attrs
                .into_iter()
                .filter(|attr| attr.path().is_ident("doc"))
                .collect(),
            slice_mut: format_ident!("{slice}_mut", span = slice.span()),
            slice,
            local: Ident::new(&format!("field_{at}"), Span::mixed_site()),
            name,
        })
    }
}

/// Checks that every slice has a unique name.
fn check_names(fields: &[Field]) -> syn::Result<()> {
    let mut taken: Vec<String> = METHODS.iter().map(|name| (*name).to_owned()).collect();
    for field in fields {
        for name in [&field.slice, &field.slice_mut].map(Ident::to_string) {
            if taken.contains(&name) {
                let why = format!(
                    "the method `{name}` already exists: choose another name for the slice of this field with \
                     #[soa(slice = other)]"
                );
                return Err(Error::new(field.slice.span(), why));
            }
            taken.push(name);
        }
    }
    Ok(())
}

/// The attributes of the structure.
#[derive(Default)]
struct Options {
    name: Option<Ident>,
    align: Option<usize>,
    no_padding: bool,
    krate: Option<Path>,
}

impl Options {
    fn read(attrs: &[Attribute]) -> syn::Result<Self> {
        let mut options = Self::default();
        each_option(attrs, |option| {
            if option.path.is_ident("name") {
                once(&mut options.name, &option, option.value()?.parse()?)
            } else if option.path.is_ident("align") {
                once(
                    &mut options.align,
                    &option,
                    read_align(&option.value()?.parse()?)?,
                )
            } else if option.path.is_ident("no_padding") {
                options.no_padding = true;
                Ok(())
            } else if option.path.is_ident("crate") {
                once(
                    &mut options.krate,
                    &option,
                    option.value()?.call(Path::parse_mod_style)?,
                )
            } else {
                Err(option.error(
                    "unknown option: use `name = Name`, `align = bytes`, `no_padding` or `crate = path`",
                ))
            }
        })?;
        Ok(options)
    }
}

fn read_align(literal: &LitInt) -> syn::Result<usize> {
    let align = literal.base10_parse::<usize>()?;
    if align.is_power_of_two() && align <= MOST_ALIGN {
        return Ok(align);
    }
    Err(Error::new(
        literal.span(),
        format!("an alignment must be a power of two of at most {MOST_ALIGN}"),
    ))
}

fn each_option(
    attrs: &[Attribute],
    read: impl FnMut(ParseNestedMeta<'_>) -> syn::Result<()>,
) -> syn::Result<()> {
    let mut read = read;
    let mut options = attrs.iter().filter(|attr| attr.path().is_ident("soa"));
    options.try_for_each(|attr| attr.parse_nested_meta(&mut read))
}

/// Stores the value of an option. Returns an error if the option was given before.
pub(crate) fn once<T>(place: &mut Option<T>, option: &ParseNestedMeta<'_>, value: T) -> syn::Result<()> {
    if place.replace(value).is_some() {
        return Err(option.error("this option is set twice"));
    }
    Ok(())
}

/// Returns the path of the crate `millpond`, which an option may change.
pub(crate) fn path_or_millpond(path: Option<&Path>) -> TokenStream {
    path.map_or_else(|| quote!(::millpond), Path::to_token_stream)
}
