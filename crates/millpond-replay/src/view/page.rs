//! Writes the viewer's page. Names of files are escaped. Everything else is sent as JSON or as columns, and the
//! script turns it into text, never into markup.

use super::told::tame;
use crate::web::Frame;
use crate::web::text::Text;
use millpond_engine::policies;
use millpond_trace::AROUND_CALLS;
use serde_json::{Value, json};
use std::io::{self, Write};

const SCRIPT: &str = concat!(
    include_str!("assets/table.js"),
    include_str!("assets/lens.js"),
    include_str!("assets/window.js"),
    include_str!("assets/tree.js"),
    include_str!("assets/source.js"),
    include_str!("assets/look.js"),
    include_str!("assets/whatif.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/strip.js"),
    include_str!("assets/addresses.js"),
    include_str!("assets/flame.js"),
    include_str!("assets/lists.js"),
    include_str!("assets/card.js"),
    include_str!("assets/telling.js"),
    include_str!("assets/compare.js"),
    include_str!("assets/steps.js"),
    include_str!("assets/keys.js"),
    include_str!("assets/start.js"),
);

/// The contents of a served page.
#[derive(Clone, Debug)]
pub struct Served<'a> {
    /// Names of the recordings.
    pub names: &'a [String],
    /// Name and version of the program that serves the page.
    pub version: &'a str,
    /// Policies under which the recordings are replayed from the start.
    pub policies: &'a [String],
    /// The starts of the recordings on the time axis, from [`offsets`](super::offsets).
    pub offsets: Result<Vec<u64>, String>,
}

/// Returns the content security policy of a page. Only the page's own content runs or loads. A served page
/// may also connect to its server.
#[must_use]
pub fn policy(is_served: bool) -> String {
    Frame::new(SCRIPT, is_served).policy()
}

/// Returns the page that requests the recordings from its server.
#[must_use]
pub fn served(page: &Served<'_>) -> String {
    let mut out = Vec::new();
    // Writing into a vector cannot fail.
    let _ = write(page, true, &mut out, |_| Ok(()));
    String::from_utf8(out).unwrap_or_default()
}

/// Writes the page. `data` writes the part after the script.
pub(super) fn write(
    page: &Served<'_>,
    is_served: bool,
    out: &mut dyn Write,
    data: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let title = page.names.join(", ");
    let frame = Frame::new(SCRIPT, is_served);
    frame.begin(&title, "timeline", out)?;
    out.write_all(include_str!("assets/body.html").as_bytes())?;
    writeln!(
        out,
        "</main>\n<footer>Written by {}. {}</footer>",
        Text(page.version),
        if is_served {
            "This page is served by a program on this machine, and ends with it."
        } else {
            "This file holds everything it shows and loads nothing."
        }
    )?;
    out.write_all(include_str!("assets/help.html").as_bytes())?;
    // A server can replay under any policy.
    let known: Vec<&str> = if is_served {
        policies::names().collect()
    } else {
        page.policies.iter().map(String::as_str).collect()
    };
    let mut meta: Value = json!({
        "names": page.names,
        "aroundCalls": AROUND_CALLS,
        "served": is_served,
        "policies": known,
        "shown": page.policies,
        "inks": policies::names().collect::<Vec<_>>(),
        "offsets": page.offsets.as_ref().ok(),
        "apart": page.offsets.as_ref().err(),
    });
    tame(&mut meta);
    frame.script(&meta, out)?;
    data(out)?;
    writeln!(out, "</body>\n</html>")
}
