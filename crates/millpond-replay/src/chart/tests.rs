//! Checks both pictures of one timeline: they are complete, have the right size, and are safe with any names.

use super::{BANDS, REST, png, svg};
use crate::analysis::{Band, Sample, Timeline};
use flate2::read::ZlibDecoder;
use std::io::Read;

fn sample(bytes: u64) -> Sample {
    Sample {
        least: bytes,
        most: bytes,
        last: bytes,
        at_peak: bytes,
    }
}

fn timeline(name: &str) -> Timeline {
    let line = |bytes: [u64; 4]| bytes.map(sample).to_vec();
    Timeline {
        from: 0,
        to: 4_000_000_000,
        by_rows: false,
        total: line([100, 400, 300, 0]),
        bands: vec![Band {
            name: name.to_owned(),
            samples: line([100, 300, 100, 0]),
        }],
        rest: line([0, 100, 200, 0]),
        rest_groups: 2,
        reserved: Some(line([500, 500, 500, 500])),
        unexplained: None,
    }
}

#[test]
fn names_are_escaped_in_an_svg() {
    let picture = svg(
        &timeline("</svg><script>alert(1)</script>&\"\u{1b}[2J\u{202e}"),
        "a<b",
    );
    assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("</svg>").count(), 1);
    assert!(!picture.contains("<script") && !picture.contains('\u{1b}') && !picture.contains('\u{202e}'));
    assert!(picture.contains("&lt;/svg&gt;&lt;script&gt;") && picture.contains("a&lt;b"));
    // The band, the rest, and the line of reserved bytes.
    assert_eq!(picture.matches("<path").count(), 3);
    assert!(picture.contains("2 others") && picture.contains("reserved by pools"));
}

/// Decodes a PNG file by the rules of the format. Returns width, height and pixels.
fn decoded(png: &[u8]) -> (usize, usize, Vec<u8>) {
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let (mut at, mut size, mut rows) = (8, (0, 0), Vec::new());
    while at < png.len() {
        let word = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four")) as usize;
        let (length, name) = (word(at), &png[at + 4..at + 8]);
        let content = &png[at + 8..at + 8 + length];
        let mut sum = flate2::Crc::new();
        sum.update(&png[at + 4..at + 8 + length]);
        assert_eq!(sum.sum() as usize, word(at + 8 + length), "checksum of {name:?}");
        match name {
            b"IHDR" => size = (word(at + 8), word(at + 12)),
            b"IDAT" => drop(
                ZlibDecoder::new(content)
                    .read_to_end(&mut rows)
                    .expect("a stream"),
            ),
            b"tEXt" => assert_eq!(content, b"Software\0millpond"),
            _ => assert_eq!(name, b"IEND"),
        }
        at += 12 + length;
    }
    assert_eq!(rows.len(), (size.0 * 3 + 1) * size.1);
    let pixels = rows
        .chunks(size.0 * 3 + 1)
        .flat_map(|row| row[1..].to_vec())
        .collect();
    (size.0, size.1, pixels)
}

#[test]
fn a_png_has_the_bands_at_the_right_pixels() {
    let (wide, tall, pixels) = decoded(&png(&timeline("a band"), "title").expect("memory"));
    assert_eq!((wide, tall), (2400, 1144));
    let pixel = |x: usize, y: usize| {
        let at = (y * wide + x) * 3;
        [pixels[at], pixels[at + 1], pixels[at + 2]]
    };
    // 500 bytes are as high as the plot, whose floor is at 960 and whose top is at 88. In the second column
    // the band has 300 of 400.
    let y = |bytes: usize| 960 - bytes * (960 - 88) / 500;
    let second = 192 + 2160 * 3 / 8;
    assert_eq!(pixel(second, y(150)), BANDS[0]);
    assert_eq!(pixel(second, y(350)), REST);
    assert_eq!(pixel(second, y(450)), [255, 255, 255]);
    let last = 192 + 2160 * 7 / 8;
    assert_eq!(pixel(last, y(50)), [255, 255, 255]);
}

#[test]
fn every_character_can_be_drawn() {
    // A title has room for only some of them.
    let strange: Vec<char> = (0..0x3000).filter_map(char::from_u32).collect();
    for some in strange.chunks(100).step_by(7) {
        let some: String = some.iter().collect();
        assert!(png(&timeline(&some), &some).is_ok());
    }
    let empty = Timeline {
        total: Vec::new(),
        bands: Vec::new(),
        rest: Vec::new(),
        reserved: None,
        ..timeline("")
    };
    assert!(png(&empty, "").is_ok() && svg(&empty, "").ends_with("</svg>\n"));
}
