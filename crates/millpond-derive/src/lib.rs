//! `#[derive(Soa)]` and `#[limits]` of the crate `millpond`, which says what they are for.
//!
//! ```text
//!   limits    a function whose body is held against limits
//!
//!   input     what may be derived for; everything that is refused, each with the place it is about
//!   owned     the type that owns the fields' buffers
//!   views     references to one element and slices of several, and their iterators
//!   layout    what an array of the structure loses, and what is checked when it is compiled
//! ```
//!
//! What it makes has no unsafe code either: lengths that differ could be a wrong answer, never a wrong access.
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

/// Makes a structure of arrays: for `Particle` a `ParticleVec`, in which every field is a pooled
/// [`Buffer`](https://docs.rs/millpond/latest/millpond/struct.Buffer.html) of its own.
///
/// A loop over one field then touches the bytes of that field and no others. All fields have the same length, whatever
/// fails: memory is asked for before anything is written.
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
/// // One field is a slice; several at once are a structure of slices.
/// let charge: i32 = particles.charge().iter().map(|charge| i32::from(*charge)).sum();
/// let all = particles.slices_mut();
/// for (position, velocity) in all.position.iter_mut().zip(all.velocity) {
///     position[0] += velocity[0];
/// }
/// assert_eq!((charge, particles.positions()[99]), (100, [100.0, 99.0, 99.0]));
///
/// // Parts for threads: each has its elements to itself.
/// std::thread::scope(|threads| {
///     for mut part in particles.chunks_mut(25) {
///         threads.spawn(move || part.iter_mut().for_each(|particle| *particle.charge = -1));
///     }
/// });
/// assert!(particles.iter().all(|particle| *particle.charge == -1));
///
/// // What the same as an array of structures would lose.
/// assert_eq!((Particle::LAYOUT.bytes, Particle::LAYOUT.soa_bytes(), Particle::LAYOUT.padding()), (28, 25, 3));
/// println!("{}", Particle::layout_report());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What it makes
/// For a structure `Particle`, as visible as itself:
///
/// | type | is |
/// |---|---|
/// | `ParticleVec` | the owner: `new` and `in_pool`, `try_push`, `get`, `set`, `pop`, `swap_remove`, `try_extend`, … |
/// | `ParticleRef`, `ParticleMut` | a reference to each field of one element |
/// | `ParticleSlices`, `ParticleSlicesMut` | a slice of each field: `split_at`, `chunks`, iteration |
/// | `ParticleIter`, `ParticleIterMut` | their iterators |
///
/// and the trait [`Soa`](https://docs.rs/millpond/latest/millpond/trait.Soa.html), with the layout of the structure.
///
/// # Attributes
/// - `#[soa(name = Particles)]`: the owner's name.
/// - `#[soa(align = 4096)]`: what the address of each field's buffer is a multiple of. A power of two up to 2 MiB; 64
///   where nothing is said.
/// - `#[soa(no_padding)]`: a structure that has padding does not compile, and the error says how many bytes are lost after
///   which field. It is for structures that are *also* kept in arrays or written to files: a structure of arrays has none.
/// - `#[soa(crate = path)]`: where `millpond` is, if not at `::millpond`.
/// - `#[soa(slice = positions)]` at a field: what the owner calls its slice, which is `positions()` and
///   `positions_mut()` then. The field's own name where nothing is said.
///
/// # What does not compile
/// Enums, unions, structures whose fields have no names, or that have none; type parameters and lifetimes. Fields that are
/// no plain data ([`Pod`](https://docs.rs/bytemuck/latest/bytemuck/trait.Pod.html)):
///
/// ```compile_fail,E0277
/// #[derive(millpond::Soa)]
/// struct Named { name: String, weight: f32 }
/// ```
///
/// fields of no size:
///
/// ```compile_fail,E0080
/// #[derive(millpond::Soa)]
/// struct Marked { weight: f32, mark: [u8; 0] }
/// ```
///
/// and padding, where it is forbidden:
///
/// ```compile_fail,E0080
/// #[derive(millpond::Soa)]
/// #[soa(no_padding)]
/// #[repr(C)]
/// struct Bad { value: f32, flag: u8, result: f64 }
/// ```
///
/// The same in good order, with a name for what is left over:
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

/// Holds what a function does with memory against limits, as
/// [`Limits`](https://docs.rs/millpond/latest/millpond/limits/struct.Limits.html) does: the function panics where it does not keep
/// to one, and says who holds what.
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
/// It stands before or after `#[test]`. Where the function answers a `Result`, an error is its answer, and nothing is said of
/// limits. What it answers is still held when it is measured.
///
/// | key | is |
/// |---|---|
/// | `peak`, `total`, `leaked`, `leaked_at_one_place` | bytes, or a text as `"24 MiB"` |
/// | `allocations`, `temporary` | a number of blocks |
/// | `warm_up` | how often the body is run before anything is measured |
/// | `runs` | how often it is run and measured |
/// | `crate` | where `millpond` is, if not at `::millpond` |
///
/// A function that is run several times takes no parameters. An `async` one is refused: what it does happens on whichever
/// thread polls it, beside other tasks.
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
