//! Expands `#[limits]`: parses the options, checks the function, and generates the limited function.

use crate::input::{once, path_or_millpond};
use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Error, Expr, ItemFn, LitInt, Path, ReturnType, Signature, Type, meta};

/// The options that become a method call of the same name.
const LIMITS: [&str; 6] = [
    "peak",
    "total",
    "leaked",
    "leaked_at_one_place",
    "allocations",
    "temporary",
];
const KNOWN: &str = "the options are `peak`, `total`, `leaked`, `leaked_at_one_place`, `allocations`, `temporary`, \
                     `warm_up`, `runs` and `crate`";

/// The options of the attribute.
#[derive(Default)]
struct Options {
    /// The limits, in source order.
    limits: Vec<(Ident, Expr)>,
    warm_up: Option<LitInt>,
    runs: Option<LitInt>,
    krate: Option<Path>,
}

impl Options {
    fn read(tokens: TokenStream) -> syn::Result<Self> {
        let mut options = Self::default();
        let place = tokens.span();
        meta::parser(|option| {
            if option.path.is_ident("warm_up") {
                let runs: LitInt = option.value()?.parse()?;
                runs.base10_parse::<u32>()?;
                return once(&mut options.warm_up, &option, runs);
            }
            if option.path.is_ident("runs") {
                let runs = read_runs(option.value()?.parse()?)?;
                return once(&mut options.runs, &option, runs);
            }
            if option.path.is_ident("crate") {
                let krate = option.value()?.call(Path::parse_mod_style)?;
                return once(&mut options.krate, &option, krate);
            }
            let known = option
                .path
                .get_ident()
                .filter(|name| LIMITS.iter().any(|known| *name == known));
            let Some(name) = known else {
                return Err(option.error(KNOWN));
            };
            if options.limits.iter().any(|(other, _)| other == name) {
                return Err(option.error("this option is set twice"));
            }
            options.limits.push((name.clone(), option.value()?.parse()?));
            Ok(())
        })
        .parse2(tokens)?;
        if options.limits.is_empty() {
            return Err(Error::new(place, format!("no limit is set: {KNOWN}")));
        }
        Ok(options)
    }

    fn is_repeated(&self) -> bool {
        self.warm_up.is_some() || self.runs.is_some()
    }
}

fn read_runs(runs: LitInt) -> syn::Result<LitInt> {
    if runs.base10_parse::<u32>()? == 0 {
        return Err(Error::new(runs.span(), "`runs` must be at least 1"));
    }
    Ok(runs)
}

/// Refuses functions whose body cannot be measured.
fn check(signature: &Signature, options: &Options) -> syn::Result<()> {
    if let Some(word) = &signature.asyncness {
        return Err(Error::new(
            word.span(),
            "cannot limit an async function, because it may run on several threads, between other tasks: use \
             `Limits::enter` to enter a scope around code without `await`",
        ));
    }
    if let Some(word) = &signature.constness {
        return Err(Error::new(
            word.span(),
            "cannot limit a const function, because it cannot allocate",
        ));
    }
    if options.is_repeated() && !signature.inputs.is_empty() {
        return Err(Error::new(
            signature.inputs.span(),
            "a function that runs several times cannot have parameters, because the first run consumes them: remove \
             the parameters, or `runs` and `warm_up`",
        ));
    }
    Ok(())
}

/// Returns whether the return type is named `Result`.
fn is_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, ty) = output else {
        return false;
    };
    let Type::Path(path) = &**ty else { return false };
    path.path
        .segments
        .last()
        .is_some_and(|last| last.ident == "Result")
}

/// Returns the return type of the closure around the body. A type `impl Trait` cannot be written there, so it is left out.
fn answer(output: &ReturnType) -> TokenStream {
    match output {
        ReturnType::Type(_, ty) if !matches!(**ty, Type::ImplTrait(_)) => quote!(-> #ty),
        ReturnType::Type(..) => TokenStream::new(),
        ReturnType::Default => quote!(-> ()),
    }
}

pub(crate) fn expand(options: TokenStream, function: TokenStream) -> syn::Result<TokenStream> {
    let function: ItemFn = syn::parse2(function)?;
    let options = Options::read(options)?;
    check(&function.sig, &options)?;
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = &function;
    let krate = path_or_millpond(options.krate.as_ref());
    let limits = options.limits.iter().map(|(name, value)| quote!(.#name(#value)));
    let warm_up = options.warm_up.iter().map(|runs| quote!(.warm_up(#runs)));
    let runs = options.runs.iter().map(|runs| quote!(.runs(#runs)));
    let (answer, fails) = (answer(&sig.output), is_result(&sig.output));
    let call = match (options.is_repeated(), fails) {
        (true, false) => quote!(assert(|| #answer #block)),
        (true, true) => quote!(assert_ok(|| #answer #block)),
        (false, false) => quote!(__assert_once(move || #answer #block, |_| true)),
        (false, true) => quote!(__assert_once(move || #answer #block, ::core::result::Result::is_ok)),
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            #krate::limits::Limits::new() #(#limits)* #(#warm_up)* #(#runs)* .#call
        }
    })
}
