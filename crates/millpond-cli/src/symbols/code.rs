//! The functions of one module, by address in its file.

use super::elf::{Elf, Files, Parsed, Refused, Room, section};
use addr2line::Context;
use gimli::{DwarfSections, EndianArcSlice, RunTimeEndian};
use millpond_trace::history::{Frame, Module};
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::ProgramHeader;
use object::{Object, ObjectSymbol, SymbolKind};
use std::sync::Arc;

/// The most functions in a symbol table. PyTorch's largest library has a tenth of this.
const MOST_FUNCTIONS: usize = 8 << 20;
/// The most functions that are inlined into each other at one address.
const MOST_INLINED: usize = 256;
/// The page size. Mappings begin and end at multiples of it.
const PAGE: u64 = 4096;
/// The most bytes of a name. Demangled names of templates can be arbitrarily long.
const MOST_NAME: usize = 64 << 10;

type Bytes = EndianArcSlice<RunTimeEndian>;

/// The known facts about a module's code.
pub(super) struct Code {
    /// Lines and inlined functions, if the file contains them.
    lines: Option<Context<Bytes>>,
    /// Functions of its symbol tables, by address.
    functions: Vec<Function>,
    /// The parts of the file that hold code, with their addresses.
    segments: Vec<Segment>,
}

/// A part of a file that is mapped as a whole. Each part has its own difference between address and file offset; the linker chooses it.
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

struct Function {
    address: u64,
    bytes: u64,
    name: String,
}

impl Code {
    pub(super) fn new(files: Files, module: &Module) -> Result<Self, Refused> {
        let all = [&files.own, &files.debug];
        let parsed = all.map(|elf| elf.as_ref().and_then(Elf::parse));
        let [own, debug] = &parsed;
        let Some(any) = own.as_ref().or(debug.as_ref()) else {
            return Err(Refused::Unreadable);
        };
        let with_lines = |file: &&Parsed<'_>| file.section_by_name(".debug_info").is_some();
        let lines = parsed.iter().flatten().find(with_lines).and_then(lines);
        let mut functions: Vec<Function> = parsed.iter().flatten().flat_map(functions).collect();
        functions.sort_by_key(|function| function.address);
        Ok(Self {
            lines,
            functions,
            segments: segments(any, module),
        })
    }

    /// Returns the functions at an offset in the file, innermost first.
    pub(super) fn frames(&self, offset: u64) -> Vec<Frame> {
        let of = |segment: &Segment| {
            Some((
                segment.address,
                offset.checked_sub(segment.offset)?,
                segment.bytes,
            ))
        };
        let mut places = self.segments.iter().filter_map(of);
        let place = places.find(|(_, into, bytes)| into < bytes);
        let Some(address) = place.and_then(|(address, into, _)| address.checked_add(into)) else {
            return Vec::new();
        };
        let mut frames = self.lined(address).unwrap_or_default();
        if let Some(function) = self.function(address) {
            match frames.last_mut() {
                // Line tables name a function without its path, which the symbol table contains.
                Some(last) if function.ends_with(&last.function) => last.function = function,
                Some(_) => {}
                None => frames.push(Frame {
                    function,
                    ..Frame::default()
                }),
            }
        }
        frames.retain(|frame| !frame.function.is_empty());
        frames
    }

    fn lined(&self, address: u64) -> Option<Vec<Frame>> {
        let lines = self.lines.as_ref()?;
        let mut found = lines.find_frames(address).skip_all_loads().ok()?;
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let function = frame.function.as_ref().and_then(|name| name.demangle().ok());
            let place = frame.location.as_ref();
            frames.push(Frame {
                function: function.map_or_else(String::new, |name| short(&name)),
                file: place.and_then(|place| place.file).map_or_else(String::new, short),
                line: place.and_then(|place| place.line).unwrap_or(0),
            });
            if frames.len() == MOST_INLINED {
                break;
            }
        }
        Some(frames)
    }

    fn function(&self, address: u64) -> Option<String> {
        let next = self
            .functions
            .partition_point(|function| function.address <= address);
        // If several names share an address, the longest function that contains it is used.
        let mut before = self.functions[..next].iter().rev().take(16);
        let found = before.find(|function| address - function.address < function.bytes)?;
        let name = addr2line::demangle_auto(found.name.as_str().into(), None);
        Some(short(&name))
    }
}

/// Cuts a name to at most [`MOST_NAME`] bytes.
fn short(name: &str) -> String {
    let mut end = name.len().min(MOST_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

fn lines(file: &Parsed<'_>) -> Option<Context<Bytes>> {
    let endian = if file.is_little_endian() {
        RunTimeEndian::Little
    } else {
        RunTimeEndian::Big
    };
    let room = Room::of(file);
    let load = |id: gimli::SectionId| Ok::<Arc<[u8]>, gimli::Error>(section(file, id.name(), &room));
    let sections = DwarfSections::load(load).ok()?;
    let dwarf = sections.borrow(|bytes| EndianArcSlice::new(Arc::clone(bytes), endian));
    Context::from_dwarf(dwarf).ok()
}

fn functions(file: &Parsed<'_>) -> Vec<Function> {
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let functions = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let room = Room::of(file);
    let function = |symbol: object::read::elf::ElfSymbol64<'_, '_, _, _>| {
        let name = symbol.name().ok()?;
        // In a hostile file, all symbols may share one name that is as long as the file.
        room.take(name.len() as u64)?;
        Some(Function {
            address: symbol.address(),
            bytes: symbol.size(),
            name: name.to_owned(),
        })
    };
    functions.take(MOST_FUNCTIONS).filter_map(function).collect()
}

/// Returns the parts of a file that are mapped as code.
fn segments(file: &Parsed<'_>, module: &Module) -> Vec<Segment> {
    let endian = file.endian();
    let headers = file.elf_program_headers().iter();
    let code: Vec<_> = headers
        .filter(|header| header.p_type(endian) == PT_LOAD && header.p_flags(endian).contains(PF_X))
        .collect();
    match code.as_slice() {
        // A separate debug file contains no code, and its headers do not hold the offset of the code in the original file. If there is
        // exactly one code segment and the mapping has its size, the mapping begins where the segment begins.
        [one] if one.p_filesz(endian) == 0 => {
            let (from, bytes) = (one.p_vaddr(endian), one.p_memsz(endian));
            let first = from - from % PAGE;
            let end = from
                .checked_add(bytes)
                .and_then(|end| end.checked_next_multiple_of(PAGE));
            let whole = end.is_some_and(|end| end - first == module.bytes);
            let segment = Segment {
                offset: module.address.wrapping_sub(module.base),
                bytes: module.bytes,
                address: first,
            };
            Vec::from_iter(whole.then_some(segment))
        }
        several => several
            .iter()
            .map(|header| Segment {
                offset: header.p_offset(endian),
                bytes: header.p_filesz(endian),
                address: header.p_vaddr(endian),
            })
            .collect(),
    }
}
