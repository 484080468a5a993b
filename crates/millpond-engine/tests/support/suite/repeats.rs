//! Tests of a block that is freed and requested again.

use super::MIB;
use crate::support::driver::request;
use millpond_engine::{Block, Engine, Event, Mark, Request, Settings, Simulated, Stream, policies};

fn engine(policy: &str, capacity: u64) -> Engine<Simulated> {
    let policy = policies::build(policy, &Settings::default()).expect("a policy");
    Engine::new(policy, Simulated::new().with_capacity(Some(capacity)))
}

/// Deterministic random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// The same program on two engines. One of them uses `repeat`.
struct Twins {
    quick: Engine<Simulated>,
    told: Engine<Simulated>,
    /// The live blocks of both engines, with their request.
    live: Vec<(Block, Block, Request)>,
    repeats: usize,
}

impl Twins {
    fn allocate(&mut self, request: Request) {
        match (self.quick.allocate(request), self.told.allocate(request)) {
            (Ok(one), Ok(other)) => {
                assert_eq!(one, other);
                self.live.push((one, other, request));
            }
            (one, other) => assert_eq!(one.is_err(), other.is_err()),
        }
    }

    /// Frees the last block and makes a request.
    fn turn(&mut self, request: Request) {
        let Some((one, other, before)) = self.live.pop() else {
            return;
        };
        if self.quick.repeat(&one, &request) {
            assert_eq!(request, before);
            self.told.free(other, &[]);
            let again = self.told.allocate(request).expect("it was there");
            assert_eq!(one, again);
            self.live.push((one, again, request));
            self.repeats += 1;
        } else {
            self.quick.free(one, &[]);
            self.told.free(other, &[]);
            self.allocate(request);
        }
    }

    fn free(&mut self, at: usize, uses: &[Stream]) {
        let (one, other, _) = self.live.swap_remove(at);
        self.quick.free(one, uses);
        self.told.free(other, uses);
    }

    fn compare(&self) {
        assert_eq!(self.quick.stats(), self.told.stats());
        assert_eq!(self.quick.meter(), self.told.meter());
    }
}

pub(crate) fn repeat_has_the_same_effect_as_a_free_and_an_allocation(policy: &str) {
    for (seed, capacity) in [(1, 96 * MIB), (2, 192 * MIB), (3, 4096 * MIB)] {
        let mut twins = Twins {
            quick: engine(policy, capacity),
            told: engine(policy, capacity),
            live: Vec::new(),
            repeats: 0,
        };
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
        let draw = |dice: &mut Dice| {
            let most = 1 << (6 + dice.below(18));
            request(dice.below(most), dice.below(2) as u32, 0)
        };
        let mut asked = draw(&mut dice);
        for _ in 0..4000 {
            match dice.below(20) {
                0..=6 => {
                    asked = draw(&mut dice);
                    twins.allocate(asked);
                }
                7..=11 if !twins.live.is_empty() => {
                    let at = dice.below(twins.live.len() as u64) as usize;
                    let uses = [Stream(2)];
                    twins.free(at, if dice.below(8) == 0 { &uses } else { &[] });
                }
                12 => {
                    for engine in [&mut twins.quick, &mut twins.told] {
                        engine.mark(Mark::Ticks(1));
                    }
                }
                13 => {
                    let hold = dice.below(2) == 0;
                    for engine in [&mut twins.quick, &mut twins.told] {
                        let device = engine.source_mut();
                        for event in 0..device.next_event().0 {
                            device.complete(Event(event));
                        }
                        device.set_holding(hold);
                    }
                }
                14 => asked = draw(&mut dice),
                _ => {
                    let again = twins.live.last().map_or(asked, |(.., request)| *request);
                    twins.turn(if dice.below(4) == 0 { asked } else { again });
                }
            }
            twins.compare();
        }
        assert_eq!(
            twins.repeats > 0,
            policy == "millpond",
            "{} repeats",
            twins.repeats
        );
    }
}
