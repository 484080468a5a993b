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

/// Generates a structure of arrays. For `Particle`, this is `ParticleVec`, in which every field has its own pooled
/// [`Buffer`](https://docs.rs/millpond/latest/millpond/struct.Buffer.html).
///
/// A loop over one field then accesses only the bytes of that field. All fields always have the same length, even after an
/// error, because memory is allocated before anything is written.
///
/// ```
/// use millpond::{Pool, Soa};
///
/// #[derive(Soa)]
/// #[soa(align = 128)]
/// struct Particle {
///     /// Where it is.
///     #[soa(slice = positions)]
///     position: [f32; 3],
///     #[soa(slice = velocities)]
///     velocity: [f32; 3],
///     charge: i8,
/// }
///
/// let pool = Pool::host()?;
/// let mut particles = ParticleVec::in_pool(&pool)?;
/// for i in 0..100 {
///     particles.try_push(Particle { position: [i as f32; 3], velocity: [1.0; 3], charge: 1 })?;
/// }
///
/// // One field is a slice. Several fields at once are a structure of slices.
/// let charge: i32 = particles.charge().iter().map(|charge| i32::from(*charge)).sum();
/// let all = particles.slices_mut();
/// for (position, velocity) in all.position.iter_mut().zip(all.velocity) {
///     position[0] += velocity[0];
/// }
/// assert_eq!((charge, particles.positions()[99]), (100, [100.0, 99.0, 99.0]));
///
/// // Parts for threads. Each thread has its own elements.
/// std::thread::scope(|threads| {
///     for mut part in particles.chunks_mut(25) {
///         threads.spawn(move || part.iter_mut().for_each(|particle| *particle.charge = -1));
///     }
/// });
/// assert!(particles.iter().all(|particle| *particle.charge == -1));
///
/// // The bytes that an array of structures would lose.
/// assert_eq!((Particle::LAYOUT.bytes, Particle::LAYOUT.soa_bytes(), Particle::LAYOUT.padding()), (28, 25, 3));
/// println!("{}", Particle::layout_report());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Generated items
/// For a structure `Particle`, with the same visibility:
///
/// | type | description |
/// |---|---|
/// | `ParticleVec` | the owner: `new` and `in_pool`, `try_push`, `get`, `set`, `pop`, `swap_remove`, `try_extend`, … |
/// | `ParticleRef`, `ParticleMut` | a reference to each field of one element |
/// | `ParticleSlices`, `ParticleSlicesMut` | a slice of each field: `split_at`, `chunks`, iteration |
/// | `ParticleIter`, `ParticleIterMut` | their iterators |
///
/// It also implements the trait [`Soa`](https://docs.rs/millpond/latest/millpond/trait.Soa.html), which contains the layout of
/// the structure.
///
/// # Attributes
/// - `#[soa(name = Particles)]`: the owner's name.
/// - `#[soa(align = 4096)]`: the alignment of each field's buffer. A power of two up to 2 MiB. The default is 64.
/// - `#[soa(no_padding)]`: makes padding in the structure a compile error, which states how many bytes are lost after which
///   field. It is for structures that are *also* kept in arrays or written to files. A structure of arrays has no padding.
/// - `#[soa(crate = path)]`: the path of `millpond`. The default is `::millpond`.
/// - `#[soa(slice = positions)]` at a field: the name of its slice in the owner, here `positions()` and `positions_mut()`. The
///   default is the field's own name.
///
/// # Errors at compile time
/// The derive refuses enums, unions, structures without fields or with unnamed fields, type parameters and lifetimes. It also
/// refuses fields that are not plain data ([`Pod`](https://docs.rs/bytemuck/latest/bytemuck/trait.Pod.html)):
///
/// ```compile_fail,E0277
/// #[derive(millpond::Soa)]
/// struct Named { name: String, weight: f32 }
/// ```
///
/// It refuses fields without a size:
///
/// ```compile_fail,E0080
/// #[derive(millpond::Soa)]
/// struct Marked { weight: f32, mark: [u8; 0] }
/// ```
///
/// With `no_padding`, it refuses padding:
///
/// ```compile_fail,E0080
/// #[derive(millpond::Soa)]
/// #[soa(no_padding)]
/// #[repr(C)]
/// struct Bad { value: f32, flag: u8, result: f64 }
/// ```
///
/// The same fields in a better order, with a named field for the rest, are accepted:
///
/// ```
/// #[derive(millpond::Soa)]
/// #[soa(no_padding)]
/// #[repr(C)]
/// struct Good { result: f64, value: f32, flag: u8, rest: [u8; 3] }
/// ```
#[proc_macro_derive(Soa, attributes(soa))]
pub fn derive_soa(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(item.into())
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// Checks the memory use of a function against limits, as
/// [`Limits`](https://docs.rs/millpond/latest/millpond/limits/struct.Limits.html) does. The function panics if it exceeds a
/// limit, and the message says which code holds the memory.
///
/// ```
/// #[millpond::limits(peak = "1 MiB", leaked = 0, allocations = 2, temporary = 1, warm_up = 1, runs = 3)]
/// fn a_step() {
///     let weights = millpond::alloc_zeroed::<f32>(1000).expect("room");
///     drop(millpond::alloc_zeroed::<f32>(1000).expect("room"));
///     drop(weights);
/// }
/// a_step();
///
/// #[millpond::limits(peak = 4096)]
/// fn too_much() {
///     drop(millpond::alloc_zeroed::<u8>(4097).expect("room"));
/// }
/// assert!(std::panic::catch_unwind(too_much).is_err());
///
/// #[millpond::limits(allocations = 0)]
/// fn fails(text: &str) -> Result<u32, std::num::ParseIntError> {
///     text.parse()
/// }
/// assert!(fails("7").is_ok() && fails("seven").is_err());
/// ```
///
/// The attribute may come before or after `#[test]`. If the function returns a `Result` and fails, it returns the error and no
/// limit is checked. The returned value is still held when memory is measured.
///
/// | key | value |
/// |---|---|
/// | `peak`, `total`, `leaked`, `leaked_at_one_place` | bytes, or a text such as `"24 MiB"` |
/// | `allocations`, `temporary` | a number of blocks |
/// | `warm_up` | the number of runs of the body before the measurement |
/// | `runs` | the number of measured runs |
/// | `crate` | the path of `millpond`, by default `::millpond` |
///
/// A function that runs several times cannot have parameters. An `async` function is refused, because its work happens on
/// whichever thread polls it, mixed with other tasks.
///
/// ```compile_fail
/// #[millpond::limits(peek = "1 MiB")]
/// fn misspelt() {}
/// ```
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
