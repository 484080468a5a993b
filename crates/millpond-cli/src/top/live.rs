//! Controls the terminal, and runs the loop over keys, statistics and frames.

use super::app::{Action, App, Key};
use super::find::Target;
use super::source::{Look, Source};
use super::view;
use crate::exit::CliError;
use crate::terminal::colours;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io;
use std::time::Duration;

/// The wait for keys in each turn of the loop.
const TURN: Duration = Duration::from_millis(50);

/// Shows the display until the user quits. Restores the terminal in any case, even after a panic.
pub(crate) fn run(target: Option<Target>) -> Result<(), CliError> {
    let failed = |source| CliError::Write {
        what: "to the terminal".to_owned(),
        source,
    };
    let source = Source::start(target.clone()).map_err(failed)?;
    let mut app = App::new(target);
    app.colours = colours();
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = show(&mut terminal, &mut app, &source);
    let restored = ratatui::try_restore();
    outcome.and(restored).map_err(failed)
}

fn show(terminal: &mut DefaultTerminal, app: &mut App, source: &Source) -> io::Result<()> {
    loop {
        while let Some(look) = source.next() {
            take(app, look);
        }
        terminal.draw(|frame| view::draw(frame, app))?;
        if !event::poll(TURN)? {
            continue;
        }
        let Event::Key(pressed) = event::read()? else {
            continue;
        };
        if pressed.kind == KeyEventKind::Release {
            continue;
        }
        match key(pressed).map(|key| app.on_key(key)) {
            Some(Action::Quit) => return Ok(()),
            Some(Action::Follow(target)) => source.follow(target),
            Some(Action::Nothing) | None => {}
        }
    }
}

fn take(app: &mut App, look: Look) {
    match look {
        Look::All(processes) => app.take_processes(processes),
        Look::Process(of, outcome) => {
            if app.watched.as_ref().is_some_and(|watched| watched.target == of) {
                app.take_stats(*outcome);
            }
        }
    }
}

fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        let ends = matches!(pressed.code, KeyCode::Char('c' | 'd'));
        return ends.then_some(Key::Char('q'));
    }
    Some(match pressed.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc | KeyCode::Backspace => Key::Back,
        _ => return None,
    })
}
