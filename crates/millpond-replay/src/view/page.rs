//! Writes the page's frame: its text, its one script, its style and the content security policy.
//!
//! Names in a recording are untrusted data. The frame contains the names of files, escaped. Everything else
//! is sent as JSON or as columns, and the script turns it into text, never into markup. The content security
//! policy allows only the script whose hash it names.

use crate::page::encode::base64;
use crate::page::html::LOGO;
use crate::page::text::{Json, Text};
use millpond_engine::policies;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{self, Write};

const STYLE: &str = concat!(
    include_str!("../page/assets/tokens.css"),
    include_str!("../page/assets/layout.css"),
    include_str!("../page/assets/parts.css"),
    include_str!("assets/view.css"),
);

const SCRIPT: &str = concat!(
    "(() => {\n'use strict';\n",
    include_str!("../page/assets/bytes.js"),
    include_str!("../page/assets/units.js"),
    include_str!("../page/assets/series.js"),
    include_str!("../page/assets/watched.js"),
    include_str!("../page/assets/ink.js"),
    include_str!("../page/assets/theme.js"),
    include_str!("../page/assets/axis.js"),
    include_str!("../page/assets/pens.js"),
    include_str!("../page/assets/cover.js"),
    include_str!("../page/assets/names.js"),
    include_str!("../page/assets/strip.js"),
    include_str!("../page/assets/rows.js"),
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
    "})();\n",
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
}

/// Returns the content security policy of a page. Only the page's own content runs or loads. A served page
/// may also connect to its server.
#[must_use]
pub fn policy(is_served: bool) -> String {
    let hash = |text: &str| base64(&Sha256::digest(text.as_bytes()));
    let connect = if is_served { "connect-src 'self'; " } else { "" };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; {connect}base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
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
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"millpond\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{} – Millpond</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <div class=\"bar\">{LOGO}<b>Millpond</b><span>timeline</span><span class=\"space\"></span>\
         <button type=\"button\" class=\"plain\" id=\"keys\">Keys <kbd>?</kbd></button>\
         <button type=\"button\" class=\"plain\" id=\"theme\">Dark</button></div>\n<main>\n<section class=\"lead\">\n<h1>{}</h1>\n",
        policy(is_served),
        Text(&title),
        Text(&title),
    )?;
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
    let meta: Value = json!({
        "names": page.names,
        "served": is_served,
        "policies": known,
        "shown": page.policies,
        "inks": policies::names().collect::<Vec<_>>(),
    });
    writeln!(
        out,
        "<script type=\"application/json\" id=\"meta\">{}</script>\n<script>{SCRIPT}</script>",
        Json(&meta)
    )?;
    data(out)?;
    writeln!(out, "</body>\n</html>")
}
