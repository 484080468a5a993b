//! The frame that the report page and the viewer share: the style, the script, the content security policy and
//! the elements that contain data.
//!
//! Names in a recording are untrusted data. Text is escaped. Data for the script is JSON without `<`, or
//! compressed. The content security policy allows only the one script whose hash it names.

pub(crate) mod encode;
#[cfg(test)]
mod tests;
pub(crate) mod text;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use encode::Blob;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use text::{Json, Text};

const STYLE: &str = include_str!("web/style.css");

/// The part of the script that both pages use.
const CORE: &str = concat!(
    include_str!("web/bytes.js"),
    include_str!("web/units.js"),
    include_str!("web/series.js"),
    include_str!("web/names.js"),
    include_str!("web/view_state.js"),
    include_str!("web/ink.js"),
    include_str!("web/bands.js"),
    include_str!("web/theme.js"),
    include_str!("web/axis.js"),
    include_str!("web/pens.js"),
    include_str!("web/cover.js"),
    include_str!("web/curves.js"),
    include_str!("web/plane.js"),
    include_str!("web/strip.js"),
    include_str!("web/rows.js"),
    include_str!("web/legend.js"),
    include_str!("web/keys.js"),
);

const LOGO: &str = r#"<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><path d="M3 8c3-2.4 6-2.4 9 0s6 2.4 9 0"/><path d="M5.500 13c2.200-1.700 4.300-1.700 6.500 0s4.300 1.700 6.500 0"/><path d="M8.500 18c1.200-1 2.300-1 3.500 0s2.300 1 3.500 0"/></svg>"#;

/// The frame of a page.
pub(crate) struct Frame {
    script: String,
    is_served: bool,
}

impl Frame {
    /// Creates a frame with the shared script and the page's own. Only a served page may connect to its
    /// server.
    pub(crate) fn new(own_script: &str, is_served: bool) -> Self {
        Self {
            script: format!("(() => {{\n'use strict';\n{CORE}{own_script}}})();\n"),
            is_served,
        }
    }

    /// Returns the number of bytes that the script takes in the page.
    pub(crate) fn script_bytes(&self) -> usize {
        self.script.len()
    }

    /// Returns the content security policy. Only the page's own content runs or loads.
    pub(crate) fn policy(&self) -> String {
        let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
        let connect = if self.is_served {
            "connect-src 'self'; "
        } else {
            ""
        };
        format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; {connect}base-uri 'none'; form-action 'none'",
            hash(&self.script),
            hash(STYLE)
        )
    }

    /// Writes everything up to the page's heading. `kind` is the kind of page.
    pub(crate) fn begin(&self, title: &str, kind: &str, out: &mut dyn Write) -> io::Result<()> {
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"millpond\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} – Millpond</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <div class=\"bar\">{LOGO}<b>Millpond</b><span>{kind}</span><span class=\"space\"></span>\
             <button type=\"button\" class=\"plain\" id=\"keys\">Keys <kbd>?</kbd></button>\
             <button type=\"button\" class=\"plain\" id=\"theme\">Dark</button></div>\n<main>\n<section class=\"lead\">\n<h1>{title}</h1>\n",
            policy = self.policy(),
            title = Text(title),
        )
    }

    /// Writes the metadata of the page, and the script. They come before the data, so that the script can paint
    /// while the browser still reads the rest.
    pub(crate) fn script(&self, meta: &Value, out: &mut dyn Write) -> io::Result<()> {
        json("meta", meta, out)?;
        writeln!(out, "<script>{}</script>", self.script)
    }
}

/// Writes JSON for the script.
pub(crate) fn json(id: &str, value: &Value, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<script type=\"application/json\" id=\"{id}\">{}</script>",
        Json(value)
    )
}

/// Writes compressed data for the script.
pub(crate) fn blob(id: &str, blob: &Blob, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "<script type=\"application/octet-stream\" id=\"{id}\">{}</script>",
        blob.base64()
    )
}
