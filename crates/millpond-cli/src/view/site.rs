//! The recordings of a page and their data. Data that needs a walk is computed at the first request and cached.

use super::redirect::Redirect;
use crate::symbols::ModuleSymbols;
use millpond_engine::policies;
use millpond_replay::analysis::{Overview, TableError, blocks};
use millpond_replay::view::{Served, WhatIf, glance, offsets, policy, served, stacks, told};
use millpond_trace::history::History;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A kind of data about a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    /// The overview, which is available at once.
    Glance,
    /// The table of blocks, in parts.
    Blocks,
    /// Stacks with function names.
    Stacks,
    /// Findings, steps and missing parts.
    Told,
    /// The memory that the program needs, in a few sentences.
    Answer,
    /// The memory that the policy with this index would have taken.
    Replay(usize),
}

impl Thing {
    /// Parses the last part of an address.
    pub(super) fn named(name: &str) -> Option<Self> {
        if let Some(policy) = name.strip_prefix("replay-") {
            return policies::names()
                .position(|known| known == policy)
                .map(Self::Replay);
        }
        match name {
            "glance" => Some(Self::Glance),
            "blocks" => Some(Self::Blocks),
            "stacks" => Some(Self::Stacks),
            "told" => Some(Self::Told),
            "answer" => Some(Self::Answer),
            _ => None,
        }
    }
}

/// A computed text, or the reason for its failure.
type Made = Result<String, String>;

/// A recording that is served.
struct Shown {
    path: PathBuf,
    history: History,
    overview: Overview,
    glance: OnceLock<Made>,
    stacks: OnceLock<Made>,
    told: OnceLock<Made>,
    answer: OnceLock<Made>,
    what_if: OnceLock<Result<WhatIf, String>>,
    replays: Vec<OnceLock<Made>>,
}

impl Shown {
    /// Replays the recording under the policy with this index.
    fn replayed(&self, number: usize) -> Made {
        let what_if = self
            .what_if
            .get_or_init(|| WhatIf::new(&self.history).map_err(|error| error.to_string()));
        let what_if = what_if.as_ref().map_err(Clone::clone)?;
        let policy = policies::names().nth(number).unwrap_or_default();
        let line = what_if.under(policy).map_err(|error| error.to_string())?;
        Ok(line.to_string())
    }
}

/// All data of the server.
pub(super) struct Site {
    token: String,
    page: String,
    policy: String,
    recordings: Vec<Shown>,
    most_blocks: u64,
    redirect: Mutex<Option<Redirect>>,
}

impl Site {
    pub(super) fn new(
        paths: &[PathBuf],
        names: &[String],
        opened: Vec<(History, Overview)>,
        policies: &[String],
        most_blocks: u64,
    ) -> io::Result<Self> {
        let page = served(&Served {
            names,
            version: super::VERSION,
            policies,
            offsets: offsets(names.iter().zip(opened.iter().map(|(history, _)| history))),
        });
        let recordings = paths.iter().zip(opened).map(|(path, (history, overview))| Shown {
            path: path.clone(),
            history,
            overview,
            glance: OnceLock::new(),
            stacks: OnceLock::new(),
            told: OnceLock::new(),
            answer: OnceLock::new(),
            what_if: OnceLock::new(),
            replays: policies::names().map(|_| OnceLock::new()).collect(),
        });
        Ok(Self {
            token: token()?,
            page,
            policy: format!("{}; frame-ancestors 'none'", policy(true)),
            recordings: recordings.collect(),
            most_blocks,
            redirect: Mutex::new(None),
        })
    }

    /// Returns the token with which every address begins. Requests without it get nothing.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Stores the file that redirects a browser to this page, until the page is requested.
    pub(super) fn set_redirect(&self, redirect: Redirect) {
        *self.redirect.lock().unwrap_or_else(PoisonError::into_inner) = Some(redirect);
    }

    /// Removes the redirect file.
    pub(super) fn remove_redirect(&self) {
        self.redirect
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    pub(super) fn page(&self) -> &str {
        &self.page
    }

    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the number of recordings.
    pub(super) fn len(&self) -> usize {
        self.recordings.len()
    }

    /// Returns data of a recording in the form of text.
    pub(super) fn text(&self, index: usize, thing: Thing) -> Result<&str, &str> {
        let Some(of) = self.recordings.get(index) else {
            return Err("there is no such recording");
        };
        let symbols = || ModuleSymbols::new(&of.history.definitions);
        let made = match thing {
            Thing::Glance => of
                .glance
                .get_or_init(|| Ok(glance(&of.history, &of.overview).to_string())),
            Thing::Stacks => of
                .stacks
                .get_or_init(|| Ok(stacks(&of.history, &symbols()).to_string())),
            Thing::Told => of.told.get_or_init(|| {
                let told = told(&of.history, &symbols());
                told.map(|told| told.to_string())
                    .map_err(|error| error.to_string())
            }),
            Thing::Answer => of.answer.get_or_init(|| {
                let answer = super::answer(&of.path, &of.overview, true);
                answer
                    .map(|answer| answer.to_string())
                    .map_err(|error| error.to_string())
            }),
            Thing::Replay(number) => match of.replays.get(number) {
                Some(made) => made.get_or_init(|| of.replayed(number)),
                None => return Err("there is no such policy"),
            },
            Thing::Blocks => return Err("blocks are told in parts"),
        };
        made.as_deref().map_err(String::as_str)
    }

    /// Walks a recording and writes its blocks. The length of each part precedes it, and so does the length of each section.
    pub(super) fn blocks(&self, index: usize, out: &mut dyn Write) -> io::Result<()> {
        let Some(of) = self.recordings.get(index) else {
            return Ok(());
        };
        let keeping = of.overview.sizes.keeping(self.most_blocks);
        let symbols = ModuleSymbols::new(&of.history.definitions);
        let told = blocks(&of.history, &symbols, keeping, &mut |part| {
            let length: usize = part.iter().map(|section| 4 + section.len()).sum();
            out.write_all(&length_of(length)?)?;
            for section in &part {
                out.write_all(&length_of(section.len())?)?;
                out.write_all(section)?;
            }
            out.flush()
        });
        match told {
            Ok(_) => Ok(()),
            Err(TableError::Taker(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

fn length_of(bytes: usize) -> io::Result<[u8; 4]> {
    let bytes = u32::try_from(bytes).map_err(io::Error::other)?;
    Ok(bytes.to_le_bytes())
}

/// Returns 128 random bits from the system as text, which cannot be guessed.
pub(super) fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
