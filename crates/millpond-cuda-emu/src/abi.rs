//! The driver's C interface: thin functions, grouped as CUDA's own documentation has them.
//!
//! One macro makes an entry: it exports the symbol, and its `_ptds` or `_ptsz` twin where the driver has one, and puts both into the
//! table from which `cuGetProcAddress` answers, so that it and the loader agree. Enumerations come in as plain integers: a
//! client may hand over any number. Pointers come in as [`Out`], [`In`] and [`Text`], which hold the contract of the C interface
//! once, so that the functions themselves need no unsafe code.

mod args;
mod blas;
mod context;
mod copy;
mod device;
mod entry_points;
mod event;
mod extra;
mod graph;
mod host;
mod ipc;
mod managed;
mod memory;
mod module;
mod nvml;
mod pool;
mod stream;
mod structures;
mod unsupported;
mod virt;

use crate::calls::Entry;

/// Makes a group of entries. Each is `name twin since needs (arguments) |call| { body }`, where `twin` is none, ptds or ptsz.
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
                entries!{@export legacy false $name "" $args}
                entries!{@alias $twin $name $args}
            }
        )*
        /// Every entry of this group.
        pub(super) fn all() -> Vec<&'static $crate::calls::Entry> {
            vec![$($name::entry()),*]
        }
    };
    (@body $(#[$meta:meta])* $name:ident ($($arg:ident : $type:ty),* $(,)?) $call:ident $body:block) => {
        $(#[$meta])*
        pub(super) fn $name($call: &$crate::calls::Call, $($arg: $type),*) -> $crate::error::Answer $body
    };
    (@export $function:ident $per_thread:literal $name:ident $ending:literal ($($arg:ident : $type:ty),* $(,)?)) => {
        // SAFETY of those who call: as the driver's documentation has it for this function.
        #[unsafe(export_name = concat!(stringify!($name), $ending))]
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $function($($arg: $type),*) -> i32 {
            $crate::calls::enter(&ENTRY, $per_thread, |call| super::body::$name(call, $($arg),*))
        }
    };
    (@twin none) => { None };
    (@twin ptds) => { Some(($crate::calls::Address(per_thread as *const ()), "_ptds")) };
    (@twin ptsz) => { Some(($crate::calls::Address(per_thread as *const ()), "_ptsz")) };
    (@alias none $name:ident $args:tt) => {};
    (@alias ptds $name:ident $args:tt) => { entries!{@export per_thread true $name "_ptds" $args} };
    (@alias ptsz $name:ident $args:tt) => { entries!{@export per_thread true $name "_ptsz" $args} };
}
pub(crate) use entries;

/// Every entry there is: the driver's, and those of other libraries of CUDA's.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    driver().chain(blas::all()).chain(nvml::all())
}

/// Every entry of the driver.
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
    fn every_entry_has_its_name_once() {
        let mut names: Vec<_> = super::all().map(|entry| entry.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
