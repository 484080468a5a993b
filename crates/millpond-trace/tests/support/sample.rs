//! A recording with every kind of row: four pools on two devices and the host, blocks that wait for streams, lost
//! events, and stacks with and without names.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test support; each test binary uses a part"
)]

use millpond_trace::recording::{Gauge, Kind, RecordingError, Row, Writer};

/// Names that are difficult for file formats.
pub(crate) fn hostile() -> Vec<String> {
    let mut names: Vec<String> = [
        "a\nb",
        "c;d",
        "\"e\" 'f'",
        "g\0h",
        "#i",
        "j\\k</script>",
        "l\u{202e}m\u{1b}[2J",
        "é {} %s, n",
    ]
    .map(str::to_owned)
    .into();
    names.push("long".repeat(1 << 18));
    names
}

/// Names as in real programs.
pub(crate) fn ordinary() -> Vec<String> {
    [
        "forward;layer 3;model.py:call:12<train.py:<lambda>:80",
        "optimizer",
        "batch",
    ]
    .map(str::to_owned)
    .into()
}

const POOLS: [(&str, &str, i32); 4] = [
    ("cuda", "", 0),
    ("cuda", "weights", 0),
    ("cuda", "", 1),
    ("pinned", "staging", -1),
];
/// Bytes that a pool takes from its source at once, and the size of the largest block in them.
const SEGMENT: u64 = 64 << 20;
const ROOM: u64 = 1 << 20;
/// The address of the recorded code.
pub(crate) const CODE: u64 = 0x5555_0000_0000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// The places for the blocks of a pool.
struct Places {
    base: u64,
    free: Vec<u64>,
}

/// Returns the recording as a file. Rows are at least a microsecond apart.
pub(crate) fn sample(steps: u64, names: &[String]) -> Vec<u8> {
    Program::new(names).run(steps).unwrap()
}

struct Program {
    writer: Writer<Vec<u8>>,
    random: Random,
    places: Vec<Places>,
    live: Vec<Row>,
    waiting: Vec<Row>,
    tags: u32,
    time: u64,
    newest: u64,
}

impl Program {
    fn new(names: &[String]) -> Self {
        let facts = [
            ("program", "train"),
            ("pid", "4242"),
            ("host", "node"),
            ("start", "1700000000.5"),
        ];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let place = |pool: u64| Places {
            base: (0x10 + pool) << 36,
            free: (0..SEGMENT / ROOM).rev().collect(),
        };
        let mut program = Self {
            writer: Writer::new(Vec::new(), &facts).unwrap(),
            random: Random(11),
            places: (0..POOLS.len() as u64).map(place).collect(),
            live: Vec::new(),
            waiting: Vec::new(),
            tags: names.len() as u32,
            time: 0,
            newest: 0,
        };
        program.define(names).unwrap();
        program
    }

    fn say(&mut self, row: Row, text: &str, list: &[u64]) -> Result<(), RecordingError> {
        self.writer.say(&row, Some(text), Some(list))
    }

    fn define(&mut self, names: &[String]) -> Result<(), RecordingError> {
        for (at, (memory, name, device)) in POOLS.into_iter().enumerate() {
            let pool = at as u32 + 1;
            let row = Row {
                pool,
                ..Row::new(Kind::DefinePool, 0)
            };
            // Hostile names are also used for pools.
            let more = names.get(at).filter(|_| name == "weights");
            let name = more.map_or(name, String::as_str);
            self.say(row, &format!("{memory}\n{name}"), &[i64::from(device) as u64])?;
        }
        for (at, name) in names.iter().enumerate() {
            let number = at as u32 + 1;
            let tag = Row {
                tag: number,
                ..Row::new(Kind::DefineTag, 0)
            };
            self.say(tag, name, &[])?;
            let thread = Row {
                thread: number,
                ..Row::new(Kind::DefineThread, 0)
            };
            self.say(thread, name, &[])?;
            let stack = Row {
                stack: number,
                ..Row::new(Kind::DefineStack, 0)
            };
            let number = u64::from(number);
            self.writer.say(
                &stack,
                None,
                Some(&[CODE + 16 * number, CODE + 8, CODE + 0x800 + number]),
            )?;
            let one = name.replace('\n', " ");
            let inlined = format!("{one}\nsrc/{one}.rs\n{number}\nouter_{number}\nsrc/outer.rs\n7");
            self.say(Row::new(Kind::DefineFrame, 0), &inlined, &[CODE + 16 * number])?;
        }
        self.say(
            Row::new(Kind::DefineFrame, 0),
            "main\nsrc/main.rs\n1",
            &[CODE + 0x800 + 1, CODE + 0x800 + 2],
        )?;
        let module = Row {
            address: CODE,
            bytes: 0x1000,
            ..Row::new(Kind::DefineModule, 0)
        };
        self.say(
            module,
            "00112233445566778899aabbccddeeff00112233\n/nowhere/train",
            &[CODE],
        )
    }

    fn tick(&mut self) -> u64 {
        self.time += 1_000 * (1 + self.random.below(5));
        self.time
    }

    fn push(&mut self, row: Row) -> Result<(), RecordingError> {
        let time = self.tick();
        self.writer.push(&Row { time, ..row })
    }

