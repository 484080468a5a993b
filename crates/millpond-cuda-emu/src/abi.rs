//! The driver's C interface: thin functions, grouped as in CUDA's documentation.
//!
//! The macro `entries` defines each function. It exports the symbol, and its `_ptds` or `_ptsz` variant if
//! the driver has one. It also adds both to the table that `cuGetProcAddress` uses, so that the table and the
//! loader agree. Enumerations are plain integers, because a client may pass any number. Pointers are [`Out`],
//! [`In`] and [`Text`], which state the contract of the C interface once, so that the functions themselves
//! need no unsafe code.

mod args;
mod blas;
mod boxes;
mod context;
mod copy;
mod device;
mod entry_points;
mod event;
mod extra;
mod graph;
mod host;
mod ipc;
mod library;
mod managed;
mod memory;
mod module;
mod nvml;
mod pool;
mod runtime;
mod stream;
mod structures;
mod unsupported;
mod virt;

use crate::calls::Entry;

/// Defines a group of entries. Each is `name twin since needs (arguments) |call| { body }`, where `twin` is
/// none, ptds, ptsz or private. A private entry has no symbol.
macro_rules! entries {
    ($($(#[$meta:meta])* $name:ident $twin:ident $since:literal $needs:ident $args:tt |$call:ident| $body:block)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments)]
        mod body {
            use super::*;
            $(entries!{@body $(#[$meta])* $name $args $call $body})*
        }
        $(
            #[allow(non_snake_case)]
            mod $name {
                use super::*;
                static ENTRY: $crate::calls::Entry = $crate::calls::Entry {
                    name: stringify!($name),
                    since: $since,
                    needs: $crate::calls::Needs::$needs,
                    legacy: $crate::calls::Address(legacy as *const ()),
                    per_thread: entries!{@twin $twin},
                    count: std::sync::atomic::AtomicU64::new(0),
                };
                pub(super) fn entry() -> &'static $crate::calls::Entry {
                    &ENTRY
                }
                entries!{@legacy $twin $name $args}
                entries!{@alias $twin $name $args}
            }
        )*
        /// Returns every entry of this group.
        pub(super) fn all() -> Vec<&'static $crate::calls::Entry> {
            vec![$($name::entry()),*]
        }
    };
    (@body $(#[$meta:meta])* $name:ident ($($arg:ident : $type:ty),* $(,)?) $call:ident $body:block) => {
        $(#[$meta])*
        pub(super) fn $name($call: &$crate::calls::Call, $($arg: $type),*) -> $crate::error::Answer $body
    };
    (@export $function:ident $per_thread:literal $name:ident $ending:literal $args:tt) => {
        // SAFETY: the caller must keep to the driver's documentation of this function.
        entries!{@function $function $per_thread $name [#[unsafe(export_name = concat!(stringify!($name), $ending))]] $args}
    };
    (@function $function:ident $per_thread:literal $name:ident [$($export:tt)*] ($($arg:ident : $type:ty),* $(,)?)) => {
        $($export)*
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $function($($arg: $type),*) -> i32 {
            $crate::calls::enter(&ENTRY, $per_thread, |call| super::body::$name(call, $($arg),*))
        }
    };
    (@legacy private $name:ident $args:tt) => { entries!{@function legacy false $name [] $args} };
    (@legacy $twin:ident $name:ident $args:tt) => { entries!{@export legacy false $name "" $args} };
    (@twin none) => { None };
    (@twin private) => { None };
    (@twin ptds) => { Some(($crate::calls::Address(per_thread as *const ()), "_ptds")) };
    (@twin ptsz) => { Some(($crate::calls::Address(per_thread as *const ()), "_ptsz")) };
    (@alias none $name:ident $args:tt) => {};
    (@alias private $name:ident $args:tt) => {};
    (@alias ptds $name:ident $args:tt) => { entries!{@export per_thread true $name "_ptds" $args} };
    (@alias ptsz $name:ident $args:tt) => { entries!{@export per_thread true $name "_ptsz" $args} };
}
pub(crate) use entries;

/// Returns every entry: those of the driver, and those of other CUDA libraries.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    driver()
        .chain(blas::all())
        .chain(nvml::all())
        .chain(runtime::all())
}

/// Returns every entry of the driver.
pub(crate) fn driver() -> impl Iterator<Item = &'static Entry> {
    let groups = [
        context::all(),
        copy::all(),
        device::all(),
        entry_points::all(),
        event::all(),
        graph::all(),
        host::all(),
        ipc::all(),
        library::all(),
        managed::all(),
        memory::all(),
        module::all(),
        pool::all(),
        stream::all(),
        unsupported::all(),
        virt::all(),
    ];
    groups.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_entries_are_unique() {
        let mut names: Vec<_> = super::all().map(|entry| entry.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
