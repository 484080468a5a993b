//! Writes a pprof profile: allocations and bytes of all blocks and of those in use, for each stack.

use super::events::Source;
use super::profile::{Profile, Site, counted, estimated};
use super::protobuf::Message;
use super::stacks::{Numbers, clean};
use super::{At, ExportError, Exported};
use crate::history::Frame;
use std::io::Write;

/// Field numbers of `perftools.profiles`.
mod profile_field {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRINGS: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// The name and unit of each value of a sample.
const TYPES: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let profile = Profile::of(source)?;
    let at = source.options.at;
    let mut tables = Tables::new(source);
    let mut file = Message::new();
    for (name, unit) in TYPES {
        file.nested(profile_field::SAMPLE_TYPE, |kind| {
            kind.number(1, tables.string(name)).number(2, tables.string(unit));
        });
    }
    for site in &profile.sites {
        let sample = tables.sample(site, at);
        file.message(profile_field::SAMPLE, &sample);
    }
    out.write_all(file.bytes())?;
    out.write_all(tables.mappings().bytes())?;
    out.write_all(tables.told.bytes())?;
    let mut end = Message::new();
    let default = if at == At::Total {
        "alloc_space"
    } else {
        "inuse_space"
    };
    let default = tables.string(default);
    let comment = tables.string(&format!(
        "{}: the bytes in use are the {}{}",
        clean(source.program()),
        counted(use_of(at)),
        estimated(source)
    ));
    let start = source.start();
    if start > 0 {
        end.number(profile_field::TIME_NANOS, start);
    }
    end.number(profile_field::DURATION_NANOS, source.history.duration)
        .packed(profile_field::COMMENT, [comment])
        .number(profile_field::DEFAULT_SAMPLE_TYPE, default);
    for text in &tables.texts {
        end.text(profile_field::STRINGS, text);
    }
    out.write_all(end.bytes())?;
    Ok(Exported::new(
        profile.events,
        format!(
            "times and single blocks: the bytes in use are the {}{}",
            counted(use_of(at)),
            estimated(source)
        ),
    ))
}

/// Returns the blocks that count as in use. All allocated bytes have sample types of their own.
fn use_of(at: At) -> At {
    match at {
        At::Total | At::Peak => At::Peak,
        At::End => At::End,
    }
}

/// The tables to which samples refer by number.
struct Tables<'a, 's> {
    source: &'a Source<'s>,
    strings: Numbers<String>,
    texts: Vec<String>,
    functions: Numbers<(String, String)>,
    locations: Numbers<LocationKey>,
    /// The encoded locations and functions.
    told: Message,
}

/// The subject of a location.
#[derive(Clone, PartialEq, Eq, Hash)]
enum LocationKey {
    Address(u64),
    Frame(Frame),
}

impl<'a, 's> Tables<'a, 's> {
    fn new(source: &'a Source<'s>) -> Self {
        let mut tables = Self {
            source,
            strings: Numbers::default(),
            texts: Vec::new(),
            functions: Numbers::default(),
            locations: Numbers::default(),
            told: Message::new(),
        };
        // The format requires the empty string first.
        tables.string("");
        tables
    }

    fn string(&mut self, text: &str) -> u64 {
        let (number, new) = self.strings.of(text.to_owned());
        if new {
            self.texts.push(text.to_owned());
        }
        u64::from(number)
    }

    fn sample(&mut self, site: &Site, at: At) -> Message {
        let locations = self.locations(site);
        let in_use = site.at(use_of(at));
        let values = [site.total.blocks, site.total.bytes, in_use.blocks, in_use.bytes];
        let mut sample = Message::new();
        sample.packed(1, locations).packed(2, values);
        let pool = clean(&self.source.pool_name(site.origin.pool)).into_owned();
        let tag = clean(self.source.history.definitions.tag(site.origin.tag)).into_owned();
        for (key, value) in [("tag", tag), ("pool", pool)] {
            if !value.is_empty() {
                sample.nested(3, |label| {
                    label.number(1, self.string(key)).number(2, self.string(&value));
                });
            }
        }
        let device = self.source.device(site.origin.pool);
        sample.nested(3, |label| {
            label
                .number(1, self.string("device"))
                .signed(3, i64::from(device));
        });
        sample
    }

    /// Returns the locations of a site, innermost first.
    fn locations(&mut self, site: &Site) -> Vec<u64> {
        let addresses = self.source.history.definitions.stack(site.origin.stack);
        let each = |address| {
            self.location(LocationKey::Address(address), |source| {
                source.symbols.frames(address)
            })
        };
        let locations: Vec<u64> = addresses.map(each).collect();
        if !locations.is_empty() {
            return locations;
        }
        let frames = self.source.folded(site.origin);
        let each = |frame: Frame| self.location(LocationKey::Frame(frame.clone()), |_| vec![frame]);
        frames.into_iter().map(each).collect()
    }

    fn location(&mut self, place: LocationKey, frames: impl FnOnce(&Source<'_>) -> Vec<Frame>) -> u64 {
        let (number, new) = self.locations.of(place.clone());
        let id = u64::from(number) + 1;
        if !new {
            return id;
        }
        let mut location = Message::new();
        location.number(1, id);
        if let LocationKey::Address(address) = place {
            if let Some(mapping) = self.mapping_of(address) {
                location.number(2, mapping);
            }
            location.number(3, address);
        }
        for frame in frames(self.source) {
            location.nested(4, |line| {
                line.number(1, self.function(&frame))
                    .number(2, u64::from(frame.line));
            });
        }
        self.told.message(profile_field::LOCATION, &location);
        id
    }

    fn function(&mut self, frame: &Frame) -> u64 {
        let (name, file) = (
            clean(&frame.function).into_owned(),
            clean(&frame.file).into_owned(),
        );
        let (number, new) = self.functions.of((name.clone(), file.clone()));
        let id = u64::from(number) + 1;
        if new {
            let (name, file) = (self.string(&name), self.string(&file));
            self.told.nested(profile_field::FUNCTION, |function| {
                function
                    .number(1, id)
                    .number(2, name)
                    .number(3, name)
                    .number(4, file);
            });
        }
        id
    }

    fn mapping_of(&self, address: u64) -> Option<u64> {
        let modules = self.source.history.definitions.modules();
        let holds = |module: &crate::history::Module| {
            (module.address..module.address.saturating_add(module.bytes)).contains(&address)
        };
        modules.iter().position(holds).map(|at| at as u64 + 1)
    }

    fn mappings(&mut self) -> Message {
        let mut all = Message::new();
        for (at, module) in self.source.history.definitions.modules().iter().enumerate() {
            all.nested(profile_field::MAPPING, |mapping| {
                mapping
                    .number(1, at as u64 + 1)
                    .number(2, module.address)
                    .number(3, module.address.saturating_add(module.bytes))
                    .number(4, module.address.saturating_sub(module.base))
                    .number(5, self.string(&clean(&module.path)))
                    .number(6, self.string(&clean(&module.build_id)));
            });
        }
        all
    }
}