    fn run(mut self, steps: u64) -> Result<Vec<u8>, RecordingError> {
        for pool in 0..POOLS.len() {
            self.range(pool, Kind::Reserve)?;
        }
        for step in 0..steps {
            let begins = Row {
                bytes: step,
                ..Row::new(Kind::Step, 0)
            };
            self.push(begins)?;
            for _ in 0..40 {
                self.step()?;
            }
            self.gauges()?;
            if step == steps / 2 {
                self.lose()?;
            }
            if step % 3 == 2 {
                self.keyframe()?;
            }
        }
        let refused = Row {
            requested: 1 << 40,
            pool: 3,
            thread: 1,
            tag: 2,
            ..Row::new(Kind::Refused, 0)
        };
        self.push(refused)?;
        self.writer.finish(self.time)
    }

    fn step(&mut self) -> Result<(), RecordingError> {
        match self.random.below(10) {
            0..5 => self.alloc(),
            5..8 => self.free(),
            8 => self.complete(),
            _ => {
                let time = self.tick();
                let row = Row::new(Kind::Mark, time);
                self.writer.say(&row, Some("half;way\nthere"), None)
            }
        }
    }

    fn range(&mut self, pool: usize, kind: Kind) -> Result<(), RecordingError> {
        let row = Row {
            address: self.places[pool].base,
            bytes: SEGMENT,
            pool: pool as u32 + 1,
            ..Row::new(kind, 0)
        };
        self.push(row)
    }

    fn alloc(&mut self) -> Result<(), RecordingError> {
        let pool = self.random.below(POOLS.len() as u64) as usize;
        let Some(place) = self.places[pool].free.pop() else {
            return Ok(());
        };
        let number = self.random.below(u64::from(self.tags) + 1) as u32;
        let requested = 1 + self.random.below(ROOM - 512);
        self.newest += 1;
        let time = self.tick();
        let row = Row {
            id: self.newest,
            address: self.places[pool].base + place * ROOM,
            requested,
            bytes: requested.next_multiple_of(512),
            pool: pool as u32 + 1,
            stream: self.random.below(3) as u32,
            thread: 1 + number % self.tags,
            tag: number,
            // Some blocks have a tag and no stack, some have neither.
            stack: if self.random.below(3) == 0 { 0 } else { number },
            ..Row::new(Kind::Alloc, time)
        };
        self.live.push(row);
        self.writer.push(&row)
    }

    fn free(&mut self) -> Result<(), RecordingError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let block = self.live.swap_remove(at);
        let waits = block.pool != 4 && self.random.below(2) == 0;
        let kind = if waits {
            self.waiting.push(block);
            Kind::FreeRequested
        } else {
            self.give_back(&block);
            Kind::Free
        };
        // A free repeats ids and bytes, but has no address or stack of its own.
        let row = Row {
            kind,
            address: 0,
            stack: 0,
            thread: 2,
            ..block
        };
        self.push(row)
    }

    fn complete(&mut self) -> Result<(), RecordingError> {
        let Some(block) = self.waiting.pop() else {
            return Ok(());
        };
        self.give_back(&block);
        let row = Row {
            kind: Kind::FreeCompleted,
            address: 0,
            stack: 0,
            ..block
        };
        self.push(row)
    }

    fn give_back(&mut self, block: &Row) {
        let places = &mut self.places[block.pool as usize - 1];
        places.free.push((block.address - places.base) / ROOM);
    }

    fn gauges(&mut self) -> Result<(), RecordingError> {
        for (at, gauge) in Gauge::ALL.into_iter().enumerate() {
            let of_pool = !matches!(gauge, Gauge::DeviceUsed | Gauge::DeviceTotal | Gauge::Resident);
            let row = Row {
                pool: u32::from(of_pool),
                tag: gauge as u32,
                bytes: 4096 * (at as u64 + 1),
                ..Row::new(Kind::Gauge, 0)
            };
            self.push(row)?;
        }
        Ok(())
    }

    /// Records the loss of some frees and an allocation.
    fn lose(&mut self) -> Result<(), RecordingError> {
        let mut bytes = 0;
        for _ in 0..self.live.len().min(2) {
            let block = self.live.remove(0);
            bytes += block.requested;
            self.give_back(&block);
        }
        let places = &mut self.places[0];
        let place = places.free.pop().unwrap();
        self.newest += 1;
        let time = self.tick();
        self.live.push(Row {
            id: self.newest,
            address: self.places[0].base + place * ROOM,
            requested: 700,
            bytes: 1024,
            pool: 1,
            tag: 1,
            ..Row::new(Kind::Live, time)
        });
        let lost = Row {
            id: 3,
            requested: 700,
            bytes,
            ..Row::new(Kind::Lost, 0)
        };
        self.push(lost)?;
        let unknown = Row {
            id: self.newest + 100,
            bytes: 512,
            requested: 512,
            pool: 1,
            ..Row::new(Kind::Free, 0)
        };
        self.push(unknown)?;
        self.keyframe()
    }

    fn keyframe(&mut self) -> Result<(), RecordingError> {
        let begins = Row {
            bytes: self.live.len() as u64,
            ..Row::new(Kind::Keyframe, 0)
        };
        self.push(begins)?;
        for row in &self.live {
            let live = Row {
                kind: Kind::Live,
                ..*row
            };
            self.writer.push(&live)?;
        }
        Ok(())
    }
}
